# SPDX-License-Identifier: Apache-2.0
"""When a suspended session's context leaves its GPU, and what becomes of what goes wrong there.

Real processes are taken off the software GPU in tests/withstand/test_checkpointed_sessions.py; here
the driver is a FakeCaller, which also fails as one that cannot be had here would.
"""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.control import WORKER_SENT
from sluice.resources.suspended_contexts import TEXTS, ContextPlace, Stays
from sluice.server.checkpoints.caller import Answer, Lost, Unavailable
from sluice.server.checkpoints.driver_process import GONE
from sluice.server.sessions import contexts as contexts_module
from sluice.server.sessions.context_rules import LEFT_MIB, MOST_LEFT_MIB, ROOM_MIB

from .suspended_bench import CONTEXT_MIB, MOVED_MIB, STAYING_MIB, Bench, out

SAYS = WORKER_SENT["suspension"].fields
[TIES] = [field.choices for field in SAYS if field.name == "context_tie"]


async def test_it_leaves_behind_its_memory_and_comes_back_before_it() -> None:
    bench = Bench().follow()
    last = await bench.order(suspend=True)
    first = bench.reports[0]
    assert (first.state, first.context, list(first.context_mib)) == (
        "suspended", "leaving", [CONTEXT_MIB],
    )  # fmt: skip
    assert list(first.staying_mib) == [STAYING_MIB]
    assert (last.state, last.context, list(last.context_mib)) == ("suspended", "off", [LEFT_MIB])
    assert list(last.staying_mib) == [0], "the driver has moved what the worker could not"
    assert bench.sessions[0].context_away, "a later server finds it"
    assert bench.swap.used_mib == MOVED_MIB + STAYING_MIB + CONTEXT_MIB
    assert (await bench.order(suspend=False)).state == "running"
    assert bench.caller.asked == ["lock", "checkpoint", "restore", "unlock"]
    assert bench.workers[0].verbs[-1] == "wake"
    assert not bench.sessions[0].context_away
    assert bench.swap.used_mib == 0


async def test_what_others_may_have_open_is_booked_as_staying() -> None:
    bench = Bench({"vgpu.0.exported_mib": "20"}).follow()
    last = await bench.order(suspend=True)
    assert (last.context, list(last.staying_mib)) == ("off", [20])


@pytest.mark.parametrize("tie", TIES)
async def test_what_ties_it_to_others_is_shown_and_it_stays(tie: str) -> None:
    bench = Bench({"context_tie": tie}).follow()
    last = await bench.order(suspend=True)
    assert (last.state, last.context, last.context_why) == ("suspended", "stays", tie)
    assert list(last.context_mib) == [CONTEXT_MIB]
    assert bench.caller.asked == []
    assert TEXTS[Stays(tie)]


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"vgpu.0.out_mib": str(ROOM_MIB - 1)}, Stays.LITTLE_MEMORY),
        ({"vgpu.0.staying_mib": str(MOST_LEFT_MIB + 1)}, Stays.MUCH_LEFT),
    ],
)
async def test_what_might_find_no_room_to_come_back_stays(says: dict[str, str], why: Stays) -> None:
    bench = Bench(says).follow()
    last = await bench.order(suspend=True)
    assert (last.context, last.context_why) == ("stays", why)
    assert bench.caller.asked == []


async def test_a_worker_that_does_not_know_its_ties_keeps_its_context() -> None:
    bench = Bench().follow()
    for says in bench.workers[0].answers:
        says.pop("vgpu.0.exported_mib", None)
    assert (await bench.order(suspend=True)).context_why == Stays.OLD_WORKER


async def test_where_it_is_switched_off_or_memory_is_promised_twice_it_stays() -> None:
    assert (await Bench(enabled=False).follow().order(suspend=True)).context_why == Stays.OFF
    last = await Bench().follow().order(suspend=True, promised=True)
    assert last.context_why == Stays.PROMISED_TWICE


async def test_where_the_host_has_no_memory_for_it_it_stays() -> None:
    bench = Bench(swap_mib=MOVED_MIB + CONTEXT_MIB).follow()
    last = await bench.order(suspend=True)
    assert (last.context, last.context_why) == ("stays", Stays.HOST_MEMORY)
    assert bench.swap.used_mib == MOVED_MIB


async def test_a_driver_without_it_is_named() -> None:
    bench = Bench().follow()
    bench.caller.next["lock"] += [Unavailable("it is older than 570")]
    last = await bench.order(suspend=True)
    assert (last.context_why, last.context_note) == (Stays.UNAVAILABLE, "it is older than 570")
    assert not bench.sessions[0].context_away
    assert bench.swap.used_mib == MOVED_MIB
    assert (await bench.order(suspend=False)).state == "running"


async def test_who_cannot_be_locked_keeps_its_context_and_so_do_the_others_of_its_job() -> None:
    bench = Bench(count=2).follow()
    bench.caller.next["lock"] += ["", "not_ready"]
    last = await bench.order(suspend=True)
    assert (last.state, last.context, last.context_why) == ("suspended", "stays", Stays.FAILED)
    assert "lock: not_ready" in last.context_note
    assert bench.caller.asked == ["lock", "lock", "unlock"]
    assert {*bench.caller.states.values()} == {"running"}
    assert list(last.context_mib) == [2 * CONTEXT_MIB]
    assert bench.swap.used_mib == 2 * MOVED_MIB


