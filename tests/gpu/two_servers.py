# SPDX-License-Identifier: Apache-2.0
"""Two servers of one pool on this host, a GPU each: what node_copies.py and node_ddp.py run on.

Also how a server gets this machine's cards, for preemption.py and suspended_job.py.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "harness"), str(ROOT / "python"), str(ROOT / "dev")]

from control_plane import ControlPlane, running  # noqa: E402
from run import find_driver  # noqa: E402

from sluice.config.native_files import find_native  # noqa: E402

GPUS = 2


def gpus() -> list[str]:
    """The UUIDs of NVIDIA's, as nvidia-smi lists them."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return re.findall(r"\(UUID: (GPU-[0-9a-f-]+)\)", listed.stdout)


def on_cards(uuids: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a ControlPlane is told so that its server has these cards; none: a software GPU.

    The cards are the tests', which say themselves what is wrong with them.
    """
    card = {"driver": find_driver(), "visible_devices": ",".join(uuids)}
    return {
        "server": card if uuids else {"driver": "softgpu"},
        "health": {"gpu_acceptance": "off", "watch": "false"} if uuids else {},
        "environment": {**(environment or {}), "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'site'}"},
    }


@contextlib.contextmanager
def two_servers(
    *, gpu: bool, environment: Mapping[str, str] | None = None
) -> Iterator[ControlPlane]:
    """The pool; on the software GPU where there are not two. `environment`: of the servers."""
    cards = [[uuid] for uuid in gpus()[:GPUS]] if gpu else [[]] * GPUS
    one, two = (on_cards(each, environment) for each in cards)
    two["server"]["node_name"] = "node-b"
    with tempfile.TemporaryDirectory(prefix="sluice-nodes-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "b").mkdir()
        with running(folder, **one) as first:
            second = ControlPlane(folder / "b", pool_of=first, **two)
            try:
                second.start_server()
                yield first
            finally:
                second.close()


def across(plane: ControlPlane, memory_mib: int) -> dict[str, str]:
    """The environment of a process that has a vGPU of each node."""
    return {
        "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
        "SLUICE_CHANNEL": "tcp",
        "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
        "SLUICE_VGPU": str(GPUS),
        "SLUICE_CROSS_NODE": "1",
        "SLUICE_GMEM": str(memory_mib),
    }
