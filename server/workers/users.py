# SPDX-License-Identifier: Apache-2.0
"""Which user of this host each worker becomes: one of its own, or its grant's, out of a range.

Used by workers.process (what is started), sessions.lifecycle and relays (who joins and leaves) and
sessions.adoption. The kernel keeps processes of different users apart, whatever a worker that was
taken over may call: signals, priorities, limits, files in /dev/shm. The sessions of one grant, a
job, share a user, because NCCL's ranks on one host exchange data through files that only their user
may open. It promises that an id is given to nobody else while a process of it lives, and that what
it left in /dev/shm is gone before that. The ids need no accounts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger("sluice.server")

SHARED_MEMORY = Path("/dev/shm")
PROC = Path("/proc")


class NoUserLeftError(Exception):
    """Every id of the range belongs to a process that lives."""


@dataclass(frozen=True, slots=True)
class User:
    """What a worker becomes; `own` says that other grants' workers are other users."""

    uid: int
    gid: int
    own: bool


@dataclass
class WorkerUsers:
    """The users of this server's workers; `ids` is empty where they share `shared`, or are root."""

    ids: range
    #: The group of all of them; None: a group of its own for each, by the user's number.
    gid: int | None = None
    shared: User | None = None
    #: Whether the sessions of a project share a user, and not only those of a grant.
    per_project: bool = False
    proc: Path = PROC
    shared_memory: Path = SHARED_MEMORY
    _of_worker: dict[str, int] = field(default_factory=dict)
    _of_key: dict[str, int] = field(default_factory=dict)
    _next: int = 0
    _untried: int = 0
    _alive: set[int] = field(default_factory=set)

    def key_of(self, grant_id: str, project: str) -> str:
        """Whose user a session's worker becomes."""
        return f"project {project}" if self.per_project and project else f"grant {grant_id}"

    def join(self, worker_id: str, key: str) -> User | None:
        """The user that a worker is to become, the same for all of one `key`; None: who it is.

        Raises NoUserLeftError. What has joined leaves once its process has ended.
        """
        if not self.ids:
            return self.shared
        uid = self._of_key.get(key)
        if uid is None:
            uid = self._of_key[key] = self._free()
        self._of_worker[worker_id] = uid
        return User(uid, uid if self.gid is None else self.gid, own=True)

    def ranks_of_others(self, user: User | None, vgpus: int) -> int:
        """How many vGPUs a worker is told that its grant has, 0 if it is not.

        It is where other workers of the grant may be other users, so that NCCL does not look for
        the files of their ranks.
        """
        return vgpus if user and not self.per_project else 0

    def adopt(self, worker_id: str, key: str, uid: int) -> None:
        """A worker of an earlier server keeps its user, and so do those that join it."""
        self._of_worker[worker_id] = uid
        if uid in self.ids:
            self._of_key.setdefault(key, uid)

    def leave(self, worker_id: str) -> None:
        """The worker's process has ended, if it ever ran."""
        uid = self._of_worker.pop(worker_id, None)
        if uid is None or uid in self._of_worker.values():
            return
        self._of_key = {key: held for key, held in self._of_key.items() if held != uid}
        if uid in self.ids:
            self._clear(uid)

    def _free(self) -> int:
        held = set(self._of_worker.values())
        for _ in range(2 * len(self.ids) + 1):
            if self._untried == 0:
                # each id is given once between two looks at who lives
                self._alive = set(live_users(self.proc))
                self._untried = len(self.ids)
                if not self._next:
                    # so that ids come again as late as can be, also where servers are restarted
                    self._next = random.randrange(len(self.ids))
            uid = self.ids[self._next % len(self.ids)]
            self._next = self._next % len(self.ids) + 1
            self._untried -= 1
            if uid not in held and uid not in self._alive:
                self._clear(uid)
                return uid
        raise NoUserLeftError(
            f"all {len(self.ids)} user ids of [server] worker_uids ({self.ids[0]}-{self.ids[-1]}) "
            "belong to processes that live: name a larger range"
        )

    def _clear(self, uid: int) -> None:
        """Nobody else may remove what a worker left there, and nobody else shall find it."""
        try:
            folder = os.open(self.shared_memory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            with os.scandir(folder) as entries:
                left = [each.name for each in entries if _owner(folder, each.name) == uid]
            for name in left:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)


def worker_users(ids: range, account: str, *, per_project: bool = False) -> WorkerUsers:
    """The users that this server can give, as the configuration wants and its rights allow."""
    if os.geteuid() != 0:
        log.info(
            "not root: all workers run as uid %d, and the system call filter alone keeps one that "
            "was taken over from the others",
            os.geteuid(),
        )
        return WorkerUsers(range(0))
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        entry = None
    shared = User(entry.pw_uid, entry.pw_gid, own=False) if entry else None
    if ids and (why := unusable(ids)):
        log.warning(
            "[server] worker_uids = %d-%d: %s; all workers share one user, and the system call "
            "filter alone keeps one that was taken over from the others",
            *(ids[0], ids[-1], why),
        )
        ids = range(0)
    if not ids and shared is None:
        log.warning(
            "there is no account %s: workers run as root; create it with `useradd --system "
            "--no-create-home --shell /usr/sbin/nologin %s`, or set [server] worker_uids",
            account,
            account,
        )
    return WorkerUsers(ids, entry.pw_gid if entry else None, shared, per_project)


def unusable(ids: range, etc: Path = Path("/etc"), proc: Path = PROC) -> str | None:
    """Why nobody of this range can be a worker here; None where all can."""
    first, last = ids[0], ids[-1]
    for name, uid in _accounts(etc / "passwd"):
        if first <= uid <= last:
            return f"{uid} is the account {name}"
    for name, begin, count in _subordinates(etc / "subuid"):
        if begin <= last and first < begin + count:
            return f"{begin}-{begin + count - 1} are for {name}'s containers (/etc/subuid)"
    try:
        mapped = [[int(n) for n in line.split()] for line in _lines(proc / "self/uid_map")]
    except ValueError:
        return None
    if mapped and not any(inside <= first and last < inside + n for inside, _, n in mapped):
        return "the user namespace that this server runs in has no such ids"
    return None


def live_users(proc: Path = PROC) -> Iterator[int]:
    """The user ids of every process that this server sees: real, effective, saved."""
    for each in proc.iterdir():
        if each.name.isdecimal():
            # not the folder's owner: that is root, of a process that is not dumpable
            found = next((line for line in _lines(each / "status") if line.startswith("Uid:")), "")
            yield from (int(word) for word in found.split()[1:])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _accounts(path: Path) -> Iterator[tuple[str, int]]:
    for line in _lines(path):
        name, _, uid, *_ = (*line.split(":"), "", "", "")
        if uid.isdecimal():
            yield name, int(uid)


def _subordinates(path: Path) -> Iterator[tuple[str, int, int]]:
    for line in _lines(path):
        name, begin, count, *_ = (*line.split(":"), "", "", "")
        if begin.isdecimal() and count.isdecimal():
            yield name, int(begin), int(count)


def _owner(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
    except OSError:
        return None
