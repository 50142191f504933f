# SPDX-License-Identifier: Apache-2.0
"""Code images that network clients have uploaded, so that they travel once per node and project.

Used by sessions.lifecycle. It owns the folder: one folder per project, and `shared`, which the
operator fills; a file's name is the BLAKE2b hash (32 bytes, hex) of its content. Only this module
writes there, under the hash that it computed of the bytes that it received; workers read their
project's folder by a descriptor and hash again what they read. The least recently used image of the
project that holds most goes first when there is no more room.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
from pathlib import Path

from sluice.config.peer_lines import SERVER as PEERS
from sluice.server.sessions.records import Requester
from sluice.server.workers.kept_files import PIECE_BYTES, Holdings, store

SHARED = "shared"
NAME = re.compile(r"[0-9a-f]{64}")
# the worker seals what it hands over; without these it could change it while it is read
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MAX_WAITING = 64


def project_of(requester: Requester) -> str:
    """Whose images a session sees: by what the host knows of it, never by what it says.

    Until there are projects: the domain, the user of this host, or the network peer's address.
    """
    if requester.domain_uuid:
        name = f"domain-{requester.domain_uuid}"
    elif requester.channel == "shm":
        name = f"uid-{requester.uid}"
    else:
        name = f"net-{requester.host}"
    return re.sub(r"[^A-Za-z0-9.:-]", "_", name)


class CodeCache:
    """The folder of one node."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        # others pass through here by descriptor only
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._project_folder(SHARED)
        for scratch in folder.glob("*/*.new"):
            scratch.unlink(missing_ok=True)

    def open_folders(self, project: str) -> list[tuple[str, int]]:
        """Descriptors of what a project's session may read; the caller closes them."""
        descriptors: list[tuple[str, int]] = []
        for name, of in (("code", project), ("shared_code", SHARED)):
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                descriptors.append((name, os.open(self._project_folder(of), flags)))
        return descriptors

    def keep(self, project: str, descriptor: int) -> None:
        """Stores an image that a worker received, some time soon; owns the descriptor from now."""
        if len(self._tasks) >= MAX_WAITING:
            os.close(descriptor)
            return
        task = asyncio.create_task(self._keep(project, descriptor))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def used(self, project: str, name: str) -> None:
        """Notes that an image was of use."""
        if NAME.fullmatch(name):
            with contextlib.suppress(OSError):
                os.utime(self._folder / project / name)

    def damaged(self, project: str, name: str) -> None:
        """Removes an image that a worker found to be something else."""
        if NAME.fullmatch(name):
            text = "the code image %s of %s was damaged and is removed"
            PEERS.warning("code: damaged", project, text, name, project)
            (self._folder / project / name).unlink(missing_ok=True)

    async def settled(self) -> None:
        """Returns when everything handed to keep() so far is stored or refused."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, project: str, descriptor: int) -> None:
        try:
            async with self._one_at_a_time:
                await asyncio.to_thread(self._store, project, descriptor)
        except OSError as error:
            text = "a code image of %s cannot be kept: %s"
            PEERS.warning("code: not kept", project, text, project, error)
        finally:
            os.close(descriptor)

    def _store(self, project: str, descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise OSError("it is not sealed")
        size = os.fstat(descriptor).st_size
        if not 0 < size <= self._limit:
            return
        digest = hashlib.blake2b(digest_size=32)
        for offset in range(0, size, PIECE_BYTES):
            digest.update(os.pread(descriptor, PIECE_BYTES, offset))
        name = digest.hexdigest()
        path = self._project_folder(project) / name
        if path.exists():
            os.utime(path)
            return
        owners = {
            folder: folder.iterdir()
            for folder in self._folder.iterdir()
            if folder.name != SHARED and folder.is_dir()
        }  # shared ones do not count
        Holdings.of(owners).make_room(size, self._limit)
        store(descriptor, size, path)

    def _project_folder(self, project: str) -> Path:
        folder = self._folder / project
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        return folder
