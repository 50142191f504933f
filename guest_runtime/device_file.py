# SPDX-License-Identifier: Apache-2.0
"""The files by which programs tell that there is a GPU before they ask CUDA.

JAX (0.5 and later) does: where there is none of NVIDIA's device files it leaves CUDA out and
computes on the processor, without a word. A machine without a GPU has none, so it gets one that
says nothing: a link to /dev/null by the guest's udev rule, a mount of it in containers
(cdi_specification.py), and under `sluice run`, where nobody made one, a module that JAX looks for
by itself (hooks/jax_plugins). Where NVIDIA's driver is loaded its own files stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .findings import Finding, note, ok

#: What is made where there is none.
CONTROL = "/dev/nvidiactl"
#: Of a card, of the driver, of WSL's driver.
FILES = ("/dev/nvidia0", CONTROL, "/dev/dxg")
#: Of modules that programs look for by themselves; for PYTHONPATH.
HOOKS = Path(__file__).resolve().parent / "hooks"


def check_device_file(files: Sequence[str] = FILES) -> Finding:
    """Whether such a program finds a GPU here."""
    found = next((each for each in files if Path(each).exists()), None)
    if found:
        return ok("device file", f"{found}, which JAX looks for before it asks CUDA")
    return note(
        "device file",
        f"there is no {CONTROL}: JAX computes on the processor, but under `sluice run`",
        f"install.sh and the package make one, by udev; by hand: ln -s null {CONTROL}",
    )


def search_path(given: str | None, files: Sequence[str] = FILES) -> str | None:
    """PYTHONPATH for a program that may look for such a file; `given` where there is one."""
    if any(Path(each).exists() for each in files) or str(HOOKS) in (given or "").split(":"):
        return given
    return f"{given}:{HOOKS}" if given else str(HOOKS)
