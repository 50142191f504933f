# SPDX-License-Identifier: Apache-2.0
"""The RDMA ports of this host, by pyverbs, and which of them sessions use.

Used by server.service, server.check and rdma.figures. `read_ports` asks the devices; everything
else decides on what it found, without any I/O. pyverbs is rdma-core's binding and optional: it is
imported when RDMA is wanted. What is missing is an RdmaError that names the setting and the remedy.
"""

from __future__ import annotations

import importlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sluice.config.server import ServerSection

PYVERBS_MISSING = (
    "[server] enable_rdma = true needs pyverbs, which this Python has not: install Debian's "
    "python3-pyverbs or `sluice-gpu[rdma]` (in a virtual environment that sees the system's "
    "packages: python3 -m venv --system-site-packages)"
)
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}  # of enum ibv_mtu
PORT_ACTIVE = 4  # of enum ibv_port_state
PORT_STATES = {0: "no change", 1: "down", 2: "initializing", 3: "armed", 4: "active", 5: "deferred"}
ETHERNET, INFINIBAND = 2, 1
MOST_GIDS = 256
ROUTES = Path("/proc/net/route")


class RdmaError(Exception):
    """Why no session goes over RDMA; the text names the setting and what to do."""


class GidType(Enum):
    """Of enum ibv_gid_type."""

    INFINIBAND = 0
    ROCE_V1 = 1
    ROCE_V2 = 2


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's table; `interface` is the network interface that it belongs to."""

    index: int
    address: ipaddress.IPv6Address
    type: GidType
    interface: str = ""

    @property
    def worth(self) -> int:
        """Of RoCE v2, which of two is better: an IPv4 address's, a routable one, the link's."""
        if self.type is not GidType.ROCE_V2:
            return 0
        if self.address.ipv4_mapped:
            return 3
        return 1 if self.address.is_link_local else 2


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of a device; `state` is enum ibv_port_state, `mtu_bytes` its active MTU."""

    device: str
    number: int
    state: int
    ethernet: bool
    mtu_bytes: int
    gids: tuple[Gid, ...]

    @property
    def is_up(self) -> bool:
        """Whether it carries data now."""
        return self.state == PORT_ACTIVE

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.device} port {self.number}"


@dataclass(frozen=True, slots=True)
class ChosenPort:
    """The port and the GID of this host's sessions."""

    port: RdmaPort
    gid: Gid

    @property
    def option(self) -> str:
        """As sluice-worker is told of it."""
        return f"{self.port.device}:{self.port.number}:{self.gid.index}"

    @property
    def reach(self) -> str:
        """The value of the node's label `rdma`: what it has in common with those that it reaches.

        The network of the GID's IPv4 address, or the first 64 bits of the GID: InfiniBand's subnet,
        an IPv6 network.
        """
        mapped = self.gid.address.ipv4_mapped
        if mapped and self.gid.interface:
            prefix = _prefix_length(self.gid.interface)
            return str(ipaddress.ip_network(f"{mapped}/{prefix}", strict=False))
        return f"{int(self.gid.address) >> 64:016x}"

    def describe(self) -> str:
        """For people."""
        kind = "RoCE v2" if self.port.ethernet else "InfiniBand"
        gid = f"GID {self.gid.index} {self.gid.address}"
        return f"{self.port.name}, {kind}, {gid}, MTU {self.port.mtu_bytes} bytes"


def read_ports() -> list[RdmaPort]:
    """Every port of every RDMA device; raises RdmaError."""
    try:
        verbs: Any = importlib.import_module("pyverbs.device")
        errors: Any = importlib.import_module("pyverbs.pyverbs_error")
    except ImportError:
        raise RdmaError(PYVERBS_MISSING) from None
    found: list[RdmaPort] = []
    try:
        for device in verbs.get_device_list():
            name = device.name.decode()
            with verbs.Context(name=name) as context:
                ports = range(1, context.query_device().phys_port_cnt + 1)
                found += [_read_port(context, name, number) for number in ports]
    except errors.PyverbsError as error:
        raise RdmaError(
            f"[server] enable_rdma = true, and the RDMA devices cannot be read ({error}): the "
            "server needs to open /dev/infiniband/uverbs* and rdma-core's providers"
        ) from None
    return found


