# SPDX-License-Identifier: Apache-2.0
"""Folders and sockets that root makes for another account, QEMU's, without trusting it.

Used by guests.vsock, guests.vsock_backends and guests.ivshmem_doorbells. An account that may write
in a folder can put a link into the place of any file there, between two system calls of ours as
well; so root changes nothing by a path in such a folder. What root needs itself lies in folders of
its own; a socket for the account is made and given away in one of these and then moved, which
follows no link.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

Account = tuple[int, int]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STAGING = ".new"


def own_folder(path: Path, mode: int = 0o700) -> None:
    """Makes a folder that only this process's user may write; takes one back that was given away.

    What is above it has to be such a folder already. Raises OSError.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _set_up(path, (os.geteuid(), os.getegid()), mode)


def given_folder(path: Path, account: Account | None) -> None:
    """Makes a folder that only `account` may enter, in one of `own_folder`; raises OSError."""
    _set_up(path, account or (os.geteuid(), os.getegid()), 0o700)


def given_socket(path: Path, account: Account | None, backlog: int) -> socket.socket:
    """A socket that listens at `path` and to which only `account` and root may connect.

    Takes the place of what is there. The folder may be the account's; the one above it is our own.
    Raises OSError.
    """
    staging = path.parent.parent / _STAGING
    own_folder(staging)
    scratch = staging / secrets.token_hex(4)  # short: an address has room for 107 bytes
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(scratch))
        scratch.chmod(0o600)
        if account and os.geteuid() == 0:
            os.chown(scratch, *account)
        listening.listen(backlog)
        scratch.rename(path)
    except BaseException:
        listening.close()
        scratch.unlink(missing_ok=True)
        raise
    return listening


def _set_up(path: Path, owner: Account, mode: int) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(path, _FOLDER)
    try:
        found = os.fstat(folder)
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != owner:
            os.fchown(folder, *owner)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)
