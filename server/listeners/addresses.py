# SPDX-License-Identifier: Apache-2.0
"""Which addresses the data port has: where it listens, and what clients are told.

Used by server.service when it starts.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket

from sluice.config.sections import split_address

SIOCGIFADDR = 0x8915


class StartError(Exception):
    """The server cannot start; the message says why and what to do."""


def data_address(bind_addr: str, bind_net: str | None) -> str:
    """Where to listen: an interface's IPv4 address if one is named; raises StartError."""
    if bind_net is None:
        return bind_addr
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bind_net.encode()[:15].ljust(40, b"\0")
        try:
            return socket.inet_ntoa(fcntl.ioctl(any_socket, SIOCGIFADDR, request)[20:24])
        except OSError as error:
            raise StartError(
                f"[server] bind_net = {bind_net} has no IPv4 address ({error.strerror}); name "
                "another interface, or set bind_addr"
            ) from None


def reachable_address(address: str, controller: str) -> str:
    """What to tell clients: the one towards the controller where all are listened on."""
    if not ipaddress.ip_address(address).is_unspecified:
        return address
    host, port = split_address(controller)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        try:
            towards.connect((host, port))  # sends nothing: it only asks the routing table
            return str(towards.getsockname()[0])
        except OSError as error:
            raise StartError(
                f"[server] bind_addr = {address}: no route to the controller {controller} tells "
                f"which address clients can use ({error}); set [server] advertise_addr"
            ) from None
