# SPDX-License-Identifier: Apache-2.0
"""Finds the native programs and libraries: sluice-worker, sluice-doorbell, libcuda.so.1, softgpu.

Called by the server, the hypervisor part and the guest bundle. A file is looked for in
SLUICE_NATIVE_DIR, then in the installed package (sluice/native), then in a checkout's build/native;
the first place that has it wins. It promises an absolute path or an error that names every place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SOFTGPU = "libsluice-softgpu.so.1"  # the software GPU's driver


class NativeFileMissing(FileNotFoundError):
    """A native program or library is in none of the places where it may be."""


def native_folders() -> Iterator[Path]:
    """Yields the folders that may hold native files, best first."""
    if named := os.environ.get("SLUICE_NATIVE_DIR"):
        yield Path(named)
    # not resolved: in a checkout this file is reached through python/sluice/config
    yield Path(os.path.abspath(__file__)).parent.parent / "native"
    yield Path(__file__).resolve().parent.parent / "build" / "native"


def find_native(name: str) -> Path:
    """Returns the absolute path of a native file by its name, such as "sluice-worker"."""
    looked: list[str] = []
    for folder in native_folders():
        looked.append(str(folder))
        if not folder.is_dir():
            continue
        for pattern in (name, f"bin/{name}", f"lib/{name}", f"*/{name}", f"*/*/{name}"):
            for path in sorted(folder.glob(pattern)):
                if path.is_file():
                    return path.absolute()
    raise NativeFileMissing(
        f"{name} was not found in {', '.join(looked)}; build it (`make native`) or set "
        "SLUICE_NATIVE_DIR to the folder that holds it"
    )
