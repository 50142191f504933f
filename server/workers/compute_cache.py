# SPDX-License-Identifier: Apache-2.0
"""What the driver has compiled for sessions, kept for the next session of the same tenant.

NVIDIA's driver keeps the machine code that it compiles of PTX in a folder (CUDA_CACHE_PATH), and a
process that has none compiles the same kernel again for each plan of cuDNN's: see
docs/decisions/0013. A worker writes to nothing that another session reads. It has a folder of its
own, which is filled with what the node keeps for its tenant before the worker's user gets it, and
which is taken back, looked through and removed when its process has ended. What is kept has a seal
in its name, over tenant, key and bytes: what does not bear it out is removed and given to nobody.
The driver itself finds files that are damaged by a checksum in them, and compiles again.

Used by sessions.opening (give), sessions.registry (take_back), workers.process (environment) and
workers.warm (forget).
It owns `folder`: `workers/ID` of workers, `tenants/HASH` of what is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from sluice.server.workers.kept_files import Holdings, copy, seal_of, store_sealed

log = logging.getLogger("sluice.server")

#: As the driver names an entry: two folders of a hexadecimal digit, and the rest of the key.
ENTRY = re.compile(r"[0-9a-f]/[0-9a-f]/[0-9a-f]{1,62}")
#: As it is kept: with its seal.
KEPT = re.compile(rf"({ENTRY.pattern})\.([0-9a-f]{{32}})")
DIGITS = "0123456789abcdef"
#: A session's own folder may grow to, as the driver keeps it: so much of the node's.
SHARE_OF_ONE = 4
MOST_ENTRIES = 8192
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ComputeCache:
    """The folder of one node."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Raises OSError."""
        self._workers, self._tenants = folder / "workers", folder / "tenants"
        self._limit = limit_bytes
        self._one_bytes = limit_bytes // SHARE_OF_ONE
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._tenants.mkdir(exist_ok=True)
        self._tenants.chmod(0o700)
        self._workers.mkdir(exist_ok=True)
        # workers pass through to their own folder, whose name they know
        for place in (folder, self._workers):
            place.chmod(0o711)
        for path in self._tenants.glob("*/?/?/*"):  # of a release before, or not stored whole
            if not KEPT.fullmatch(str(path.relative_to(path.parents[2]))):
                path.unlink(missing_ok=True)

    def environment(self, worker_id: str) -> dict[str, str]:
        """What makes the driver of a worker use its folder, which need not be there yet."""
        return {
            "CUDA_CACHE_PATH": str(self._workers / worker_id),
            "CUDA_CACHE_MAXSIZE": str(self._one_bytes),
        }

    async def give(self, worker_id: str, tenant: str, uid: int) -> None:
        """Makes the worker's folder with what is kept for a tenant; then it is that user's.

        Without room or rights for it the session compiles by itself.
        """
        try:
            await asyncio.to_thread(self._fill, self._workers / worker_id, tenant, uid)
        except OSError as error:
            log.warning("worker %s has no cache of compiled code: %s", worker_id, error)
            shutil.rmtree(self._workers / worker_id, ignore_errors=True)

    def take_back(self, worker_id: str, tenant: str) -> None:
        """A worker's process has ended: keeps what it has compiled, soon, and removes its folder.

        Its user, whose number may be given to others, has no way into it from now on.
        """
        place = self._workers / worker_id
        if not place.exists():
            return
        with contextlib.suppress(OSError):
            os.chown(place, os.geteuid(), os.getegid())
            place.chmod(0o700)
        task = asyncio.create_task(self._take(place, tenant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, worker_id: str) -> None:
        """A worker has ended, with or without a session: its folder goes if nothing is in it."""
        with contextlib.suppress(OSError):
            (self._workers / worker_id).rmdir()

    def remove_others(self, workers: Iterable[str]) -> None:
        """Removes the folders of all workers but these: they ended while no server ran."""
        known = set(workers)
        for place in self._workers.iterdir():
            if place.name not in known:
                shutil.rmtree(place, ignore_errors=True)

    async def settled(self) -> None:
        """Returns when everything taken back so far is kept or refused."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # within

    def _fill(self, place: Path, tenant: str, uid: int) -> None:
        # The driver of a worker that waits ready, and is who this is, has made it already.
        place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(f"{place} is somebody else's")
        own = self._folder_of(tenant)
        kept = Holdings.of({own: kept_in(own)}).files[own]
        room = self._one_bytes
        folders = {place}
        for _, size, path in kept:  # the newest first
            room -= size
            if room < 0:
                break
            target = place / name_of(own, path)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders |= {target.parent, target.parent.parent}
            # The driver passes over files that its user may not write to.
            if copy_whole(own, path, target):
                os.chown(target, uid, -1)
        for folder in sorted(folders, reverse=True):  # the worker's own last
            os.chown(folder, uid, -1)

    async def _take(self, place: Path, tenant: str) -> None:
        try:
            async with self._one_at_a_time:
                await asyncio.to_thread(self._keep_new, place, tenant)
        except OSError as error:
            log.warning("what a session has compiled cannot be kept: %s", error)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    def _keep_new(self, place: Path, tenant: str) -> None:
        """What is there and not kept yet; nothing in the folder is believed."""
        folder = self._folder_of(tenant)
        held = Holdings.of({owner: kept_in(owner) for owner in self._tenants.iterdir()})
        had = {name_of(folder, path) for _, _, path in held.files[folder]}
        taken = 0
        for name, descriptor, size in entries(place):
            with contextlib.ExitStack() as closing:
                closing.callback(os.close, descriptor)
                if name in had or taken + size > self._one_bytes:
                    continue
                taken += size
                held.make_room(size, self._limit)
                target = folder / name
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                seal = seal_of(f"{folder.name}/{name}")
                held.add(folder, size, store_sealed(descriptor, size, target, seal))

    def _folder_of(self, tenant: str) -> Path:
        folder = self._tenants / hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def kept_in(folder: Path) -> Iterator[Path]:
    """The entries that the node keeps for a tenant."""
    return (p for p in folder.glob("?/?/*") if KEPT.fullmatch(str(p.relative_to(folder))))


def name_of(folder: Path, kept: Path) -> str:
    """As the driver names an entry that the node keeps for a tenant."""
    return str(kept.relative_to(folder).with_suffix(""))


def copy_whole(folder: Path, kept: Path, target: Path) -> bool:
    """Whether a tenant's entry is there and as it was stored; else there is no copy of it."""
    seal = seal_of(f"{folder.name}/{name_of(folder, kept)}")
    try:
        with kept.open("rb") as file:
            copy(file.fileno(), os.fstat(file.fileno()).st_size, target, seal)
    except FileNotFoundError:  # it made room for others meanwhile
        return False
    if kept.suffix == f".{seal.hexdigest()}":
        return True
    log.warning("compiled code that is kept was damaged, and is removed: %s", kept)
    kept.unlink(missing_ok=True)
    target.unlink()
    return False


def entries(place: Path) -> Iterator[tuple[str, int, int]]:
    """The name, an open descriptor (the caller's) and the size of each entry of a worker's folder.

    The folder's owner may have put anything there: only plain files with one name, below plain
    folders, named as the driver names them, and no more than MOST_ENTRIES.
    """
    left = MOST_ENTRIES
    top = os.open(place, FOLDER)
    try:
        for first in DIGITS:
            for second in DIGITS:
                with contextlib.ExitStack() as closing:
                    inner = top
                    try:
                        for name in (first, second):
                            inner = os.open(name, FOLDER, dir_fd=inner)
                            closing.callback(os.close, inner)
                        with os.scandir(inner) as found_there:
                            names = [e.name for e in itertools.islice(found_there, max(left, 0))]
                    except OSError:
                        continue
                    for name in names:
                        left -= 1
                        found = _entry(inner, name)
                        if found and ENTRY.fullmatch(f"{first}/{second}/{name}"):
                            yield f"{first}/{second}/{name}", *found
                        elif found:
                            os.close(found[0])
    finally:
        os.close(top)


def _entry(folder: int, name: str) -> tuple[int, int] | None:
    """An open descriptor and the size of a plain file that has no other name; else None."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size > 0:
        return descriptor, status.st_size
    os.close(descriptor)
    return None
