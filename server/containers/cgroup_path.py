# SPDX-License-Identifier: Apache-2.0
"""Which container a cgroup's path belongs to, as container engines name cgroups.

Called by containers.identity; without I/O. A process may make cgroups below its own where it was
given the right to (a privileged container, a rootless one, `--cgroupns` with a writable mount) and
call them what it likes, so what counts is the outermost name: that one the engine made. A path says
whose engine it was, too: what lies below a user's systemd is that user's word.
"""

from __future__ import annotations

import re

from sluice.resources.container import NO_CONTAINER, Container

_ID = "[0-9a-f]{64}"
#: Names that end in the container's id, with who writes them; `.scope` where systemd made them.
_NAMED = (
    (re.compile(rf"docker-({_ID})\.scope"), "docker"),
    (re.compile(rf"libpod-({_ID})(?:\.scope)?"), "podman"),
    (re.compile(rf"cri-containerd-({_ID})(?:\.scope)?"), "containerd"),
    (re.compile(rf"nerdctl-({_ID})\.scope"), "containerd"),
    (re.compile(rf"crio-({_ID})(?:\.scope)?"), "cri-o"),
    (re.compile(r"lxc\.payload\.([A-Za-z0-9_.-]{1,64})"), "lxc"),
)
_BARE = re.compile(_ID)
#: Of a bare id: by the folder that it lies in. containerd's are named after its namespaces.
_PARENTS = {
    "docker": "docker",
    "libpod_parent": "podman",
    "default": "containerd",
    "k8s.io": "containerd",
    "moby": "docker",
    "actions_job": "docker",
}
_POD = re.compile(
    r"(?:kubepods-(?:burstable-|besteffort-)?)?pod"
    r"([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?"
)
_KUBEPODS = re.compile(r"kubepods(\.slice)?")
_USER = re.compile(r"user@([0-9]{1,10})\.service")
_DELETED = " (deleted)"


def paths_of(text: str) -> dict[str, str]:
    """/proc/PID/cgroup as hierarchy → path; version 2's hierarchy is ""."""
    found = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdecimal() and path.startswith("/"):
            found[controllers] = path.removesuffix(_DELETED)
    return found


def container_at(path: str, base: str = "/") -> tuple[Container, str]:
    """The container that a path lies in, or NO_CONTAINER, and the path in which it was made.

    `base` is the reader's own path in that hierarchy: a container in which the reader runs itself
    is no container to it, but its host.
    """
    names = _names(path)
    own = _length_of_own(_names(base))
    if names[:own] != _names(base)[:own]:
        own = 0
    found, depth = _find(names[own:])
    return found, "/" + "/".join(names[: max(0, own + depth - 1)])


def _names(path: str) -> list[str]:
    # who reads from inside of a cgroup namespace sees what lies beside it as /../name
    return [name for name in path.split("/") if name and name != ".."]


def _length_of_own(names: list[str]) -> int:
    found, depth = _find(names)
    return depth if found else 0


def _find(names: list[str]) -> tuple[Container, int]:
    """The outermost container, and how many names lead to it."""
    owner, pod, in_pods = 0, "", False
    for at, name in enumerate(names):
        if match := _USER.fullmatch(name):
            owner = int(match[1])
        elif _KUBEPODS.fullmatch(name):
            in_pods = True
        elif in_pods and not pod and (match := _POD.fullmatch(name)):
            pod = match[1].replace("_", "-")
        elif found := _named(name, names[at - 1] if at else "", pod):
            return Container(found[0], found[1], pod, owner), at + 1
    return NO_CONTAINER, 0


def _named(name: str, parent: str, pod: str) -> tuple[str, str] | None:
    for pattern, engine in _NAMED:
        if match := pattern.fullmatch(name):
            return match[1], engine
    if _BARE.fullmatch(name):
        return name, "kubernetes" if pod else _PARENTS.get(parent, "container")
    return None
