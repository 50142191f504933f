# SPDX-License-Identifier: Apache-2.0
"""What a rig guest boots from: packages on this machine, Debian's kernel unpacked, an initramfs.

Called by rig.py before anything starts. Owns ``build/rig/images``, which all rigs of a checkout
share under a file lock; a second call finds everything there and takes no time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import initramfs, vmlinux

#: Debian packages on the machine that runs the rig.
PACKAGES = (
    "qemu-system-x86",
    "qemu-utils",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libvirt-clients",
    "libvirt-dev",
    "libxml2-utils",
    "pkg-config",
    "gcc",
    "busybox-static",
    "kmod",
    "iproute2",
    "udev",
)

#: What init needs to reach the host's root and the agent's port; virtio_net for guests with a
#: network.
MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_console", "virtio_net")

#: What a guest has that has nothing of the host's file system.
ALONE = (Path("/bin/bash"), Path("/usr/bin/setsid"))
#: What a CUDA program and the guest bundle load.
ALONE_LIBRARIES = tuple(
    Path("/lib/x86_64-linux-gnu", name)
    for name in (
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
    )
)
ALONE_MODULES = ("virtio_pci", "virtio_console", "virtio_blk")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Images:
    """Paths of what a guest boots from."""

    kernel: Path
    initramfs: Path
    #: The same for a guest that has nothing of the host's file system.
    alone: Path
    agent: Path
    modules: Path
    release: str


def install_packages(progress: Progress) -> None:
    """Installs what is missing of :data:`PACKAGES` by apt; needs root only then."""
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *PACKAGES],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    present = {line.split()[1] for line in listed if line.startswith("installed ")}
    missing = [package for package in PACKAGES if package not in present]
    if not missing:
        return
    progress(f"installing {', '.join(missing)}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for arguments in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(
            ["apt-get", *arguments], check=False, capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise RuntimeError(
                f"apt-get {' '.join(arguments)} failed: {done.stderr.strip()[-2000:]}"
            )


def prepare(cache: Path, progress: Progress) -> Images:
    """Fetches and builds what is missing below ``cache`` and returns the paths."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _prepare_locked(cache, progress)


def _prepare_locked(cache: Path, progress: Progress) -> Images:
    named = cache / "kernel-package"
    if not named.exists():
        named.write_text(_kernel_package())
    package = named.read_text()
    release = package.removeprefix("linux-image-")
    unpacked = _unpack(package, cache, progress)
    agent = _unpack("qemu-guest-agent", cache, progress) / "usr/sbin/qemu-ga"
    images = Images(
        kernel=cache / f"vmlinux-{release}",
        initramfs=cache / f"initramfs-{release}",
        alone=cache / f"initramfs-alone-{release}",
        agent=agent,
        modules=unpacked / "lib/modules",
        release=release,
    )
    if not (unpacked / f"lib/modules/{release}/modules.dep.bin").exists():
        subprocess.run(["/sbin/depmod", "-b", str(unpacked), release], check=True)
    if not images.kernel.exists():
        progress("unpacking the guest's kernel")
        partial = images.kernel.with_suffix(".partial")
        vmlinux.extract(unpacked / f"boot/vmlinuz-{release}", partial)
        partial.rename(images.kernel)
    _build(images.initramfs, "guest_init.sh", MODULES, {}, unpacked, release, progress)
    files = {"usr/sbin/qemu-ga": agent}
    for program in (*ALONE, *ALONE_LIBRARIES):
        files[str(program).lstrip("/")] = program
    for program in list(files.values()):
        files |= {str(library).lstrip("/"): library for library in _libraries(program)}
    _build(images.alone, "guest_init_alone.sh", ALONE_MODULES, files, unpacked, release, progress)
    return images


def _build(
    target: Path,
    init: str,
    names: tuple[str, ...],
    files: Mapping[str, Path],
    unpacked: Path,
    release: str,
    progress: Progress,
) -> None:
    """An initramfs, unless there is one newer than what it is made of."""
    here = Path(__file__).parent
    inputs = [here / init, here / "initramfs.py", here / "images.py"]
    newest = max(path.stat().st_mtime for path in inputs)
    if target.exists() and target.stat().st_mtime >= newest:
        return
    progress(f"building {target.name}")
    partial = target.with_suffix(".partial")
    initramfs.build(partial, here / init, unpacked, release, names, files)
    partial.rename(target)


def _libraries(program: Path) -> list[Path]:
    """The shared libraries that a program loads, and its loader, by the paths that it looks at."""
    shown = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return [Path(word) for line in shown.splitlines() for word in line.split() if word[0] == "/"]


def unpacked_modules(cache: Path, found: Images) -> Path:
    """The folder below which the kernel's lib/modules lies."""
    return cache / f"linux-image-{found.release}"


def _kernel_package() -> str:
    """The versioned package behind linux-image-amd64."""
    shown = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], check=True, capture_output=True, text=True
    ).stdout
    for line in shown.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    raise RuntimeError("apt knows no linux-image-amd64: run apt-get update")


def _unpack(package: str, cache: Path, progress: Progress) -> Path:
    """Downloads ``package`` and unpacks it below ``cache`` without installing it."""
    target = cache / package
    if target.exists():
        return target
    progress(f"downloading {package}")
    partial = cache / f"{package}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    # apt's own sandbox user cannot write below the checkout; it says so and goes on as root.
    for attempt in (0, 1):
        done = subprocess.run(
            ["apt-get", "download", "-qq", package],
            cwd=partial,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            break
        if attempt:
            raise RuntimeError(f"apt-get download {package} failed: {done.stderr.strip()[-2000:]}")
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
    archive = next(partial.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive.name, "."], cwd=partial, check=True)
    archive.unlink()
    partial.rename(target)
    return target


if (
    __name__ == "__main__"
):  # `python -m tests.rigs.kvm.images FOLDER`: fetched before a rig needs it
    prepare(Path(sys.argv[1]), lambda line: print(line, flush=True))
