# SPDX-License-Identifier: Apache-2.0
"""The RDMA port that a session of this machine would use, by what the kernel says of it.

Used by channels.py. Reads sysfs and looks at files; opens no device and needs nothing installed but
what the native library loads (native/channel/rdma_device.cc, which chooses in the same way).
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from .findings import Finding, Verdict, bad, ok

RDMA_DEVICES = Path("/sys/class/infiniband")
VERBS = Path("/dev/infiniband")
#: What a session locks where it may (native/channel/rdma_memory.h).
LOCKED_BYTES = 4 << 20
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def check_rdma(named: str, devices: Path = RDMA_DEVICES, verbs: Path = VERBS) -> Finding:
    """What is in the way of RDMA; `named` is `ibverbs_device`, NAME[:PORT[:GID]] or empty."""
    there = sorted(path.name for path in devices.glob("*"))
    if not there:
        return bad(
            "rdma",
            "no RDMA device in this machine",
            "an adapter, a virtual function of one, or soft RoCE (docs/rdma.md)",
        )
    name, _, rest = named.partition(":")
    if name and name not in there:
        return bad("rdma", f"there is no {name}, but {', '.join(there)}", "set ibverbs_device")
    wanted_port, _, wanted_gid = rest.partition(":")
    down, found = [], []
    for device in [name] if name else there:
        every = (devices / device / "ports").glob("*")
        ports = sorted((p for p in every if wanted_port in ("", p.name)), key=lambda p: p.name)
        for port in ports:
            if _text(port / "state").startswith("4:"):  # ACTIVE
                found.append(_check_port(device, port, wanted_gid, devices, verbs))
                break
        else:
            down += [f"{device} port {port.name}" for port in ports]
    if found:  # a device with which a session would find something wrong is passed over for another
        return next((finding for finding in found if finding.verdict is Verdict.OK), found[0])
    return bad(
        "rdma",
        f"no port is up: {', '.join(down) or 'there is none of that number'}",
        "the cable, `ip link set DEV up`; on InfiniBand a subnet manager",
    )


def _check_port(device: str, port: Path, wanted_gid: str, devices: Path, verbs: Path) -> Finding:
    what = f"{device} port {port.name}"
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return bad("rdma", f"{what} is up, and there is no libibverbs.so.1", "install rdma-core")
    if wanted_gid:
        if _text(port / "gids" / wanted_gid) in ("", NO_GID):
            return bad("rdma", f"{what} has no GID {wanted_gid}", "set ibverbs_device")
    elif _text(port / "link_layer") == "Ethernet" and not _has_roce(port):
        return bad("rdma", f"{what} has no GID of RoCE v2", "give its network interface an address")
    for file in sorted((devices / device / "device" / "infiniband_verbs").glob("uverbs*")):
        path = verbs / file.name
        if not os.access(path, os.R_OK | os.W_OK):
            return bad("rdma", f"{path} is not open to this user", "rdma-core's udev rule opens it")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit != resource.RLIM_INFINITY and limit < LOCKED_BYTES:
        return ok("rdma", f"{what} is up; only {limit >> 10} KiB may be locked: it is slower")
    return ok("rdma", f"{what} is up")


def _has_roce(port: Path) -> bool:
    for gid in (port / "gids").glob("*"):
        if _text(gid) in ("", NO_GID):
            continue
        if _text(port / "gid_attrs" / "types" / gid.name) == "RoCE v2":
            return True
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
