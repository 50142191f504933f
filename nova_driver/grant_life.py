# SPDX-License-Identifier: Apache-2.0
"""What has to happen to an instance's grant, given what Nova says and what is held. Pure.

Called by grants.py for every hint and at every reconcile: the same steps come out whether a
notification told of a change or a later look found it, and none where all is well. Nova's own
books are followed: as long as Placement counts an instance's resources, its grant is held. What
cannot be understood takes nothing away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.nova_driver.compute.extra_specs import InvalidSpecs, VgpuSpecs, parse

#: On its way from one size to another: Placement counts both until somebody confirms or reverts.
_BETWEEN_SIZES = frozenset({"RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE"})
_GONE = frozenset({"DELETED"})
#: Says nothing of the instance: its cell or compute host cannot be asked.
_UNKNOWN = frozenset({"UNKNOWN"})
_UNSHELVING = frozenset({"unshelving", "spawning"})


@dataclass(frozen=True)
class Size:
    """What one grant holds: `count` vGPUs, MiB and percent of each."""

    count: int
    memory_mib: int
    compute: int

    def __str__(self) -> str:
        return f"{self.count} of {self.memory_mib} MiB and {self.compute} %"

    def at_least(self, other: Size) -> Size:
        """Room for either."""
        return Size(
            max(self.count, other.count),
            max(self.memory_mib, other.memory_mib),
            max(self.compute, other.compute),
        )


@dataclass(frozen=True)
class Instance:
    """A server as Nova has it now; `status` is the API's, `specs` its flavor's."""

    id: str
    project: str
    status: str
    task: str = ""
    host: str = ""
    specs: VgpuSpecs | None = None
    #: Why `specs` cannot be used.
    problem: str = ""
    flavor: str = ""

    @property
    def size(self) -> Size | None:
        """What is to be held for it once it is somewhere; None where nothing is."""
        if self.specs is None or not self.specs.is_reserved:
            return None
        return Size(self.specs.count, self.specs.memory_mib, self.specs.compute)


@dataclass(frozen=True)
class Held:
    """A reservation of the instance; `waiting` for room or holding it."""

    id: str
    owner: str
    project: str
    size: Size
    priority: int = 0
    waiting: bool = False
    generation: int = 0
    #: Where its vGPUs are.
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reserve:
    """Hold room for an instance, or let it wait for room."""

    owner: str
    project: str
    size: Size
    priority: int


@dataclass(frozen=True)
class Resize:
    """Change what is held."""

    held: Held
    size: Size


@dataclass(frozen=True)
class Release:
    """Give room back; `gone`: the instance is no more, and its access to the pool ends too."""

    held: Held
    reason: str
    gone: bool = False


Action = Reserve | Resize | Release


def instance_of(server: Mapping[str, Any]) -> Instance:
    """Reads Nova's API, with the flavor embedded."""
    flavor = server.get("flavor") or {}
    specs, problem = None, ""
    name = str(flavor.get("original_name", "?"))
    try:
        specs = parse(flavor.get("extra_specs") or {})
    except InvalidSpecs as error:
        problem = f"flavor {name}: {error}"
    return Instance(
        id=str(server["id"]).lower(),
        project=str(server.get("tenant_id") or ""),
        status=str(server.get("status") or "UNKNOWN").upper(),
        task=str(server.get("OS-EXT-STS:task_state") or ""),
        host=str(server.get("OS-EXT-SRV-ATTR:host") or ""),
        specs=specs,
        problem=problem,
        flavor=name,
    )


def steps(instance: Instance | None, held: Sequence[Held]) -> list[Action]:
    """What brings the reservations of one instance in line; None: Nova has no such server."""
    if instance is None or instance.status in _GONE:
        return [Release(each, "the instance was deleted", gone=True) for each in held]
    if instance.status in _UNKNOWN or instance.problem:
        return []
    kept, surplus = _one_of(held, instance)
    actions: list[Action] = [Release(each, "it is held twice") for each in surplus]
    if not instance.host:
        return actions + _without_host(instance, kept)
    wanted = instance.size
    if instance.status in _BETWEEN_SIZES and kept is not None:
        wanted = kept.size if wanted is None else kept.size.at_least(wanted)
    if wanted is None:
        return actions + _release(kept, "its flavor holds no vGPU any more")
    priority = instance.specs.priority if instance.specs else kept.priority if kept else 0
    if kept is not None and kept.waiting and kept.priority != priority:
        actions.append(Release(kept, "its flavor's priority is another now"))
        kept = None
    if kept is None:
        if instance.status == "ERROR":
            return actions  # it has nothing to run with; a reset or a rebuild brings it back
        actions.append(Reserve(instance.id, instance.project, wanted, priority))
    elif kept.size != wanted:
        actions.append(Resize(kept, wanted))
    return actions


def _one_of(held: Sequence[Held], instance: Instance) -> tuple[Held | None, list[Held]]:
    """The reservation to keep, and those too many: two adapters may have made one each."""
    if not held:
        return None, []
    wanted = instance.size
    kept = min(held, key=lambda each: (each.waiting, each.size != wanted, each.id))
    return kept, [each for each in held if each is not kept]


def _without_host(instance: Instance, kept: Held | None) -> list[Action]:
    """It is nowhere: not yet scheduled, never to be, or shelved and offloaded."""
    if instance.status == "BUILD" or instance.task in _UNSHELVING:
        return []  # on its way: what is held stays for the next attempt
    return _release(kept, f"the instance is on no host ({instance.status.lower()})")


def _release(kept: Held | None, reason: str) -> list[Action]:
    return [] if kept is None else [Release(kept, reason)]