async def test_a_checkpoint_that_fails_leaves_it_suspended_as_before() -> None:
    bench = Bench().follow()
    bench.caller.next["checkpoint"] += ["operating_system"]
    last = await bench.order(suspend=True)
    assert (last.state, last.context, last.context_why) == ("suspended", "stays", Stays.FAILED)
    assert bench.caller.asked == ["lock", "checkpoint", "unlock"]
    assert (await bench.order(suspend=False)).state == "running"
    assert bench.ended.said == []


async def test_a_restore_that_fails_ends_the_session_with_the_reason() -> None:
    bench = Bench().follow()
    await bench.order(suspend=True)
    bench.caller.next["restore"] += ["out_of_memory"]
    bench.caller.states[100] = "failed"
    refused = await bench.refused()
    assert "could not restore its context: restore: out_of_memory" in refused.error
    assert len(bench.ended.said) == 1
    assert "out_of_memory" in bench.ended.said[0]
    assert "wake" not in bench.workers[0].verbs


async def test_where_the_card_has_too_little_free_it_waits_and_nothing_is_tried() -> None:
    bench = Bench().follow()
    await bench.order(suspend=True)
    needed = STAYING_MIB + CONTEXT_MIB + ROOM_MIB
    bench.caller.free = needed - 1
    refused = await bench.refused()
    assert f"{needed - 1} MiB of GPU-0 are free, and {needed} are needed" in refused.error
    assert (refused.state, bench.reports[-1].context) == ("suspended", "off")
    assert "restore" not in bench.caller.asked
    bench.caller.free = needed
    assert (await bench.order(suspend=False)).state == "running"


async def test_what_a_lost_call_has_done_is_asked_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asked was killed in the middle: the driver carries it out all the same."""
    monkeypatch.setattr(contexts_module, "LOOK_SECONDS", 0.01)
    bench = Bench().follow()
    bench.caller.next["checkpoint"] += [Lost("killed")]

    async def carried_out() -> None:
        while "state" not in bench.caller.asked:
            await asyncio.sleep(0.01)
        bench.caller.states[100] = "checkpointed"

    later = asyncio.create_task(carried_out())
    assert (await bench.order(suspend=True)).context == "off"
    await later
    assert (await bench.order(suspend=False)).state == "running"


async def test_what_never_comes_of_a_lost_call_is_not_known_and_it_is_booked_as_staying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contexts_module, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(contexts_module, "LOOK_SECONDS", 0.01)
    bench = Bench().follow()
    bench.caller.next["checkpoint"] += [Lost("hangs")]
    bench.caller.next["state"] += [Lost("hangs")] * 10_000
    last = await bench.order(suspend=True)
    assert (last.context, list(last.context_mib)) == ("unknown", [CONTEXT_MIB])
    bench.caller.next["state"].clear()
    bench.caller.next["state"] += [Lost("hangs")] * 2
    assert "the driver does not say" in (await bench.refused()).error
    bench.caller.next["state"].clear()
    assert (await bench.order(suspend=False)).state == "running", "it was locked, and is not"
    assert bench.caller.states[100] == "running"


@pytest.mark.parametrize(
    ("state", "context"),
    [("checkpointed", "off"), ("running", "off"), ("locked", "off"), ("failed", "")],
)
async def test_a_later_server_finds_out_where_it_is(state: str, context: str) -> None:
    bench = Bench()
    bench.sessions[0].context_away = True
    bench.caller.states[100] = state
    bench.follow(out())
    assert bench.suspensions.contexts.of(bench.sessions[0]).where is ContextPlace.UNKNOWN
    await bench.suspensions.find_contexts()
    while tasks := bench.suspensions._tasks:
        await asyncio.gather(*tasks)
    assert bool(bench.ended.said) == (state == "failed")
    if context:
        assert bench.reports[-1].context == context, "what was not done is done now"
        assert bench.swap.used_mib == MOVED_MIB + STAYING_MIB + CONTEXT_MIB


async def test_of_one_that_ends_while_it_leaves_nothing_is_kept() -> None:
    bench = Bench().follow()
    session = bench.sessions[0]

    def ends() -> None:
        bench.sessions.clear()
        bench.suspensions.leave(session)

    async def lock(*_: object) -> Answer:
        ends()
        return Answer(GONE, "", 0.0)

    bench.caller.call = lock  # type: ignore[assignment, method-assign]
    await bench.order(suspend=True)
    assert bench.swap.used_mib == 0
    assert bench.suspensions.contexts._places == {}


async def test_of_one_that_was_not_about_to_leave_nothing_is_asked() -> None:
    bench = Bench().follow(out())
    await bench.suspensions.find_contexts()
    assert bench.caller.asked == []
    message = bench.suspensions.message("g")
    assert (message.context, message.context_why) == ("stays", Stays.RESTARTED)


def test_each_tie_of_a_worker_is_a_reason_here() -> None:
    assert {*TIES} <= {*Stays}
