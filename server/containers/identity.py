# SPDX-License-Identifier: Apache-2.0
"""Which container a client's process is in, by what the kernel says of it.

Called by listeners.unix_socket for each connection. The process is held by its pidfd while /proc is
read, and seen to live afterwards, so that what was read is its own and not that of a process with
its number. Environment, host name and namespaces are the container's to change and are not asked:
the cgroup is (both versions), as the host sees it, and where no engine made one (rootless engines
without delegation, plain runc) the outermost pid namespace below the server's, which a process
cannot leave. A user to whom a part of the cgroups was given can name cgroups as engines do: such a
container is that user's, whatever its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from sluice.resources.container import NO_CONTAINER, Container
from sluice.server.containers.cgroup_path import container_at, paths_of
from sluice.server.listeners.peers import Peer, PeerGone

log = logging.getLogger("sluice.server")

#: ioctl_ns(2)
_NS_GET_USERNS = 0xB701
_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704
#: More than the 32 levels that the kernel lets pid namespaces have.
_MOST_LEVELS = 40


class ContainerUnclear(Exception):
    """The host's own answers about a process contradict each other; the text is for the client."""


class ContainerIdentities:
    """Finds containers; made once by a server, whose own cgroups and namespace it compares with."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """`proc` is where procfs is mounted."""
        self._proc = proc
        self._bases = paths_of((proc / "self/cgroup").read_text(errors="replace"))
        self._pid_namespace = (proc / "self/ns/pid").stat().st_ino
        self._user_namespace = (proc / "self/ns/user").stat().st_ino
        self._folders = cgroup_folders((proc / "self/mountinfo").read_text(errors="replace"))

    def of(self, peer: Peer) -> Container:
        """The peer's container, NO_CONTAINER for a process of the host itself.

        Raises PeerGone, and ContainerUnclear where its cgroups are of several containers. Takes
        about a tenth of a millisecond (`container_identity_ms` of tests/bench).
        """
        folder = self._proc / str(peer.pid)
        try:
            text = (folder / "cgroup").read_text(errors="replace")
            found = self.named(paths_of(text))
            try:
                found = found or self._by_namespace(folder)
            except PermissionError:
                _namespaces_are_closed()
        except OSError as error:
            raise PeerGone(f"process {peer.pid} is gone") from error
        # a process that has ended is in no cgroup any more, and its number may be another's
        if has_ended(peer.pidfd):
            raise PeerGone(f"process {peer.pid} is gone")
        return found

    def named(self, paths: Mapping[str, str]) -> Container:
        """The container that an engine's cgroups name, or NO_CONTAINER; raises ContainerUnclear."""
        found: dict[str, Container] = {}
        for hierarchy, path in paths.items():
            container, parent = container_at(path, self._bases.get(hierarchy, "/"))
            if not container:
                continue
            if not container.owner_uid:
                container = replace(container, owner_uid=self._given_to(hierarchy, parent))
            known = found.setdefault(container.id, container)
            if not known.owner_uid:
                found[container.id] = container
        if len(found) > 1:
            names = " and ".join(container.name for container in found.values())
            raise ContainerUnclear(
                f"the process is in cgroups of {names}: let one container engine place it in all "
                "cgroup hierarchies"
            )
        return next(iter(found.values()), NO_CONTAINER)

    def _given_to(self, hierarchy: str, parent: str) -> int:
        """The user who may make cgroups there, 0: root alone."""
        if folder := self._folders.get(hierarchy):
            with contextlib.suppress(OSError):
                return Path(folder + parent).stat().st_uid
        return 0

    def _by_namespace(self, folder: Path) -> Container:
        """By the outermost pid namespace that is not the server's own."""
        if (folder / "ns/pid").stat().st_ino == self._pid_namespace:
            return NO_CONTAINER
        at = os.open(folder / "ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for _ in range(_MOST_LEVELS):
                parent = _related(at, _NS_GET_PARENT)
                if parent is None:
                    break
                if os.fstat(parent).st_ino == self._pid_namespace:
                    os.close(parent)
                    break
                os.close(at)
                at = parent
            return Container(
                f"pid-{os.fstat(at).st_ino}", "namespace", owner_uid=self._owner_of(at)
            )
        finally:
            os.close(at)

    def _owner_of(self, namespace: int) -> int:
        """The host's user whose a namespace is: who made the outermost user namespace around it.

        Not around the process: that may have made user namespaces of its own, as any user of its
        container, whose numbers are users of the host, too.
        """
        at = _related(namespace, _NS_GET_USERNS)
        owner = 0
        for _ in range(_MOST_LEVELS):
            if at is None:
                break
            try:
                if os.fstat(at).st_ino == self._user_namespace:
                    break
                owner = struct.unpack("I", fcntl.ioctl(at, _NS_GET_OWNER_UID, bytes(4)))[0]
                parent = _related(at, _NS_GET_PARENT)
            finally:
                os.close(at)
            at = parent
        return owner


def _related(namespace: int, what: int) -> int | None:
    """A descriptor of a namespace by another, None where it is beyond what the server sees."""
    try:
        return fcntl.ioctl(namespace, what)
    except PermissionError:
        return None


@cache
def _namespaces_are_closed() -> None:
    log.warning(
        "processes' namespaces cannot be read (CAP_SYS_PTRACE is missing: write the unit anew, "
        "`sluice units`): containers are known by their cgroups only"
    )


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended, a zombie included."""
    waits = select.poll()
    waits.register(pidfd, select.POLLIN)
    return bool(waits.poll(0))


def cgroup_folders(mountinfo: str) -> dict[str, str]:
    """Where each cgroup hierarchy is mounted as a whole, by its name in /proc/PID/cgroup."""
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():
        mount, _, rest = line.partition(" - ")
        words, kinds = mount.split(), rest.split()
        if len(words) < 5 or len(kinds) < 3 or words[3] != "/":
            continue
        if kinds[0] == "cgroup2":
            found.setdefault("", words[4])
        elif kinds[0] == "cgroup":
            options = [word for word in kinds[2].split(",") if word not in ("rw", "ro", "xattr")]
            controllers = [word for word in options if "=" not in word or word.startswith("name=")]
            found.setdefault(",".join(controllers), words[4])
    return found
