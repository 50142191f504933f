# SPDX-License-Identifier: Apache-2.0
"""A cgroup for each worker: a limit on its host memory and threads.

Called by workers.process where systemd does not run (a scope does the same there). It owns
the folders named `sluice` in the hierarchy, of version 2 or 1, whichever is writable; where none
is, it says so once and sessions run without limits. Of version 1 a worker leaves the server's
groups in every hierarchy: where the server is in a container, whoever ends that by one of them
would end its workers, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("sluice.server")

ROOT = Path("/sys/fs/cgroup")
GROUP = "sluice"
LIMITED = ("memory", "pids")


class SessionCgroups:
    """Makes, fills and removes one cgroup per worker."""

    def __init__(self, pids: int, root: Path = ROOT) -> None:
        self._pids = pids
        self._parents: dict[str, Path] = {}  # what it limits → parent folder
        self._apart: list[Path] = []  # groups of version 1 that limit nothing
        self._version = 2 if (root / "cgroup.controllers").exists() else 1
        try:
            self._prepare(root)
        except OSError as error:
            self._parents = {}
            log.warning(
                "no writable cgroup below %s (%s): sessions run without memory and thread limits; "
                "run the server as root or delegate a cgroup to it",
                root,
                error.strerror,
            )

    def add(self, worker_id: str, pid: int, memory_mib: int) -> None:
        """Puts a process and its threads into a cgroup of their own (0 MiB: without a limit)."""
        limits = {"memory": memory_mib << 20, "pids": self._pids}
        for kind, parent in self._parents.items():
            group = parent / worker_id
            try:
                group.mkdir(exist_ok=True)
                for name in ("memory", "pids") if kind == "unified" else (kind,):
                    self._limit(group, name, limits[name])
                (group / "cgroup.procs").write_text(f"{pid}\n")
            except OSError as error:
                log.warning("worker %s runs without its %s limit: %s", worker_id, kind, error)

        for group in self._apart:
            try:
                (group / "cgroup.procs").write_text(f"{pid}\n")
            except OSError as error:
                log.warning("worker %s stays in the server's own %s: %s", worker_id, group, error)

    def ran_out_of_memory(self, worker_id: str) -> bool:
        """Whether the kernel has ended a process there for its limit on memory."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        for parent in self._parents.values():
            with contextlib.suppress(OSError):
                for line in (parent / worker_id / name).read_text().splitlines():
                    key, _, count = line.partition(" ")
                    if key == "oom_kill":
                        return count != "0"
        return False

    def remove(self, worker_id: str) -> None:
        """Removes a cgroup whose processes have ended."""
        for parent in self._parents.values():
            with contextlib.suppress(OSError):
                (parent / worker_id).rmdir()

    def leftovers(self) -> Iterator[str]:
        """Yields the worker ids that have a cgroup."""
        for parent in self._parents.values():
            for group in parent.iterdir():
                if group.is_dir():
                    yield group.name

    def _prepare(self, root: Path) -> None:
        if self._version == 2:
            parent = root / GROUP
            parent.mkdir(exist_ok=True)
            for folder in (root, parent):
                (folder / "cgroup.subtree_control").write_text("+memory +pids")
            self._parents["unified"] = parent
            return
        for kind in LIMITED:
            parent = root / kind / GROUP
            parent.mkdir(exist_ok=True)
            self._parents[kind] = parent
        others = (folder for folder in root.iterdir() if folder.name not in LIMITED)
        for folder in sorted({folder.resolve() for folder in others}):
            with contextlib.suppress(OSError):  # a hierarchy of somebody else's
                self._apart.append(self._beside(folder))

    def _beside(self, folder: Path) -> Path:
        """A group that limits nothing, of one hierarchy of version 1."""
        if not (folder / "cgroup.procs").exists():
            raise FileNotFoundError(folder)
        group = folder / GROUP
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (folder / name).exists() and not (group / name).read_text().strip():
                (group / name).write_text((folder / name).read_text())
        return group

    def _limit(self, group: Path, name: str, value: int) -> None:
        if value == 0:
            return
        v1 = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
        v2 = {"memory": "memory.max", "pids": "pids.max"}
        (group / (v2 if self._version == 2 else v1)[name]).write_text(f"{value}\n")
