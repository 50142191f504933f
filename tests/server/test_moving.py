# SPDX-License-Identifier: Apache-2.0
"""A suspended session comes back on another GPU, or does not, and what a later server makes of it.

The driver is a FakeCaller; real processes move in tests/withstand/test_moved_sessions.py.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from sluice.server.checkpoints.caller import Lost, Unavailable
from sluice.server.controller.link import GrantedVgpu
from sluice.server.sessions import contexts as contexts_module
from sluice.server.sessions.moving import exchanged

from .ordered_worker import FakeWorker
from .suspended_bench import RUNNING, Bench, out

MAP = {"GPU-0": "GPU-2", "GPU-1": "GPU-1", "GPU-2": "GPU-0"}


def movable(*more: dict[str, str], beside: tuple[str, ...] = ("GPU-1", "GPU-2")) -> Bench:
    return Bench(*more, movable=True, beside=beside).follow()


def gpus_of(bench: Bench) -> set[str]:
    return {vgpu.gpu_uuid for session in bench.sessions for vgpu in session.vgpus}


async def test_it_comes_back_on_another_gpu_by_a_map_of_all_that_it_sees() -> None:
    bench = movable()
    last = await bench.order(suspend=True)
    assert (list(last.moves_to), list(last.gpu_uuids)) == (["GPU-1", "GPU-2"], ["GPU-0"])
    last = await bench.order(suspend=False, to="GPU-2")
    assert (last.state, list(last.gpu_uuids)) == ("running", ["GPU-2"])
    assert bench.caller.maps == [MAP]
    assert (gpus_of(bench), bench.moved) == ({"GPU-2"}, ["GPU-2"])
    assert bench.workers[0].verbs[-1] == "wake", "its memory comes behind its context"
    assert bench.sessions[0].moving_to == ""


async def test_its_record_says_where_it_goes_before_the_driver_is_asked() -> None:
    bench = movable()
    await bench.order(suspend=True)
    bench.written.clear()
    await bench.order(suspend=False, to="GPU-2")
    assert bench.written == [("GPU-2", True), ("", True), ("", False)]


async def test_it_moves_on_from_where_it_is() -> None:
    bench = movable()
    await bench.order(suspend=True)
    await bench.order(suspend=False, to="GPU-2")
    bench.workers[0].answers.extend([*Bench().workers[0].answers])
    last = await bench.order(suspend=True)
    assert list(last.moves_to) == ["GPU-0", "GPU-1"]
    await bench.order(suspend=False, to="GPU-1")
    assert bench.caller.maps[-1] == {"GPU-0": "GPU-0", "GPU-1": "GPU-2", "GPU-2": "GPU-1"}
    assert gpus_of(bench) == {"GPU-1"}


async def test_where_it_is_it_comes_back_without_a_map() -> None:
    bench = movable()
    await bench.order(suspend=True)
    assert (await bench.order(suspend=False, to="GPU-0")).state == "running"
    assert (bench.caller.maps, bench.moved) == ([], [])


@pytest.mark.parametrize(
    ("bench", "why"),
    [
        (Bench(beside=("GPU-1",)), "[suspend] movable of its node is off"),
        (Bench(movable=True), "its worker sees no other GPU"),
        (Bench({"context_tie": "communicator"}, movable=True, beside=("GPU-1",)), "NCCL"),
        (
            Bench({"vgpu.0.exported_mib": "20"}, movable=True, beside=("GPU-1",)),
            "have memory of it",
        ),
    ],
)
async def test_who_cannot_be_moved_is_refused_with_the_reason_and_stays_out(
    bench: Bench, why: str
) -> None:
    bench.follow()
    last = await bench.order(suspend=True)
    assert list(last.moves_to) == []
    assert why in last.moves_not
    refused = await bench.refused(to="GPU-1")
    assert (refused.state, why in refused.error) == ("suspended", True)
    assert (bench.caller.maps, gpus_of(bench)) == ([], {"GPU-0"})
    assert (await bench.order(suspend=False)).state == "running", "where it is it comes back"


def of_three() -> Bench:
    """A job's sessions on one GPU."""
    return Bench(movable=True, beside=("GPU-1", "GPU-2"), count=3).follow()