def choose(section: ServerSection, ports: Sequence[RdmaPort]) -> ChosenPort:
    """The port that the configuration names, or the first that is up; raises RdmaError."""
    devices = sorted({port.device for port in ports})
    if not devices:
        raise RdmaError(
            "[server] enable_rdma = true, and this host has no RDMA device: load its driver "
            "(`rdma link` shows what there is), or set enable_rdma = false"
        )
    wanted = section.ibverbs_device
    if wanted and wanted not in devices:
        raise RdmaError(
            f"[server] ibverbs_device = {wanted}, and this host has {', '.join(devices)}: name "
            "one of these, or none for the first whose port is up"
        )
    named = [
        port
        for port in ports
        if wanted in (None, "", port.device) and section.ibverbs_port in (None, port.number)
    ]
    if not named:
        raise RdmaError(
            f"[server] ibverbs_port = {section.ibverbs_port}, and there is no such port: "
            + ", ".join(port.name for port in ports)
        )
    up = [port for port in named if port.is_up]
    if not up:
        states = ", ".join(f"{p.name} is {PORT_STATES.get(p.state, 'unknown')}" for p in named)
        raise RdmaError(
            f"[server] enable_rdma = true, and no port is up: {states}. Bring its link up (a "
            "cable, `ip link set DEV up`, a subnet manager on InfiniBand), or name another in "
            "ibverbs_device and ibverbs_port"
        )
    return ChosenPort(up[0], _choose_gid(section.ibverbs_gid, up[0]))


def _choose_gid(wanted: int | None, port: RdmaPort) -> Gid:
    if wanted is not None:
        for gid in port.gids:
            if gid.index == wanted:
                return gid
        there = ", ".join(f"{gid.index} ({gid.address})" for gid in port.gids) or "none"
        raise RdmaError(f"[server] ibverbs_gid = {wanted}, and {port.name} has the GIDs {there}")
    usable = [gid for gid in port.gids if not port.ethernet or gid.worth > 0]
    if not usable:
        raise RdmaError(
            f"{port.name} has no GID of RoCE v2: give its network interface an address, or name "
            "another in [server] ibverbs_device"
        )
    return max(usable, key=lambda gid: (gid.worth, -gid.index))


def _read_port(context: Any, device: str, number: int) -> RdmaPort:
    attributes = context.query_port(number)
    gids = [
        _read_gid(context, number, entry)
        for entry in context.query_gid_table(MOST_GIDS)
        if entry.port_num == number
    ]
    return RdmaPort(
        device,
        number,
        int(attributes.state),
        attributes.link_layer == ETHERNET,
        MTU_BYTES.get(int(attributes.active_mtu), 0),
        tuple(gids),
    )


def _read_gid(context: Any, port: int, entry: Any) -> Gid:
    index = int(entry.gid_index)
    address = ipaddress.IPv6Address(str(context.query_gid(port, index).gid))
    interface = ""
    if entry.ndev_ifindex:
        try:
            interface = socket.if_indextoname(entry.ndev_ifindex)
        except OSError:
            interface = ""  # another network namespace's
    return Gid(index, address, GidType(int(entry.gid_type)), interface)


def _prefix_length(interface: str) -> int:
    """Of the interface's IPv4 address, as /proc/net/route has it; 32 where it has none."""
    best = 32
    try:
        rows = [line.split() for line in ROUTES.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return best
    for row in rows:
        if len(row) > 7 and row[0] == interface and row[2] == "00000000":
            mask = int(row[7], 16).bit_count()
            best = mask if 0 < mask < best else best
    return best
