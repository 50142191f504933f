# SPDX-License-Identifier: Apache-2.0
"""A node's driver with an NVML beside it: the software GPU, and tests/nvml/fake_nvml.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sluice.config.native_files import find_native

SOURCE = Path(__file__).resolve().parents[1] / "nvml" / "fake_nvml.c"


def driver_beside_nvml(node: Path) -> Path:
    """The driver's path in the folder `node`, for StaticPool(driver=…)."""
    node.chmod(0o755)  # a worker opens its NVML as the user that it has become
    driver = node / "libcuda.so.1"
    driver.symlink_to(find_native("libsluice-softgpu.so.1"))
    made = node / "libnvidia-ml.so.1"
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", soname, "-o", made, SOURCE], check=True)
    return driver
