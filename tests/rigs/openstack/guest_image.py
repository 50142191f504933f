# SPDX-License-Identifier: Apache-2.0
"""What instances of the rig boot from: Debian's kernel and an initramfs that runs a CUDA program.

Called by tests/openstack. Everything that the program needs is in the initramfs (its libraries, the
client libraries of the guest bundle), as an instance of Nova sees nothing of its host. The kernel
is the KVM rig's.
"""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.kvm import images, initramfs

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
#: Of the guest bundle: what a CUDA program needs in a guest.
PARTS = ("lib/libcuda.so.1", "lib/libcudart.so.13", "bin/sluice-watch")
BUNDLE = CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz"
PROGRAM = CHECKOUT / "build" / "programs" / "vector_add"


@dataclass(frozen=True)
class GuestImage:
    """The files to register with Glance."""

    kernel: Path
    initramfs: Path
    disk: Path


def build(
    folder: Path, kernels: Path, bundle: Path = BUNDLE, program: Path = PROGRAM
) -> GuestImage:
    """Writes the image into `folder`; `kernels` is where the KVM rig keeps its own."""
    folder.mkdir(parents=True, exist_ok=True)
    base = images.prepare(kernels, lambda line: None)
    parts = {name: folder / "bundle" / name for name in PARTS}
    with tarfile.open(bundle) as archive:
        for name, path in parts.items():
            member = archive.extractfile(f"sluice-guest/{name}")
            if member is None:
                raise RuntimeError(f"{bundle}: has no {name}: make guest-bundle")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(member.read())
            path.chmod(0o755)
    files = {f"sluice/{name}": path for name, path in parts.items()}
    files["sluice/program"] = program
    for path in (program, *parts.values()):
        files |= {str(found).lstrip("/"): found.resolve() for found in _libraries(path)}
    ramdisk = folder / "initramfs"
    initramfs.build(
        ramdisk,
        HERE / "guest_init.sh",
        images.unpacked_modules(kernels, base),
        base.release,
        ("virtio_pci",),
        files,
    )
    disk = folder / "disk"
    disk.write_bytes(b"\0" * (1 << 20))
    return GuestImage(base.kernel, ramdisk, disk)


def _libraries(path: Path) -> list[Path]:
    """The system's libraries that a file needs, the loader among them."""
    shown = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    found = []
    for line in shown.splitlines():
        words = line.split()
        name = words[2] if "=>" in words else words[0]
        if name.startswith("/"):
            found.append(Path(name))
    return found
