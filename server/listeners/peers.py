# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket, as the kernel says, and a pidfd to learn of its death.

Called by listeners.unix_socket and, after a restart, by sessions.adoption. A pidfd names one
process for ever, so a pid that was reused is never mistaken for the client that asked.
"""

from __future__ import annotations

import array
import ctypes
import errno
import logging
import os
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from sluice.server.workers.packets import MAX_DESCRIPTORS, MAX_PACKET_BYTES

log = logging.getLogger("sluice.server")

SO_PEERGROUPS = 59  # Linux 4.13
SO_PEERPIDFD = 77  # Linux 6.5; Python's socket module does not name it yet

MOST_GROUPS = 65536  # NGROUPS_MAX of Linux
USUAL_GROUPS = 64  # for whom the first question has room

_CREDENTIALS = struct.Struct("3i")  # struct ucred

_LIBC = ctypes.CDLL(None, use_errno=True)


class PeerGone(Exception):
    """The peer ended before it could be held on to."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A process; whoever holds the value closes pidfd. start_time is in clock ticks since boot."""

    pid: int
    uid: int
    gid: int
    start_time: int
    pidfd: int
    groups: tuple[int, ...] = ()  # supplementary ones


def start_time_of(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat; raises PeerGone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # the program's name may hold spaces and brackets; what follows its last bracket is fixed
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError) as error:
        raise PeerGone(f"process {pid} is gone") from error


def peer_of(connected: socket.socket) -> Peer:
    """Returns the process that connected; raises PeerGone."""
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if pid <= 0:
        raise PeerGone("the peer is in a pid namespace that this host does not see")
    try:
        pidfd = connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        pass  # an older kernel: open it by pid and make sure that it is still the same process
    else:
        try:
            started = start_time_of(pid)
            signal.pidfd_send_signal(pidfd, 0)
        except (PeerGone, ProcessLookupError):
            os.close(pidfd)
            raise PeerGone(f"process {pid} is gone") from None
        except PermissionError:
            pass  # it lives, and belongs to somebody else
        return Peer(pid, uid, gid, started, pidfd, _groups_of(connected))
    started = start_time_of(pid)
    pidfd = open_process(pid, started)
    try:
        if not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise PeerGone(f"process {pid} closed its connection")
    except BlockingIOError:
        pass
    except PeerGone:
        os.close(pidfd)
        raise
    return Peer(pid, uid, gid, started, pidfd, _groups_of(connected))


def ask_for_senders(listener: socket.socket) -> None:
    """From now on the kernel says with each packet who sent it; connections inherit that."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive_from(connected: socket.socket) -> tuple[bytes, list[int], int]:
    """One packet, the descriptors beside it, which the caller closes, and its sender's pid.

    0: the kernel does not say. A process may name another one only where it may kill that anyway.
    """
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(
        MAX_DESCRIPTORS * descriptors.itemsize
    )
    packet, ancillary, _, _ = connected.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    sender = 0
    for level, kind, data in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            sender, _, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
        elif kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return packet, list(descriptors), sender


def _groups_of(connected: socket.socket) -> tuple[int, ...]:
    """All supplementary groups that the peer had when it connected.

    None where the kernel does not say. Asked through libc, as Python has no room for more than 256.
    """
    size = ctypes.c_uint32(USUAL_GROUPS * 4)
    for _ in range(2):  # the kernel says how many there are, and they change no more
        groups = (ctypes.c_uint32 * (size.value // 4))()
        failed = _LIBC.getsockopt(
            connected.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, groups, ctypes.byref(size)
        )
        if not failed:
            return tuple(groups[: size.value // 4])
        error = ctypes.get_errno()
        if error != errno.ERANGE or size.value > MOST_GROUPS * 4:
            break
    log.warning("the supplementary groups of a client are not known: %s", os.strerror(error))
    return ()


def user_domain(peer: Peer) -> str:
    """Which processes share memory with this one: those of its user in its container.

    Namespaces tell containers apart whose processes are all root. "" where the kernel does not say,
    which is nobody: CUDA itself asks for one IPC namespace too.
    """
    try:
        names = [
            str(Path(f"/proc/{peer.pid}/ns/{kind}").readlink()) for kind in ("user", "ipc", "pid")
        ]
        if start_time_of(peer.pid) != peer.start_time:
            return ""
    except (OSError, PeerGone):
        return ""
    return " ".join([str(peer.uid), *names])


def open_process(pid: int, start_time: int) -> int:
    """Returns a pidfd of the process that has this pid and start time; raises PeerGone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise PeerGone(f"process {pid} is gone") from error
    try:
        found = start_time_of(pid)
    except PeerGone:
        os.close(pidfd)
        raise
    if found != start_time:
        os.close(pidfd)
        raise PeerGone(f"process {pid} is another one now")
    return pidfd
