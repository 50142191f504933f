# SPDX-License-Identifier: Apache-2.0
"""Says whether this machine can run Sluice's libraries: system, memory, limits, clock, group.

Used by doctor.py and support/. Each check takes what it judges as arguments, with this machine's as
defaults, and changes nothing.
"""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import pwd
import re
import resource
from pathlib import Path

from .device_file import check_device_file
from .findings import Finding, bad, note, ok

GROUP = "sluice"
OLDEST_GLIBC = (2, 28)
#: pidfd_open: how the end of a local client is learned.
OLDEST_KERNEL = (5, 3)
SHARED_MEMORY = Path("/dev/shm")
#: A session's rings and its arena ([server] arena_mib) are there.
SESSION_MIB = 256
LEAST_OPEN_FILES = 1024
#: What RDMA registers (docs/rdma.md).
LOCKED_BYTES = 8 << 20
_STA_UNSYNC = 0x40  # linux/timex.h
_TIMEX_BYTES = 208
_TIMEX_STATUS = 40


def check_machine() -> list[Finding]:
    """Everything about this machine that has nothing to do with the pool yet."""
    return [
        *check_system(),
        check_shared_memory(),
        *check_limits(),
        check_clock(),
        check_device_file(),
    ]


def check_system(
    system: str = "", machine: str = "", kernel: str = "", libc: tuple[str, str] | None = None
) -> list[Finding]:
    """Kernel, processor and C library."""
    system, machine = system or platform.system(), machine or platform.machine()
    kernel = kernel or platform.release()
    name, version = libc or platform.libc_ver()
    found = []
    if system != "Linux" or machine not in ("x86_64", "amd64"):
        found.append(
            bad(
                "system",
                f"{system} on {machine}",
                "use an x86-64 machine with Linux: there are no libraries for others",
            )
        )
    numbers = _numbers(kernel)
    if numbers < OLDEST_KERNEL:
        found.append(
            bad(
                "kernel",
                f"{kernel} is older than {_dotted(OLDEST_KERNEL)}",
                "install a newer kernel: the end of a program is not noticed with this one",
            )
        )
    else:
        found.append(ok("kernel", f"{system} {kernel}, {machine}"))
    if name != "glibc":
        found.append(
            bad(
                "C library",
                f"{name or 'not glibc'} {version}".strip(),
                f"use a system with glibc {_dotted(OLDEST_GLIBC)} or later (Alpine's musl is none)",
            )
        )
    elif _numbers(version) < OLDEST_GLIBC:
        found.append(
            bad(
                "C library",
                f"glibc {version} is older than {_dotted(OLDEST_GLIBC)}",
                "use a newer system, or run the program in a container that has one",
            )
        )
    else:
        found.append(ok("C library", f"glibc {version}"))
    return found


def check_shared_memory(
    folder: Path = SHARED_MEMORY, space: tuple[int, int] | None = None
) -> Finding:
    """/dev/shm, where a local session's memory is; `space` is total and free bytes."""
    if not folder.is_dir():
        return bad(
            "shared memory", f"there is no {folder}", f"mount it: mount -t tmpfs tmpfs {folder}"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return bad(
            "shared memory",
            f"{folder} is not writable for you",
            f"chmod 1777 {folder}, or mount it anew",
        )
    if space is None:
        about = os.statvfs(folder)
        space = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
    total, free = (size >> 20 for size in space)
    if free < SESSION_MIB:
        return bad(
            "shared memory",
            f"{folder} has {free} of {total} MiB free, and a local session wants {SESSION_MIB}",
            "give a container --shm-size 4g; elsewhere `mount -o remount,size=8G /dev/shm`, or "
            "remove what lies there",
        )
    return ok("shared memory", f"{folder}: {free} of {total} MiB free")


def check_limits(files: int | None = None, locked: int | None = None) -> list[Finding]:
    """This process' limits, as programs that are started here have them; -1 is none."""
    if files is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if locked is None:
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found = []
    if 0 <= files < LEAST_OPEN_FILES:
        found.append(
            bad(
                "open files",
                f"{files} at a time",
                f"ulimit -n {LEAST_OPEN_FILES} or more (nofile in /etc/security/limits.conf)",
            )
        )
    else:
        found.append(ok("open files", "no limit" if files < 0 else f"{files} at a time"))
    if 0 <= locked < LOCKED_BYTES:
        found.append(
            note(
                "locked memory",
                f"{locked >> 10} KiB: sessions over RDMA want {LOCKED_BYTES >> 20}"
                " MiB and go over TCP without",
                "ulimit -l, memlock in /etc/security/limits.conf, LimitMEMLOCK= of a unit",
            )
        )
    else:
        found.append(
            ok("locked memory", "no limit" if locked < 0 else f"{locked >> 20} MiB may be locked")
        )
    return found


def check_clock(status: int | None = None) -> Finding:
    """Whether the kernel says that its clock is kept right; `status` is adjtimex(2)'s."""
    if status is None:
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
        try:
            if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
                return note("clock", "the kernel does not say whether it is synchronised")
        except (OSError, AttributeError):
            return note("clock", "the kernel does not say whether it is synchronised")
        status = int.from_bytes(buffer.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little")
    if status & _STA_UNSYNC:
        return note(
            "clock",
            "nothing keeps it right: certificates are refused by a clock that is wrong",
            "install chrony or switch on systemd-timesyncd",
        )
    return ok("clock", "synchronised")


def check_group(
    needed: bool, group: str = GROUP, user: str = "", held: frozenset[int] | None = None
) -> Finding:
    """Whether this user is of the group whose members may use channels; `needed`: there are some.

    `held` are the groups that this login has.
    """
    uid = os.geteuid()
    user = user or _user_name(uid)
    if held is None:
        held = frozenset({*os.getgroups(), os.getegid()})
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        if not needed:
            return ok("group", f"there is no group {group} here, and nothing that needs it")
        return bad(
            "group",
            f"there is no group {group}",
            f"groupadd -r {group}, or install the guest bundle again (install.sh)",
        )
    if user == "root":
        return ok("group", f"root needs no group; others: usermod -aG {group} NAME")
    if entry.gr_gid in held:
        return ok("group", f"{user} is in {group}")
    if user in entry.gr_mem:
        return bad(
            "group",
            f"{user} was put into {group} after this login",
            f"log in again, or `newgrp {group}`",
        )
    if not needed:
        return ok("group", f"{user} is not in {group}, and nothing here needs it")
    return bad(
        "group",
        f"{user} is not in {group}",
        f"as root: usermod -aG {group} {user}; then log in again",
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    found = [int(part) for part in re.findall(r"[0-9]{1,6}", version)[:2]]
    return tuple(found + [0] * (2 - len(found)))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
