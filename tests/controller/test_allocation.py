# SPDX-License-Identifier: Apache-2.0
"""The allocator against a model that tries everything, on small pools of any make.

Hypothesis makes up pools, sequences of grants, releases and nodes that go and come, and requests.
The model knows the rules only: what a slice is, that cards are not shared within a grant unless
that is allowed, that a grant is on one node unless several are allowed.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ends import DONE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.gpus.slices import is_wanted, slice_on
from sluice.controller.pool.model import Gpu, GpuKey, GrantState, Node, NodeState, SessionState
from sluice.controller.pool.ordered import Ordered
from sluice.controller.pool.placement.policies import POLICIES
from sluice.controller.pool.pool import Pool, Snapshot
from sluice.resources.vgpu_request import Sharing

MODELS = (("NVIDIA H200", "sm_90"), ("NVIDIA A10", "sm_86"), ("NVIDIA A100 PCIe", "sm_80"))
LABELS = st.lists(
    st.tuples(st.sampled_from(["rack", "rdma", "zone"]), st.sampled_from(["1", "2"])),
    max_size=2,
    unique_by=lambda label: label[0],
).map(lambda labels: tuple(sorted(labels)))


@st.composite
def nodes(draw: st.DrawFn) -> list[tuple[Node, list[Gpu]]]:
    made = []
    for name in "abc"[: draw(st.sampled_from([1, 2, 3, 3]))]:
        node = Node(
            name,
            "x",
            1,
            "1",
            draw(st.sampled_from([1, 2, 3, 4])),
            labels=draw(LABELS),
            concurrent=draw(st.sampled_from([True, True, False])),
            takes_parts=True,
        )
        gpus = []
        for index in range(draw(st.sampled_from([0, 1, 2, 3, 4, 4]))):
            model, architecture = draw(st.sampled_from(MODELS[:2]))
            gpus.append(
                Gpu(
                    name,
                    f"gpu{index}",
                    model,
                    draw(st.sampled_from([10, 20])),
                    context_overhead_mib=draw(st.sampled_from([0, 1])),
                    reserved_mib=draw(st.sampled_from([0, 2])),
                    architecture=architecture,
                    nvlink_group=draw(st.sampled_from(["", "l0", "l1"])),
                    fault=draw(st.sampled_from(["", "", "", "XID 79"])),
                )
            )
        made.append((node, gpus))
    return made


# most requests are plain: what narrows them is rare, or hardly any would be granted
SIZES = st.fixed_dictionaries(
    {
        "count": st.sampled_from([1, 1, 1, 2, 2, 3, 6]),
        "memory_mib": st.sampled_from([0, 1, 3, 3, 5, 8, 18]),
        "compute_percent": st.sampled_from([0, 10, 30, 40, 60, 100]),
        "same_gpu": st.booleans(),
        "node": st.sampled_from(["a", "b", "c", ""]),
    }
)
BOUNDS = st.sampled_from(
    [{}] * 8
    + [
        {"gpu_model": "h200"},
        {"gpu_model": "NVIDIA A10"},
        {"gpu_architecture": "sm_90"},
        {"labels": (("rack", "1"),)},
        {"labels": (("rack", "1"), ("rdma", "2"))},
        {"job_processes": 2},
    ]
)
PLACES = st.sampled_from(
    [{}, {}, {}, {"local_only": True}, {"cross_node": True, "compute_percent": 100}]
)
SHARED = st.sampled_from(
    [{}, {}, {"sharing": Sharing.TURNS}]
    + [{"sharing": Sharing.CONCURRENT, "project": project} for project in ("a", "b", "")]
)
REQUESTS = st.builds(
    lambda *parts: {k: v for part in parts for k, v in part.items()}, SIZES, BOUNDS, PLACES, SHARED
)
STEPS = st.lists(
    st.one_of(
        *(st.tuples(st.just("ask"), REQUESTS) for _ in range(6)),
        *(st.tuples(st.just("release"), st.integers(0, 9)) for _ in range(2)),
        st.tuples(st.sampled_from(["away", "lose", "return", "return"]), st.integers(0, 2)),
    ),
    min_size=10,
    max_size=40,
)


class Model:
    """The rules, and nothing that makes them fast."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def free(self, *, empty: bool) -> dict[GpuKey, tuple[int, int]]:
        """What each GPU has left; `empty`: would have, with its node there and nothing granted."""
        left = {
            gpu.key: (gpu.memory_mib - gpu.reserved_mib, 100)
            for gpu in self.pool.gpus.values()
            if not gpu.fault
            and self.pool.nodes[gpu.node].state
            in ((NodeState.UP, NodeState.AWAY) if empty else (NodeState.UP,))
        }
        for grant in self.pool.grants.values():
            if grant.state is not GrantState.LIVE or empty:
                continue
            for vgpu in grant.vgpus:
                key = GpuKey(vgpu.node, vgpu.gpu_uuid)
                if key in left:
                    mib, percent = left[key]
                    taken = vgpu.memory_mib + vgpu.overhead_mib
                    left[key] = (mib - taken, percent - vgpu.compute_percent)
        return left

    def admits(self, request: GrantRequest, key: GpuKey, percent: int, *, empty: bool) -> bool:
        """Whether the vGPUs there leave the GPU to one of the request's."""
        at_once = request.sharing is Sharing.CONCURRENT
        if at_once and not (self.pool.nodes[key.node].concurrent and percent >= 8):
            return False
        beside = {
            (vgpu.sharing is Sharing.CONCURRENT, (grant.project or "default") if at_once else "")
            for grant in self.pool.grants.values()
            if grant.state is GrantState.LIVE and not empty
            for place, vgpu in grant.placed()
            if place == key
        }
        return beside <= {(at_once, (request.project or "default") if at_once else "")}

    def fits(self, request: GrantRequest, *, empty: bool) -> bool:
        """Whether there is any way to place it."""
        times: dict[str, list[int]] = {}
        for key, (mib, percent) in self.free(empty=empty).items():
            gpu, node = self.pool.gpus[key], self.pool.nodes[key.node]
            if request.local_only and key.node != request.node:
                continue
            if not set(request.labels) <= set(node.labels):
                continue
            if not is_wanted(request, gpu.model, gpu.architecture):
                continue
            vgpu = slice_on(request, gpu, node.vgpu_count)
            if not self.admits(request, key, vgpu.compute_percent, empty=empty):
                continue
            count = 0
            while (
                (count + 1) * (vgpu.memory_mib + vgpu.overhead_mib) <= mib
                and (count + 1) * vgpu.compute_percent <= percent
            ):  # fmt: skip
                count += 1
            times.setdefault(key.node, []).append(count)
        most = 64 if request.same_gpu else 1
        on_nodes = [sum(min(most, count) for count in counts) for counts in times.values()]
        if request.cross_node:
            return sum(on_nodes) >= request.count
        return max(on_nodes, default=0) >= request.count


