# SPDX-License-Identifier: Apache-2.0
"""The room that the extender sees is the controller's, and what it is told may be anything."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import GpuKey, OwnerKind, Reservation
from sluice.controller.pool.reservations.parts import Place as PartPlace
from sluice.kubernetes.availability import Availability, Part, Place
from sluice.kubernetes.cluster import Cluster
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.device_plugin import Devices, listed
from sluice.kubernetes.extender import Extender
from sluice.kubernetes.pod_requests import ContainerWant, PodWant
from sluice.kubernetes.pool_follower import PoolFollower
from sluice.pool_client.access import Access, Credentials
from sluice.pool_client.async_client import AsyncPoolClient

LABEL = "kubernetes"
GPU, OTHER = "n1:GPU-1", "n2:GPU-2"


def whole(number: int, *slots: tuple[str, int, int], **more: Any) -> dict[str, Any]:
    return {
        "id": f"{number:016x}",
        "owner_kind": "label",
        "owner": LABEL,
        "state": "held",
        "within": "",
        "slots": [
            {"gpu": gpu, "memory_mib": memory, "compute_percent": percent}
            for gpu, memory, percent in slots
        ],
        **more,
    }


def room(*wholes: dict[str, Any], reach_all: bool = False, **gpus: str) -> Availability:
    found = Availability(LABEL, reach_all)
    well = {"state": "up", "mode": "pooled", "health": "ok"}
    found.take_all(wholes, {GPU: well, OTHER: {**well, **gpus}})
    return found


def want(*containers: tuple[str, int, int | None, int | None], uid: str = "u") -> PodWant:
    return PodWant(uid, "red", "p", tuple(ContainerWant(*each) for each in containers))


def places(found: list[Part] | str) -> list[Place]:
    assert not isinstance(found, str), found
    return [place for part in found for place in part.places]


LONG = "x" * 253
FOUR = [(GPU, 1000, 25)] * 4


def test_sizes_that_are_not_named_are_the_reservations() -> None:
    found = room(whole(1, *FOUR)).fits("n1", want(("c", 1, None, 5)))
    assert places(found) == [Place(GPU, 1000, 5)]


def test_there_are_no_more_parts_than_vgpus() -> None:
    books = room(whole(1, *FOUR))
    for number in range(4):
        for part in books.fits("n1", want(("c", 1, 1, 1), uid=str(number))):
            assert isinstance(part, Part)
            books.take_part(part)
    assert "0 vGPU(s)" in str(books.fits("n1", want(("c", 1, 1, 1))))


def test_other_nodes_have_nothing_unless_every_gpu_is_reached() -> None:
    assert room(whole(1, *FOUR)).fits("n2", want(("c", 1, 1, 1))) == (
        "the pool has nothing reserved here"
    )
    everywhere = room(whole(1, *FOUR), reach_all=True)
    assert places(everywhere.fits("", want(("c", 1, 1, 1))))[0].gpu == GPU
    assert everywhere.rooms(["n2", "n9"], want(("c", 1, 1, 1)))[0] == ["n2", "n9"]


def test_a_faulty_gpu_has_no_room_and_its_devices_are_unhealthy() -> None:
    books = room(whole(1, *FOUR, (OTHER, 9000, 25)), reach_all=True, health="fault")
    assert "at most 4000 MiB" in str(books.fits("", want(("c", 1, 5000, 1))))
    assert books.total("") == (5, 4)
    assert listed(Devices(5, 1), {"vgpu-4"}) == [
        ("vgpu-0", True),
        ("vgpu-1", True),
        ("vgpu-2", True),
        ("vgpu-3", False),  # the last one that nobody has
        ("vgpu-4", True),
    ]


def test_what_a_pod_has_is_what_it_gets_again() -> None:
    books = room(whole(1, *FOUR))
    pod = want(("a", 1, 3000, 25), ("b", 1, 1000, 75))
    first = books.fits("n1", pod)
    assert not isinstance(first, str)
    for part in first:
        books.take_part(part)
    assert books.fits("n1", pod) == first  # though nothing is free
    assert "at most 0 MiB" in str(books.fits("n1", want(("c", 1, 1, 1), uid="other")))


def test_the_vgpus_of_a_container_are_of_one_node() -> None:
    books = room(whole(1, (GPU, 1000, 50), (OTHER, 1000, 50)), reach_all=True)
    assert isinstance(books.fits("", want(("c", 2, 1000, 50))), str)
    assert len(places(books.fits("", want(("a", 1, 1000, 50), ("b", 1, 1000, 50))))) == 2


@pytest.mark.parametrize("overhead_mib", [0, 500])
def test_the_controller_keeps_what_has_room_and_refuses_what_has_none(overhead_mib: int) -> None:
    """The two books agree over hundreds of pods that come and go.

    What the reservation holds for contexts is never a part's memory here; the controller, which
    counts both together, would give it.
    """
    bench = PoolBench()
    bench.node("n1", 24_000, context_overhead_mib=overhead_mib)
    held = bench.reserve(
        "0" * 16,
        owner_kind=OwnerKind.LABEL,
        owner=LABEL,
        project=LABEL,
        count=4,
        memory_mib=1000,
        compute_percent=25,
    )
    [gpu] = {str(slot.key) for slot in held.slots}
    books = Availability(LABEL)
    slots = [(gpu, slot.memory_mib, slot.compute_percent) for slot in held.slots]
    well = {"state": "up", "mode": "pooled", "health": "ok"}
    books.take_all([whole(0, *slots)], {gpu: well})
    dice, answers = random.Random(5), set()
    kept: list[Part] = []
    for number in range(400):
        pod = want(("c", 1, dice.choice((100, 900, 2100)), dice.choice((5, 30))), uid=str(number))
        found = books.fits("n1", pod)
        answers.add(isinstance(found, str))
        [only] = pod.containers
        share = books.shares[held.id, gpu]
        asked = found[0] if not isinstance(found, str) else Part("x", held.id, (share.place(only),))
        part = Reservation(
            f"{number + 1:016x}",
            OwnerKind.LABEL,
            asked.label,
            LABEL,
            *(1, 0, 0, 0, ""),
            bench.clock.wall(),
            within=held.id,
        )
        wanted = [
            PartPlace(GpuKey(*place.gpu.split(":")), place.memory_mib, place.compute_percent)
            for place in asked.places
        ]
        if isinstance(found, str):
            if share.vgpus > 0 and not overhead_mib:
                with pytest.raises(Impossible):
                    bench.pool.parts.keep(part, wanted)
        else:
            bench.pool.parts.keep(part, wanted)
            books.take_part(asked)
            kept.append(asked)
        if kept and dice.random() < 0.45:
            gone = kept.pop(dice.randrange(len(kept)))
            named = bench.pool.parts.anywhere(gone.label)
            assert named is not None
            bench.pool.parts.give_back(named.id, "over")
            books.drop_part(gone.label)
    assert answers == {True, False}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2500), st.integers(1, 60)), max_size=12)
)
def test_what_is_booked_never_exceeds_what_is_reserved(wants: list[tuple[int, int, int]]) -> None:
    books = room(whole(1, *FOUR, (OTHER, 3000, 80)), reach_all=True)
    start = {key: (s.memory_mib, s.compute_percent, s.vgpus) for key, s in books.shares.items()}
    labels: list[str] = []
    for number, (count, memory, percent) in enumerate(wants):
        found = books.fits("", want(("c", count, memory, percent), uid=str(number)))
        quick = books.rooms(["x"], want(("c", count, memory, percent), uid=str(number)))[0]
        assert bool(quick) != isinstance(found, str)
        if not isinstance(found, str):
            for part in found:
                books.take_part(part)
                labels.append(part.label)
        for share in books.shares.values():
            assert min(share.memory_mib, share.compute_percent, share.vgpus) >= 0
    for label in labels:
        books.drop_part(label)
        books.drop_part(label)  # twice is as good
    assert start == {
        key: (s.memory_mib, s.compute_percent, s.vgpus) for key, s in books.shares.items()
    }


def test_the_quick_look_says_what_the_long_one_says() -> None:
    dice = random.Random(3)
    books = room(whole(1, *FOUR), whole(2, (OTHER, 2000, 50), (OTHER, 2000, 50)))
    seen = set()
    for number in range(300):
        pod = want(("c", dice.choice((1, 2)), dice.choice((300, 1500)), 10), uid=str(number))
        fitting, failed = books.rooms(["n1", "n2", "n3"], pod)
        for node in ("n1", "n2", "n3"):
            found = books.fits(node, pod)
            assert (node in failed) == isinstance(found, str)
            seen.add((node, isinstance(found, str)))
        if fitting:
            for part in books.fits(dice.choice(fitting), pod):
                assert isinstance(part, Part)
                books.take_part(part)
        else:
            for label in list(books.parts)[::2]:
                books.drop_part(label)
    assert len(seen) == 5  # both were seen of each node that has something


@pytest.fixture
def extender() -> Extender:
    """One that knows its room, and asks nobody."""
    pool = AsyncPoolClient(Access.of("127.0.0.1:9", Credentials()), trust_env=False)
    pool_follower = PoolFollower(ClusterSection(), pool, pool)
    pool_follower.availability = room(whole(1, *FOUR))
    pool_follower.is_known = True
    made = Extender(ClusterSection(), Cluster.__new__(Cluster), pool_follower)
    for name in ("n1", "n2", LONG):
        made.devices.take_node(node(name, "4"))
    return made


def node(name: str, vgpus: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"sluice.io/vgpu": vgpus}}}


def pod_object(name: str = "p", **limits: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": "u", "namespace": "red", "name": name},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


def test_a_filter_says_why_a_node_has_no_room(extender: Extender) -> None:
    asked = {"Pod": pod_object(**{"sluice.io/vgpu": "1", "sluice.io/vgpu-compute": "101"})}
    answer = extender.filter({**asked, "NodeNames": ["n1"]})
    assert "sluice.io/vgpu-compute]=101: give a whole number, 0 to 100" in answer["Error"]
    asked = {"Pod": pod_object(**{"sluice.io/vgpu": "1", "sluice.io/vgpu-memory-mib": "5000"})}
    answer = extender.filter({**asked, "NodeNames": ["n1", "n2"]})
    assert answer["NodeNames"] == []
    failed = answer["FailedAndUnresolvableNodes"]  # so that nobody is evicted for it
    assert "at most 4000 MiB, 100 percent and 4 vGPU(s)" in failed["n1"]
    assert failed["n2"] == "sluice: the pool has nothing reserved here"
    assert list(extender.waiting) == ["u"]
    assert "%" not in json.dumps(answer)  # the scheduler's events take it for a format


def test_a_node_whose_devices_are_taken_or_missing_is_passed_over(extender: Extender) -> None:
    asked = {"Pod": pod_object(**{"sluice.io/vgpu": "2"}), "NodeNames": ["n1", "n3"]}
    for number in range(2):
        extender.devices.take_pod(want(("c", 1, 1, 1), uid=str(number)), "n1")
    answer = extender.filter(asked)
    assert answer["NodeNames"] == ["n1"]
    missing = "the kubelet has no sluice.io/vgpu"
    assert missing in answer["FailedAndUnresolvableNodes"]["n3"]
    extender.devices.take_pod(want(("c", 1, 1, 1), uid="2"), "n1")
    taken = "2 sluice.io/vgpu are wanted; the kubelet has 4, and pods there have 3"
    assert taken in extender.filter(asked)["FailedAndUnresolvableNodes"]["n1"]
    extender.devices.keep_pods(["0", "1"])
    assert extender.filter(asked)["NodeNames"] == ["n1"]
    for wrong in ("-1", "1e999999999", None, ["4"]):
        assert not extender.devices.take_node(node("n1", wrong))
        assert missing in extender.filter(asked)["FailedAndUnresolvableNodes"]["n1"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "NodeNames is missing"),
        ({"NodeNames": "n1"}, "NodeNames is no list"),
        ({"NodeNames": ["x" * 254]}, "no name of 1 to 253"),
        ({"NodeNames": [7]}, "no name of 1 to 253"),
        ({"NodeNames": ["n"] * 20_000}, "at most 15000"),
        ({"NodeNames": ["n1"]}, "Pod is missing"),
        ({"NodeNames": ["n1"], "Pod": []}, "Pod is missing"),
        ({"NodeNames": ["n1"], "Pod": {"metadata": {}}}, "metadata.uid is missing"),
        (
            {"NodeNames": ["n1"], "Pod": pod_object("x" * 254)},
            "metadata.name is missing, or no text",
        ),
    ],
)
def test_what_the_scheduler_cannot_have_said_is_refused(
    extender: Extender, asked: dict[str, Any], says: str
) -> None:
    answer = extender.filter(asked)
    assert says in answer["Error"]
    assert not answer["NodeNames"]


def test_names_of_253_signs_are_names(extender: Extender) -> None:
    asked = {"Pod": pod_object(LONG, **{"sluice.io/vgpu": "1"}), "NodeNames": ["n1", LONG]}
    answer = extender.filter(asked)
    assert answer["NodeNames"] == ["n1"]
    assert list(answer["FailedAndUnresolvableNodes"]) == [LONG]


def test_nobody_is_evicted_for_a_vgpu(extender: Extender) -> None:
    """Where a pod's vGPUs are free it lacks something else, and that is the cluster's to settle."""
    victims = {name: {"Pods": [{"UID": "other"}], "NumPDBViolations": 1} for name in ("n1", "n2")}
    wants = pod_object(**{"sluice.io/vgpu": "3"})
    asked = {"Pod": wants, "NodeNameToMetaVictims": victims}
    assert extender.preempt(asked) == {"NodeNameToMetaVictims": {"n1": victims["n1"]}}
    extender.devices.take_pod(want(("c", 2, 1, 1), uid="other"), "n1")
    assert extender.preempt(asked) == {"NodeNameToMetaVictims": {}}
    extender.devices.drop_pod("other")
    large = pod_object(**{"sluice.io/vgpu": "1", "sluice.io/vgpu-memory-mib": "5000"})
    assert extender.preempt({**asked, "Pod": large}) == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize(
    "victims",
    [
        None,
        [],
        {"n1": None},
        {"n1": {"Pods": {}}},
        {"n1": {"Pods": [7]}},
        {"n1": {"Pods": [], "NumPDBViolations": "x"}},
        {"x" * 254: {"Pods": []}},
    ],
)
def test_victims_that_the_scheduler_cannot_have_named_are_nobody(
    extender: Extender, victims: Any
) -> None:
    wants = pod_object(**{"sluice.io/vgpu": "1"})
    asked = {"Pod": wants, "NodeNameToMetaVictims": victims}
    assert extender.preempt(asked) == {"NodeNameToMetaVictims": {}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    JSON,
    st.sampled_from(
        list(itertools.product(("Pod", "NodeNames", "Node", "NodeNameToMetaVictims"), (1, 2)))
    ),
)
def test_whatever_is_sent_to_the_extender_is_answered(found: Any, where: tuple[str, int]) -> None:
    pool = AsyncPoolClient(Access.of("127.0.0.1:9", Credentials()), trust_env=False)
    pool_follower = PoolFollower(ClusterSection(), pool, pool)
    pool_follower.is_known = True
    made = Extender(ClusterSection(), Cluster.__new__(Cluster), pool_follower)
    asked: dict[str, Any] = {"Pod": pod_object(), "NodeNames": ["n1"], where[0]: found}
    json.dumps(made.filter(asked))
    json.dumps(made.prioritize(asked))
    json.dumps(made.preempt({"NodeNameToMetaVictims": {"n1": found}, **asked}))