async def test_the_sessions_of_a_job_move_together() -> None:
    bench = of_three()
    last = await bench.order(suspend=True)
    assert (last.context, list(last.moves_to)) == ("off", ["GPU-1", "GPU-2"])
    last = await bench.order(suspend=False, to="GPU-2")
    assert (last.state, list(last.gpu_uuids)) == ("running", ["GPU-2"])
    assert (bench.caller.maps, gpus_of(bench)) == ([MAP] * 3, {"GPU-2"})


async def test_a_gpu_that_one_of_a_job_does_not_see_is_none_for_it() -> None:
    bench = of_three()
    bench.sessions[1].worker.record.beside.remove("GPU-2")
    assert list((await bench.order(suspend=True)).moves_to) == ["GPU-1"]


async def test_where_one_of_a_job_is_not_restored_all_are_off_again_and_follow_the_first() -> None:
    bench = of_three()
    await bench.order(suspend=True)
    bench.caller.next["restore"] += ["", Unavailable("no")]
    refused = await bench.refused(to="GPU-2")
    assert (refused.state, list(refused.gpu_uuids)) == ("suspended", ["GPU-2"])
    last = bench.reports[-1]
    assert (last.context, list(last.moves_to)) == ("off", ["GPU-1"])
    assert set(bench.caller.states.values()) == {"checkpointed"}, "what had arrived is off, too"
    assert gpus_of(bench) == {"GPU-0", "GPU-2"}
    last = await bench.order(suspend=False, to="GPU-2")
    assert (last.state, gpus_of(bench)) == ("running", {"GPU-2"})


async def test_one_of_a_job_that_has_to_stay_where_it_has_arrived_is_followed() -> None:
    bench = of_three()
    await bench.order(suspend=True)
    bench.caller.next["restore"] += [Unavailable("no")]
    bench.caller.next["lock"] += ["not_ready"]
    await bench.refused(to="GPU-2")
    assert list(bench.reports[-1].gpu_uuids) == ["GPU-2"], "where a context is"
    last = await bench.order(suspend=False, to="GPU-2")
    assert (last.state, gpus_of(bench)) == ("running", {"GPU-2"})


async def test_one_on_several_gpus_stays_there() -> None:
    bench = movable()
    session = bench.sessions[0]
    session.vgpus = (*session.vgpus, GrantedVgpu("GPU-1", 1000, 10))
    bench.sessions[0].__dict__["places"] = (0, 1)
    last = await bench.order(suspend=True)
    assert "several GPUs" in last.moves_not


async def test_a_gpu_that_it_does_not_see_or_that_is_lent_away_is_refused() -> None:
    bench = movable()
    await bench.order(suspend=True)
    assert "it sees GPU-1, GPU-2" in (await bench.refused(to="GPU-9")).error
    bench.away.add("GPU-2")
    assert "it sees GPU-1 beside" in (await bench.refused(to="GPU-2")).error


async def test_one_that_runs_is_not_moved() -> None:
    bench = movable()
    assert "is not suspended" in (await bench.refused(to="GPU-1")).error
    assert bench.caller.asked == []


async def test_the_room_of_the_other_gpu_counts_and_nothing_is_tried_without() -> None:
    bench = movable()
    await bench.order(suspend=True)
    bench.caller.free_of["GPU-1"] = 10
    refused = await bench.refused(to="GPU-1")
    assert "10 MiB of GPU-1 are free" in refused.error
    assert (list(refused.gpu_uuids), bench.caller.maps) == (["GPU-0"], [])
    bench.caller.free_of["GPU-0"] = 0
    bench.caller.free_of["GPU-1"] = 80_000
    assert (await bench.order(suspend=False, to="GPU-1")).state == "running"


async def test_a_restore_there_that_fails_ends_it_with_the_reason() -> None:
    bench = movable()
    await bench.order(suspend=True)
    bench.caller.next["restore"] += ["out_of_memory"]
    bench.caller.states[100] = "failed"
    refused = await bench.refused(to="GPU-1")
    assert "the driver could not restore its context: restore: out_of_memory" in refused.error
    assert len(bench.ended.said) == 1


async def test_a_driver_that_cannot_be_asked_leaves_it_where_it_is() -> None:
    bench = movable()
    await bench.order(suspend=True)
    bench.caller.next["restore"] += [Unavailable("no")]
    refused = await bench.refused(to="GPU-1")
    assert (refused.error, list(refused.gpu_uuids)) == ("session s0: no", ["GPU-0"])
    assert bench.sessions[0].moving_to == ""
    assert (await bench.order(suspend=False)).state == "running"