def check_books(pool: Pool, model: Model) -> None:
    """Nothing is promised twice, and the orders of rooms say what the grants say."""
    check_lists(pool)
    free = model.free(empty=False)
    assert all(mib >= 0 and percent >= 0 for mib, percent in free.values()), free
    used: Counter[GpuKey] = Counter()
    for grant in pool.grants.values():
        if grant.state is GrantState.LIVE:
            for key, vgpu in grant.placed():
                used[key] += vgpu.memory_mib + vgpu.overhead_mib
    for key in pool.gpus:
        assert pool.usage(key).memory_mib == used[key]
    opened = {}
    for kind in pool.capacity.kinds():
        for percent, order in kind.by_percent.items():
            for mib, name, uuid, _ in order:
                opened[GpuKey(name, uuid)] = (mib, percent)
    assert opened == {key: left for key, left in free.items() if left[0] > 0 and left[1] > 0}
    fragmentation = pool.fragmentation()
    assert fragmentation.free_mib == sum(mib for mib, _ in free.values())
    assert fragmentation.free_cards == sum(1 for _, percent in free.values() if percent == 100)
    overhead = {key: pool.gpus[key].context_overhead_mib for key in free}
    largest = max((mib - overhead[key] for key, (mib, pct) in free.items() if pct), default=0)
    assert fragmentation.largest_vgpu_mib == max(0, largest)
    totals = [(node.total_mib, name) for _, name, node in pool.capacity.by_total]
    expected: Counter[str] = Counter()
    for key, (mib, _) in free.items():
        expected[key.node] += mib
    assert sorted((name, mib) for mib, name in totals) == sorted(expected.items())


def check_lists(pool: Pool) -> None:
    """What is kept in order for lists is what a walk over all finds."""
    running = [s for s in pool.sessions.values() if s.state is not SessionState.ENDED]
    for name in pool.nodes:
        assert pool.live_sessions_on(name) == sum(s.node == name for s in running)
    in_order: list[list[Any]] = [
        sorted(pool.nodes.values(), key=lambda node: node.name),
        sorted(pool.gpus.values(), key=lambda gpu: (gpu.node, gpu.uuid)),
        sorted(pool.grants.values(), key=lambda grant: (grant.created, grant.id)),
        sorted(pool.sessions.values(), key=lambda session: (session.started, session.id)),
    ]
    lists: list[Ordered[Any]] = [
        pool.nodes_in_order, pool.gpus_in_order, pool.grants_in_order, pool.sessions_in_order
    ]  # fmt: skip
    assert [list(each.after(None)) for each in lists] == in_order
    names = sorted(pool.nodes)
    for name in names[:1]:
        assert [n.name for n in pool.nodes_in_order.after((name,))] == names[1:]


