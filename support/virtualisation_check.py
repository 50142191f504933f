# SPDX-License-Identifier: Apache-2.0
"""Says whether this host's guests can get channels: KVM, libvirt, QEMU's ivshmem, vsock, regions.

Used by server_check where [server] enable_kvm is on. `root` is where /dev, /sys and /proc are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.config.server import ServerSection
from sluice.guest_runtime.findings import Finding, Verdict, bad, note, ok

QEMU = ("qemu-system-x86_64", "/usr/libexec/qemu-kvm", "qemu-kvm")
_ROOT = Path("/")
_PATIENCE_SECONDS = 20


def check_guests(
    section: ServerSection,
    root: Path = _ROOT,
    connect: Callable[[str], str] | None = None,
    devices: Callable[[], str | None] | None = None,
) -> list[Finding]:
    """Everything between this host and its guests.

    `connect` opens a libvirt and says what it is; `devices` is what QEMU lists as its devices, None
    where there is no QEMU.
    """
    listed = (devices or qemu_devices)()
    libvirt = _libvirt(section.libvirt_uri, connect or libvirt_version)
    if libvirt.verdict is Verdict.BAD and listed is None and not (root / "run/libvirt").exists():
        return [
            note(
                "guests",
                "this host has neither libvirt nor QEMU: it serves its own programs and clients "
                "by TCP, and no guests",
                "apt-get install libvirt-daemon-system qemu-system-x86 python3-libvirt (Debian), or"
                " leave guests out: [server] enable_kvm = false",
            )
        ]
    found = [_kvm(root), libvirt, _qemu(listed)]
    found.append(_vsock(section, root))
    found.append(_regions(section.region_dir))
    return found


def _kvm(root: Path) -> Finding:
    device = root / "dev/kvm"
    if not device.exists():
        return note(
            "KVM",
            f"no {device}: guests are emulated, and slow",
            "switch on virtualisation in the firmware; modprobe kvm_intel or kvm_amd",
        )
    if not os.access(device, os.R_OK | os.W_OK):
        return note("KVM", f"{device} is not open to you", "QEMU's account needs the group kvm")
    return ok("KVM", str(device))


class NoBinding(RuntimeError):
    """libvirt may be there, and its binding for Python is not."""


def libvirt_version(uri: str) -> str:
    """Connects and says which libvirt and QEMU answer; raises RuntimeError with words."""
    try:
        from sluice.hypervisor.errors import HypervisorError
        from sluice.hypervisor.libvirt_host import connected
    except ImportError:
        raise NoBinding("this Python has no binding of libvirt") from None
    try:
        with connected(uri) as connection:
            return (
                f"libvirt {_dotted(connection.getLibVersion())}, "
                f"QEMU {_dotted(connection.getVersion())}, "
                f"{connection.numOfDomains()} running guests"
            )
    except HypervisorError as error:
        raise RuntimeError(str(error)) from None


def _libvirt(uri: str, connect: Callable[[str], str]) -> Finding:
    try:
        return ok("libvirt", f"{uri}: {connect(uri)}")
    except NoBinding as error:
        return bad(
            "libvirt",
            str(error),
            "apt-get install python3-libvirt for sluice-host's deb, libvirt-python by pip "
            "elsewhere (docs/releases.md); without guests: [server] enable_kvm = false",
        )
    except RuntimeError as error:
        return bad(
            "libvirt",
            str(error),
            "systemctl start libvirtd (or virtqemud), [server] libvirt_uri; without guests: "
            "[server] enable_kvm = false",
        )


def qemu_devices() -> str | None:
    """What `-device help` prints; None where there is no QEMU or it does not answer."""
    program = next((found for name in QEMU if (found := shutil.which(name))), None)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-device", "help"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout


def _qemu(devices: str | None) -> Finding:
    if devices is None:
        return bad(
            "QEMU",
            "there is none in PATH that answers",
            "install qemu-system-x86 (Debian) or qemu-kvm",
        )
    missing = [name for name in ("ivshmem-plain", "ivshmem-doorbell") if f'"{name}"' not in devices]
    if missing:
        return bad(
            "QEMU",
            f"it has no {' and no '.join(missing)}",
            "use a QEMU with ivshmem (RHEL's has none), or channels of vsock: "
            "sluice vm attach --channel vsock",
        )
    return ok("QEMU", "it has ivshmem-plain and ivshmem-doorbell")


def _vsock(section: ServerSection, root: Path) -> Finding:
    device = root / "dev/vhost-vsock"
    if device.exists():
        return ok("vsock", f"{device}: guests may have channels of vsock")
    if section.vsock_backend and shutil.which(section.vsock_backend):
        return ok("vsock", f"by {section.vsock_backend}, as the kernel has no vhost-vsock")
    return note(
        "vsock",
        f"no {device} and no {section.vsock_backend or 'vsock_backend'}: guests "
        "have no channels of vsock",
        "modprobe vhost_vsock, or install vhost-device-vsock",
    )


def _regions(folder: Path) -> Finding:
    """Their files are guests' memory: on a disk each call would be written out."""
    kind = file_system_of(folder)
    if kind in ("tmpfs", "hugetlbfs", "ramfs", ""):
        return ok("regions", f"{folder} ({kind or 'unknown file system'})")
    return bad(
        "regions",
        f"[server] region_dir = {folder} is on {kind}, a disk",
        "set it to /dev/shm, or to another tmpfs",
    )


def file_system_of(folder: Path, mounts: str | None = None) -> str:
    """The kind of file system that a folder is on; "" where the kernel does not say."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return ""
    best, kind = -1, ""
    target = str(folder.resolve())
    for line in mounts.splitlines():
        words: Sequence[str] = line.split(" ")
        if len(words) < 3:
            continue
        place = words[1].replace("\\040", " ")
        inside = target == place or target.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= best:
            best, kind = len(place), words[2]
    return kind


def _dotted(number: int) -> str:
    """libvirt's numbers: 9000000 is 9.0.0."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
