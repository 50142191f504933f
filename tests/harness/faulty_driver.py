# SPDX-License-Identifier: Apache-2.0
"""The software GPU under the name of NVIDIA's driver, beside an NVML whose errors a test writes.

Used by tests of GPUs that fail: a server with `[server] driver` set to it, NVIDIA's Python for NVML
installed, and a file named in its environment's SLUICE_FAKE_NVML (tests/server/fake_nvml_events.c
has the lines).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from sluice.config.native_files import SOFTGPU, find_native

SOURCE = Path(__file__).parent.parent / "server" / "fake_nvml_events.c"


def make_faulty_driver(folder: Path) -> Path:
    """Makes both in a folder, and returns the driver; raises NativeFileMissing, OSError."""
    (folder / "libcuda.so.1").symlink_to(find_native(SOFTGPU))
    library = folder / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *options, "-o", str(library), str(SOURCE)], check=True)
    return folder / "libcuda.so.1"