def check_grant(pool: Pool, request: GrantRequest, granted: Granted) -> None:
    """It is what was asked for, where it was allowed."""
    grant = granted.grant
    assert len(grant.vgpus) == request.count
    assert grant.vgpus[0].node == grant.node
    if not request.same_gpu:
        assert len({key for key, _ in grant.placed()}) == len(grant.vgpus)
    if not request.cross_node:
        assert grant.nodes == {grant.node}
    for key, vgpu in grant.placed():
        gpu, node = pool.gpus[key], pool.nodes[key.node]
        assert node.state is NodeState.UP
        assert not gpu.fault
        assert set(request.labels) <= set(node.labels)
        assert not request.local_only or key.node == request.node
        assert is_wanted(request, gpu.model, gpu.architecture)
        assert replace(vgpu, sharing=Sharing.AUTO) == slice_on(request, gpu, node.vgpu_count)
        assert vgpu.sharing is request.sharing


class Story:
    """A pool, and the steps that it goes through."""

    def __init__(
        self, policy: str, made: list[tuple[Node, list[Gpu]]], snapshot: Snapshot | None = None
    ) -> None:
        self.bench = PoolBench(policy=POLICIES[policy](), snapshot=snapshot)
        self.made = made
        for node, gpus in made:
            self.register(node, gpus)

    def register(self, node: Node, gpus: list[Gpu], running: Sequence[str] = ()) -> None:
        fresh = replace(node, address="x", generation=0)
        self.bench.pool.membership.register(fresh, gpus, [], running)

    def live(self) -> list[str]:
        grants = self.bench.pool.grants.values()
        return [grant.id for grant in grants if grant.state is GrantState.LIVE]

    def step(self, kind: str, what: Any) -> None:
        pool = self.bench.pool
        if kind == "ask":
            self.ask(what)
        elif kind == "release":
            if live := self.live():
                pool.lifecycle.release(live[what % len(live)], DONE)
        elif what < len(self.made):
            node, gpus = self.made[what]
            if kind == "away":
                pool.membership.disconnected(node.name)
            elif kind == "lose" and pool.nodes[node.name].state is not NodeState.LOST:
                pool.nodes[node.name].last_seen = self.bench.clock.seconds - 60
                pool.expire()
                # a grant of several nodes goes on with the others' sessions
                live = [s for grant in self.live() for s in pool.sessions_of(grant)]
                live = [s for s in live if s.state is not SessionState.ENDED]
                assert not any(s.node == node.name for s in live)
                assert {s.grant_id for s in live} == set(self.live())
            elif kind == "return":
                self.register(node, gpus)

    def ask(self, wanted: dict[str, Any]) -> Any:
        pool, model = self.bench.pool, Model(self.bench.pool)
        request = GrantRequest(**{"request_id": "model", **wanted})
        could, ever = model.fits(request, empty=False), model.fits(request, empty=True)
        answer = self.bench.ask(**wanted)
        assert isinstance(answer, Granted) == could, answer
        if isinstance(answer, Granted):
            check_grant(pool, request, answer)
        else:
            assert ("in use now" in answer.message) == ever, answer
        return answer


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=nodes(), steps=STEPS)
def test_a_place_is_found_exactly_when_there_is_one(
    policy: str, made: list[tuple[Node, list[Gpu]]], steps: list[tuple[str, Any]]
) -> None:
    story = Story(policy, made)
    for kind, what in steps:
        story.step(kind, what)
        check_books(story.bench.pool, Model(story.bench.pool))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=nodes(), steps=STEPS, data=st.data())
def test_the_same_steps_lead_to_the_same_places(
    policy: str,
    made: list[tuple[Node, list[Gpu]]],
    steps: list[tuple[str, Any]],
    data: st.DataObject,
) -> None:
    one, other = Story(policy, made), Story(policy, data.draw(st.permutations(made)))
    other.made = made
    for kind, what in steps:
        one.step(kind, what)
        other.step(kind, what)
        grants = itertools.zip_longest(
            one.bench.pool.grants.values(), other.bench.pool.grants.values()
        )
        assert all(a and b and a.vgpus == b.vgpus for a, b in grants)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=nodes(), wanted=REQUESTS)
def test_a_restored_pool_places_as_the_one_before(
    made: list[tuple[Node, list[Gpu]]], wanted: dict[str, Any]
) -> None:
    before = Story("bin-pack", made)
    for _ in range(3):
        before.ask(wanted)
    pool = before.bench.pool
    snapshot = copy.deepcopy(
        Snapshot(
            list(pool.nodes.values()),
            list(pool.gpus.values()),
            list(pool.grants.values()),
            list(pool.sessions.values()),
        )
    )
    after = Story("bin-pack", [], snapshot=snapshot)
    running = [grant.request_id for grant in snapshot.grants]
    for node, gpus in made:
        after.register(node, gpus, running)
    check_books(after.bench.pool, Model(after.bench.pool))
    answers = [story.ask({**wanted, "request_id": "x"}) for story in (before, after)]
    there = [a.grant.vgpus if isinstance(a, Granted) else a.message for a in answers]
    assert there[0] == there[1]