async def test_a_record_that_cannot_be_written_is_in_the_way() -> None:
    bench = movable()
    await bench.order(suspend=True)

    def full(session: object) -> None:
        raise OSError("No space left on device")

    bench.suspensions.contexts._write = full
    assert "No space left" in (await bench.refused(to="GPU-1")).error
    assert (bench.caller.maps, bench.sessions[0].moving_to) == ([], "")


@pytest.mark.parametrize(("carried_out", "gpu"), [(True, "GPU-1"), (False, "GPU-0")])
async def test_what_came_of_a_lost_call_is_asked_before_anything_is_concluded(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool, gpu: str
) -> None:
    monkeypatch.setattr(contexts_module, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(contexts_module, "LOOK_SECONDS", 0.02)
    bench = movable()
    await bench.order(suspend=True)
    bench.caller.next["restore"] += [Lost("killed")]
    refused = await bench.refused(to="GPU-1")
    assert (refused.context, list(refused.gpu_uuids)) == ("unknown", ["GPU-0"])
    bench.caller.states[100] = "locked" if carried_out else "checkpointed"
    bench.sessions[0].moving_to = "GPU-1"
    contexts = bench.suspensions.contexts
    contexts._put(bench.sessions[0], contexts_module.Place(contexts_module.ContextPlace.UNKNOWN))
    assert (await bench.order(suspend=False)).state == "running"
    assert gpus_of(bench) == {gpu}


@pytest.mark.parametrize(
    ("state", "gpu"), [("checkpointed", "GPU-0"), ("locked", "GPU-1"), ("running", "GPU-1")]
)
async def test_a_later_server_finds_out_where_it_is(
    monkeypatch: pytest.MonkeyPatch, state: str, gpu: str
) -> None:
    monkeypatch.setattr(contexts_module, "MOVE_SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(contexts_module, "LOOK_SECONDS", 0.02)
    bench = Bench(movable=True, beside=("GPU-1", "GPU-2"))
    session = bench.sessions[0]
    session.context_away, session.moving_to = True, "GPU-1"
    bench.caller.states[100] = state
    cast(FakeWorker, session.worker).answers.clear()
    bench.follow(out())
    await bench.suspensions.find_contexts()
    last = await bench.order(suspend=True)
    assert (last.state, list(last.gpu_uuids)) == ("suspended", [gpu])
    assert bench.moved == (["GPU-1"] if gpu == "GPU-1" else [])
    bench.workers[0].answers.append(RUNNING)
    last = await bench.order(suspend=False)
    assert (last.state, list(last.gpu_uuids), session.moving_to) == ("running", [gpu], "")


@pytest.mark.parametrize("to", ["GPU-1", "GPU-0"])
async def test_a_restore_that_an_earlier_server_asked_for_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """It ends while this one looks; where it was asked for elsewhere, it is asked for again."""
    monkeypatch.setattr(contexts_module, "LOOK_SECONDS", 0.02)
    bench = movable()
    await bench.order(suspend=True)
    bench.sessions[0].moving_to = "GPU-1"
    asyncio.get_running_loop().call_later(0.1, bench.caller.states.update, {100: "locked"})
    last = await (bench.order(suspend=False, to=to) if to == "GPU-1" else bench.refused(to=to))
    assert list(last.gpu_uuids) == ["GPU-1"]
    assert (last.state, "by an order before" in last.error) == (
        ("running", False) if to == "GPU-1" else ("suspended", True)
    )
    assert bench.caller.maps == []


async def test_one_that_a_later_server_finds_about_to_leave_is_off() -> None:
    bench = Bench(movable=True, beside=("GPU-1",))
    bench.sessions[0].context_away = True
    bench.caller.states[100] = "locked"

    def left() -> str:
        bench.caller.states[100] = "checkpointed"
        return "illegal_state"

    bench.caller.next["unlock"].append(left)
    cast(FakeWorker, bench.sessions[0].worker).answers.clear()
    bench.follow(out())
    await bench.suspensions.find_contexts()
    assert (bench.ended.said, bench.suspensions.message("g").context) == ([], "off")


def test_a_map_names_each_gpu_once_on_either_side() -> None:
    assert exchanged(("GPU-0", "GPU-1", "GPU-2"), "GPU-0", "GPU-2") == MAP
    assert exchanged(("GPU-0", "GPU-1"), "GPU-1", "GPU-0") == {"GPU-0": "GPU-1", "GPU-1": "GPU-0"}
