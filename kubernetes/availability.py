# SPDX-License-Identifier: Apache-2.0
"""The room of what the pool has reserved for a cluster: what is free where. Pure.

Kept by pool_follower.py, asked by the scheduler extender and the device plugin. It is a copy of the
controller's books and decides nothing alone: a place that is chosen here counts once the controller
has kept the part. It promises that asking for one node costs the same however large the pool is,
and that a change costs what has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.kubernetes.naming import CONTAINER_PREFIX
from sluice.kubernetes.pod_requests import ContainerWant, PodWant
from sluice.kubernetes.slices import is_for, is_usable


@dataclass(frozen=True, slots=True)
class Place:
    """A vGPU of a part, on a GPU of a reservation."""

    gpu: str  # node:uuid
    memory_mib: int
    compute_percent: int

    def as_json(self) -> dict[str, Any]:
        """As the pool's REST takes it."""
        return {
            "gpu": self.gpu,
            "memory_mib": self.memory_mib,
            "compute_percent": self.compute_percent,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """What one container has, or is to have."""

    label: str
    reservation: str
    places: tuple[Place, ...]
    id: str = field(default="", compare=False)  # its own, as a reservation


@dataclass(slots=True)
class Share:
    """What a reservation has free on one GPU; `vgpus`: how many more parts' vGPUs it can hold."""

    reservation: str
    gpu: str
    default_mib: int
    default_percent: int
    memory_mib: int = 0
    compute_percent: int = 0
    vgpus: int = 0
    total: int = 0
    is_usable: bool = True

    @property
    def node(self) -> str:
        """The pool's node."""
        return self.gpu.partition(":")[0]

    def place(self, want: ContainerWant) -> Place:
        """One vGPU as it is wanted, here."""
        return Place(
            self.gpu,
            want.memory_mib or self.default_mib,
            want.compute_percent or self.default_percent,
        )

    def book(self, place: Place, sign: int) -> None:
        """Takes a place, or gives it back (-1)."""
        self.memory_mib -= sign * place.memory_mib
        self.compute_percent -= sign * place.compute_percent
        self.vgpus -= sign


@dataclass(slots=True)
class Availability:
    """Every share, and every part of them; `reach_all`: a node of the cluster uses every GPU."""

    label: str
    reach_all: bool = False
    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)  # by label
    wholes: frozenset[str] = frozenset()  # the cluster's reservations
    _by_node: dict[str, list[Share]] = field(default_factory=dict)

    # what the pool says

    def take_all(
        self, reservations: Iterable[Mapping[str, Any]], gpus: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """The books as the controller has them now."""
        listed = list(reservations)
        self.shares, self.parts = {}, {}
        self.wholes = frozenset(each["id"] for each in listed if is_for(each, self.label))
        for each in listed:
            if each["id"] in self.wholes:
                self._add_whole(each, gpus)
        self._by_node = _by_node(self.shares.values())
        for each in listed:
            if each["within"] in self.wholes and each["state"] == "held":
                self.take_part(part_of(each))

    def take_part(self, part: Part) -> None:
        """A part that there is, or is about to be; the same one again books nothing."""
        if self.parts.get(part.label) == part:
            self.parts[part.label] = part
            return
        self.drop_part(part.label)
        self.parts[part.label] = part
        self._book(part, 1)

    def drop_part(self, label: str) -> None:
        """A part that is over."""
        part = self.parts.pop(label, None)
        if part is not None:
            self._book(part, -1)

    # what is asked of it

    def fits(self, node: str, pod: PodWant) -> list[Part] | str:
        """The parts of a pod on a node of the cluster, or why there is no room.

        What the pod has already counts as free for it, and is kept where it still fits.
        """
        shares = self._reached(node)
        if not shares:
            return "the pool has nothing reserved here"
        wanted = pod.labels()
        has = [self.parts[label] for label in wanted if label in self.parts]
        if len(has) == len(wanted) and self._is_as_wanted(has, wanted, shares):
            return has
        if not has and len(wanted) == 1:  # nearly always
            [(label, want)] = wanted.items()
            return _chosen(label, want, shares)
        tried = [replace(share) for share in shares]
        by_key = {(share.reservation, share.gpu): share for share in tried}
        for part in has:
            _book_within(by_key, part, -1)
        found: list[Part] = []
        for label, want in wanted.items():
            chosen = _chosen(label, want, tried)
            if isinstance(chosen, str):
                return chosen
            found += chosen
            _book_within(by_key, chosen[0], 1)
        return found

    def rooms(self, nodes: Iterable[str], pod: PodWant) -> tuple[list[str], dict[str, str]]:
        """Which nodes of the cluster have room for a pod, and why the others have none.

        As `fits` says it of each; asked of every node of a cluster for every pod.
        """
        if self.reach_all:  # each node has the same
            named = list(nodes)
            if isinstance(found := self.fits("", pod), str):
                return [], dict.fromkeys(named, found)
            return named, {}
        fitting: list[str] = []
        failed: dict[str, str] = {}
        only = _only(pod, self.parts)
        said: dict[tuple[int, int, int, int, int], str] = {}
        for node in nodes:
            shares = self._by_node.get(node)
            has_room = None if only is None or not shares else _at_a_glance(only, shares)
            if has_room:
                fitting.append(node)
            elif has_room is False and only is not None and shares:
                failed[node] = _why(only, _nearest(shares), said)
            elif isinstance(found := self.fits(node, pod), str):
                failed[node] = found
            else:
                fitting.append(node)
        return fitting, failed

    def fullness(self, node: str) -> float:
        """How much of a node's vGPUs is taken, 0 to 1: the fullest is filled first."""
        shares = self._reached(node)
        total = sum(share.total for share in shares)
        free = sum(max(0, share.vgpus) for share in shares)
        return (total - free) / total if total else 0.0

    def total(self, node: str) -> tuple[int, int]:
        """How many vGPUs are reserved for a node of the cluster, and how many can be used."""
        shares = self._reached(node)
        usable = sum(share.total for share in shares if share.is_usable)
        return sum(share.total for share in shares), usable

    def container_parts(self) -> list[str]:
        """The labels of containers' parts."""
        return [label for label in self.parts if label.startswith(CONTAINER_PREFIX)]

    # within

    def _add_whole(
        self, reservation: Mapping[str, Any], gpus: Mapping[str, Mapping[str, Any]]
    ) -> None:
        for slot in reservation["slots"]:
            key = (reservation["id"], slot["gpu"])
            share = self.shares.get(key)
            if share is None:
                gpu = gpus.get(slot["gpu"])
                sizes = (slot["memory_mib"], slot["compute_percent"])
                share = self.shares[key] = Share(*key, *sizes)
                share.is_usable = gpu is not None and is_usable(gpu)
            share.memory_mib += slot["memory_mib"]
            share.compute_percent += slot["compute_percent"]
            share.vgpus += 1
            share.total += 1

    def _reached(self, node: str) -> Sequence[Share]:
        return self._by_node.get("" if self.reach_all else node, ())

    def _book(self, part: Part, sign: int) -> None:
        _book_within(self.shares, part, sign)

    def _is_as_wanted(
        self, has: Sequence[Part], wanted: Mapping[str, ContainerWant], shares: Sequence[Share]
    ) -> bool:
        by_key = {(share.reservation, share.gpu): share for share in shares}
        for part in has:
            want = wanted[part.label]
            for place in part.places:
                share = by_key.get((part.reservation, place.gpu))
                if share is None or share.place(want) != place:
                    return False
            if len(part.places) != want.count:
                return False
        return True


def _only(pod: PodWant, parts: Mapping[str, Part]) -> ContainerWant | None:
    """What a pod asks for, where one container asks and has nothing yet, as nearly always."""
    if len(pod.containers) != 1 or any(label in parts for label in pod.labels()):
        return None
    return pod.containers[0]


def _at_a_glance(want: ContainerWant, shares: Iterable[Share]) -> bool | None:
    """Whether one GPU has room for all, or all together have none; None: look closer."""
    together = 0
    for share in shares:
        if share.vgpus > 0 and share.is_usable:
            memory = want.memory_mib or share.default_mib
            compute = want.compute_percent or share.default_percent
            times = min(share.vgpus, share.memory_mib // memory, share.compute_percent // compute)
            if times >= want.count:
                return True
            together += max(0, times)
    return False if together < want.count else None


def _nearest(shares: Iterable[Share]) -> Share | None:
    """Of which it is said what is free."""
    usable = [share for share in shares if share.is_usable]
    return max(usable, key=lambda share: share.memory_mib, default=None)


def part_of(reservation: Mapping[str, Any]) -> Part:
    """A part as the pool's REST shows it."""
    places = tuple(
        Place(slot["gpu"], slot["memory_mib"], slot["compute_percent"])
        for slot in reservation["slots"]
    )
    return Part(reservation["owner"], reservation["within"], places, reservation["id"])


def _book_within(shares: Mapping[tuple[str, str], Share], part: Part, sign: int) -> None:
    for place in part.places:
        share = shares.get((part.reservation, place.gpu))
        if share is not None:  # a part can outlive what it was of
            share.book(place, sign)


def _by_node(shares: Iterable[Share]) -> dict[str, list[Share]]:
    found: dict[str, list[Share]] = defaultdict(list)
    for share in sorted(shares, key=lambda each: (each.gpu, each.reservation)):
        found[share.node].append(share)
        found[""].append(share)  # for nodes that reach every GPU
    return dict(found)


def _chosen(label: str, want: ContainerWant, shares: Sequence[Share]) -> list[Part] | str:
    """A container's part: the vGPUs of one are of one reservation and one node of the pool.

    As the pool's own bin-packing does: on the fullest GPUs that have room.
    """
    best: tuple[tuple[int, int, str], Part] | None = None
    groups: dict[tuple[str, str], list[Share]] = defaultdict(list)
    for share in shares:
        if share.is_usable and share.vgpus > 0:
            groups[share.reservation, share.node].append(share)
    for (reservation, _), group in groups.items():
        found = _packed(want, group)
        if found is not None:
            places, left = found
            score = (*left, group[0].gpu)
            if best is None or score < best[0]:
                best = (score, Part(label, reservation, places))
    return [best[1]] if best else _why(want, _nearest(shares), {})


def _packed(
    want: ContainerWant, group: Sequence[Share]
) -> tuple[tuple[Place, ...], tuple[int, int]] | None:
    """Places for all its vGPUs, and what their GPUs have left; on GPUs of their own if possible."""
    fitting = []
    for share in group:
        place = share.place(want)
        memory, compute = place.memory_mib, place.compute_percent
        times = min(share.vgpus, share.memory_mib // memory, share.compute_percent // compute)
        if times > 0:
            fitting.append((share.memory_mib, share.compute_percent, share.gpu, place, times))
    fitting.sort(key=lambda each: each[:3])
    alike: dict[tuple[int, int], list[tuple[int, int, str, Place, int]]] = defaultdict(list)
    for each in fitting:  # the vGPUs of one program are alike
        alike[each[3].memory_mib, each[3].compute_percent].append(each)
    for of_size in alike.values():
        if sum(each[4] for each in of_size) < want.count:
            continue
        places: list[Place] = []
        for turn in range(max(each[4] for each in of_size)):
            places += [each[3] for each in of_size if each[4] > turn]
            if len(places) >= want.count:
                break
        return tuple(places[: want.count]), (of_size[0][0], of_size[0][1])
    return None


def _why(
    want: ContainerWant,
    nearest: Share | None,
    said: dict[tuple[int, int, int, int, int], str],
) -> str:
    """In words; `said`: what was said of others for the same want."""
    if nearest is None:
        return "no GPU of what the pool has reserved here can be used now"
    place = nearest.place(want)
    memory, compute, vgpus = nearest.memory_mib, nearest.compute_percent, nearest.vgpus
    key = (place.memory_mib, place.compute_percent, memory, compute, vgpus)
    if key not in said:
        asked = f"{want.count} vGPU(s) of {place.memory_mib} MiB and {place.compute_percent} %"
        said[key] = (
            f"container {want.name} wants {asked}; of what the pool has reserved here at most "
            f"{max(0, memory)} MiB, {max(0, compute)} % and {max(0, vgpus)} vGPU(s) of a GPU are "
            "free"
        )
    return said[key]
