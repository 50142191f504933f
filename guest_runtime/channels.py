# SPDX-License-Identifier: Apache-2.0
"""Looks for the ways from this machine to the pool, in the order in which the native library tries
them.

Used by check.py. Opens nothing that a session would be charged for: a region is mapped and read, a
socket is looked at, a controller is connected to and let go.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import struct
import time
from pathlib import Path

from .configuration import Value
from .findings import Finding, Verdict, bad, note, ok
from .rdma_ports import RDMA_DEVICES, check_rdma

PCI_DEVICES = Path("/sys/bus/pci/devices")
REGION_MAGIC = 0x31304E4745524C53  # "SLREGN01", native/channel/slot.h
GROUP = "sluice"
#: As hypervisor/vsock_devices.py gives them, and native/client/core/open_vsock.cc knows them.
SLUICE_CIDS = range(0x53400000, 0x53500000)
VSOCK_PORT = 9960
_GET_LOCAL_CID = 0x7B9  # IOCTL_VM_SOCKETS_GET_LOCAL_CID, linux/vm_sockets.h

_HEADER = struct.Struct(
    "<QIIQQII"
)  # magic, version, slots, region bytes, slot bytes, generation, -
#: An uncached mapping reads a hundred times slower than this.
_SLOWEST_BYTES_PER_SECOND = 200e6
#: How much slower than other memory an uncached mapping is, at least: by far more, in truth. An
#: emulated machine is slow with all of its memory.
_UNCACHED_FACTOR = 4
_TIMED_BYTES = 1 << 20
#: The registers of an ivshmem device (QEMU, docs/specs/ivshmem-spec).
_REGISTER_BYTES = 256
_OWN_ID = 8


def check_channels(
    settings: dict[str, Value],
    pci_devices: Path = PCI_DEVICES,
    rdma_devices: Path = RDMA_DEVICES,
) -> list[Finding]:
    """Every channel that the settings allow; one good one is enough."""
    wanted = settings["client.channel"].text
    results: list[Finding] = []
    if wanted in ("auto", "shm"):
        path = Path(settings["client.server_socket"].text)
        # A socket that is there is used, and nothing else is tried.
        if wanted == "shm" or path.exists():
            return [check_socket(path)]
        results.append(note("server socket", f"no {path}: this machine is no host of the pool"))
    if wanted in ("auto", "ivshmem"):
        named = settings["client.ivshmem"].text
        found = check_region(Path(named)) if named else check_regions(pci_devices)
        results.append(found)
        if found.verdict is Verdict.OK:
            return [note(r.subject, r.text) for r in results[:-1]] + [found]
    if wanted == "rdma" or (wanted == "auto" and settings["client.enable_net"].true):
        port = check_rdma(settings["client.ibverbs_device"].text, rdma_devices)
        if wanted == "rdma" and port.verdict is Verdict.OK:
            # whether its node has RDMA too, only a session tells
            return [port, check_controller(settings["controller.controller_addr"])]
        results.append(port if wanted == "rdma" else note(port.subject, port.text))
    if wanted in ("auto", "vsock"):
        answer = check_vsock()
        if wanted == "vsock" or answer is not None:
            results.append(answer or _no_vsock())
        if answer is not None and answer.verdict is Verdict.OK:
            return [note(r.subject, r.text) for r in results[:-1]] + [answer]
    if wanted in ("auto", "tcp"):
        if wanted == "auto" and not settings["client.enable_net"].true:
            results.append(note("tcp", "the network is switched off (enable_net)"))
        else:
            found = check_controller(settings["controller.controller_addr"])
            results.append(found)
            if found.verdict is Verdict.OK:
                return [note(r.subject, r.text) for r in results[:-1]] + [found]
    return results


def check_socket(path: Path) -> Finding:
    """The server of this host, if this machine is one."""
    if not path.exists():
        return bad(
            "server socket",
            f"no {path}",
            "start sluice-server on this host, or allow other channels (SLUICE_CHANNEL=auto)",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            remedy = (
                f"join the group {GROUP}"
                if error.errno == errno.EACCES
                else "start sluice-server: the socket is there and nobody listens"
            )
            return bad("server socket", f"{path}: {error.strerror}", remedy)
    return ok(
        "server socket", f"{path} answers: this host's server serves programs by shared memory"
    )


def check_regions(pci_devices: Path) -> Finding:
    """The ivshmem devices of this machine; the best finding of them."""
    devices = [device for device in sorted(pci_devices.glob("*")) if is_ivshmem(device)]
    if not devices:
        return bad(
            "ivshmem",
            "no ivshmem device (1af4:1110) in this machine",
            "on the host: sluice vm attach DOMAIN --memory-mib … --compute …",
        )
    findings = [_check_device(device) for device in devices]
    return next((f for f in findings if f.verdict is Verdict.OK), findings[0])


def is_ivshmem(device: Path) -> bool:
    """Whether a PCI device, by its folder in sysfs, is a shared memory device."""
    try:
        ids = [(device / name).read_text().strip() for name in ("vendor", "device")]
    except OSError:
        return False
    return ids == ["0x1af4", "0x1110"]


def _check_device(device: Path) -> Finding:
    resource = device / "resource2"
    if not resource.exists():
        return bad(
            "ivshmem",
            f"{device.name} was plugged in where the PCI window had no room for its memory",
            f"as root: /opt/sluice/libexec/sluice-pci-setup {device} (the udev rule does it), or "
            "restart the guest",
        )
    return check_region(resource)


def check_region(resource: Path) -> Finding:
    """One region: may it be used, is it ours and formatted, is its mapping fast."""
    try:
        descriptor = os.open(resource, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        remedy = (
            f"join the group {GROUP} (usermod -aG {GROUP} $USER, then log in again); if the file "
            "belongs to root:root, the udev rule of the bundle is missing (install.sh)"
            if error.errno in (errno.EACCES, errno.EPERM)
            else "see `dmesg`, and attach the channel again on the host"
        )
        return bad("ivshmem", f"{resource}: {error.strerror}", remedy)
    try:
        size = os.fstat(descriptor).st_size
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as region:
            return _check_contents(resource, region, size)
    except (OSError, ValueError) as error:
        return bad("ivshmem", f"{resource} cannot be mapped: {error}", "restart the guest")
    finally:
        os.close(descriptor)


def _check_contents(resource: Path, region: mmap.mmap, size: int) -> Finding:
    magic, _, slots, region_bytes, _, generation, _ = _HEADER.unpack_from(region, 0)
    if magic in (0, (1 << 64) - 1) or generation in (0, (1 << 32) - 1):
        return bad(
            "ivshmem",
            f"{resource} ({size >> 20} MiB) is not formatted",
            "start sluice-server on the host; it formats the region within seconds",
        )
    if magic != REGION_MAGIC or region_bytes != size:
        return bad(
            "ivshmem",
            f"{resource} is not a region of Sluice, or one of another version",
            "another program of this machine uses ivshmem: name ours by "
            "SLUICE_IVSHMEM=…/resource2; "
            "or bring host and guest to the same release",
        )
    length = min(size, _TIMED_BYTES)
    region[:length]  # the first pass pays for the page tables
    speed = _best_speed(region, length)
    slow = speed < _SLOWEST_BYTES_PER_SECOND
    if slow and speed < _own_memory_speed(length) / _UNCACHED_FACTOR:
        return bad(
            "ivshmem",
            f"{resource} reads at {speed / 1e6:.0f} MB/s: this machine maps it uncached",
            "use another channel (SLUICE_CHANNEL=tcp), or a guest kernel that maps prefetchable "
            "memory cached",
        )
    bell = ", its doorbell wakes the host" if _has_doorbell(resource) else ""
    return ok(
        "ivshmem",
        f"{resource}: {size >> 20} MiB, {slots} slots, reads at {speed / 1e9:.1f} GB/s{bell}",
    )


def _has_doorbell(resource: Path) -> bool:
    """Whether the device's registers may be used and say that it is one of several peers."""
    try:
        descriptor = os.open(resource.with_name("resource0"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with mmap.mmap(descriptor, _REGISTER_BYTES, access=mmap.ACCESS_READ) as registers:
            own_id = int.from_bytes(registers[_OWN_ID : _OWN_ID + 4], "little")
            return 0 < own_id <= 0xFFFF
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)


def _best_speed(region: mmap.mmap, length: int) -> float:
    """Bytes a second of the fastest of sixteen pieces: a busy machine takes the processor away
    from some of them, and one that maps memory uncached is slow in all."""
    piece = max(length // 16, mmap.PAGESIZE)
    best = 0.0
    for at in range(0, length, piece):
        began = time.perf_counter()
        region[at : at + piece]
        taken = max(time.perf_counter() - began, 1e-9)
        best = max(best, min(piece, length - at) / taken)
    return best


def _own_memory_speed(length: int) -> float:
    """The same of memory of this process."""
    with mmap.mmap(-1, length) as own:
        own.write(bytes(length))
        return _best_speed(own, length)


def check_vsock() -> Finding | None:
    """The host at the other end of a vsock device of Sluice's; None where there is no such device.

    Nothing is sent to the host of a machine whose CID is not one that Sluice gives.
    """
    cid = local_cid()
    if cid is None or cid not in SLUICE_CIDS:
        return None
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as probe:
            probe.settimeout(3)
            probe.connect((socket.VMADDR_CID_HOST, VSOCK_PORT))
    except OSError as error:
        return bad(
            "vsock",
            f"the host does not answer on port {VSOCK_PORT} (CID {cid} here): {error.strerror}",
            "start sluice-server on the host, and see `sluice vm show` there",
        )
    return ok("vsock", f"the host answers on port {VSOCK_PORT} (CID {cid} here)")


def _no_vsock() -> Finding:
    return bad(
        "vsock",
        "this machine has no vsock device of Sluice's",
        "on the host: sluice vm attach DOMAIN --channel vsock --memory-mib … --compute …",
    )


def local_cid(device: Path = Path("/dev/vsock")) -> int | None:
    """This machine's own CID, None where it has none."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.ioctl(descriptor, _GET_LOCAL_CID, bytes(4))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int.from_bytes(answer, "little")


def check_controller(address: Value) -> Finding:
    """Whether one of the controllers can be reached; sessions then go by TCP."""
    troubles: list[str] = []
    for one in filter(None, (part.strip() for part in address.text.split(","))):
        place = one.removeprefix("http://").removeprefix("https://").rstrip("/")
        host, colon, port = place.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
            return bad(
                "tcp",
                f"{address.origin}: {one!r} is no host:port",
                "set SLUICE_CONTROLLER=host:port, or several with commas",
            )
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=3):
                pass
        except OSError as error:
            troubles.append(f"{one}: {error}")
            continue
        return ok("tcp", f"a controller listens at {one} ({address.origin})")
    return bad(
        "tcp",
        f"no controller answers ({address.origin}): {'; '.join(troubles) or 'none is named'}",
        "set SLUICE_CONTROLLER=host:port, and see that the network lets it through",
    )
