# SPDX-License-Identifier: Apache-2.0
"""The checker finds each kind of violation that is planted, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from . import checker
from .account import Line
from .checker import SeenEvent, Snapshot, Violation

Step = tuple[str, dict[str, Any]]


def vgpu(percent: int = 50, mib: int = 4000, gpu: str = "g0") -> dict[str, Any]:
    return {"gpu_uuid": gpu, "memory_mib": mib, "compute_percent": percent}


def boot() -> Step:
    return "boot", {"gpus": {"g0": 10_000, "g1": 10_000}, "overhead_mib": 100}


def start(name: str, *vgpus: dict[str, Any], request: str = "") -> Step:
    return "start", {
        "session": f"s-{name}",
        "grant": name,
        "request": request,
        "vgpus": list(vgpus) or [vgpu()],
    }


def end(name: str, cause: str = "done", text: str = "its process ended") -> Step:
    return "end", {"session": f"s-{name}", "grant": name, "cause": cause, "text": text}


def ask(name: str, **wanted: Any) -> Step:
    return "ask", {
        "request": name,
        "priority": 0,
        "wait": -1,
        "preempt": False,
        "label": "",
        **wanted,
    }


def waits(name: str) -> Step:
    return "waiting", {"request": name, "text": "position 1 of 1"}


def answer(name: str, status: int = 0, text: str = "") -> Step:
    return "answer", {"request": name, "grant": name, "status": status, "text": text}


def line(up: bool) -> Step:
    return "line", {"up": up}


def history(*steps: Step, node: str = "a", every: float = 5.0) -> list[Line]:
    """Steps of one node, some seconds apart."""
    return [Line(number * every, node, kind, fields) for number, (kind, fields) in enumerate(steps)]


def suspend(name: str, *staying: int) -> Step:
    return "suspend", {"grant": name, "staying": list(staying) or [0]}


def resume(name: str) -> Step:
    return "resume", {"grant": name}


def snapshot(at: float, *grants: str, percent: int = 50, up: tuple[str, ...] = ("a",)) -> Snapshot:
    booked = {
        "node": "a",
        "vgpus": [{"gpu": "a:g0", "memory_mib": 4000, "compute_percent": percent}],
    }
    return Snapshot(at, dict.fromkeys(grants, booked), frozenset(up))


def event(number: int, kind: str, subject: str, text: str = "", at: float = 0.0) -> SeenEvent:
    return SeenEvent(number, kind, subject, text, at)


GOOD = history(
    boot(),
    line(True),
    ask("x"),
    answer("x"),
    start("x", request="rx"),
    start("y", vgpu(50)),
    ask("old"),
    waits("old"),
    ask("new"),
    waits("new"),
    end("x"),
    answer("old"),
    start("old", request="ro"),
    ("resize", {"grant": "y", "vgpus": [vgpu(20)]}),
    end("old"),
    answer("new"),
    start("new", vgpu(80), request="rn"),
    end("new"),
    ask("late", wait=2),
    waits("late"),
    answer("late", 46, "not in time"),
    end("y", "ordered", "preempted: request r of priority 5 takes the room of priority 0"),
)


def test_a_good_history_has_no_violation() -> None:
    assert checker.check_account(GOOD) == []
    assert checker.unanswered(GOOD) == []
    assert checker.differences(GOOD, snapshot(200.0)) == []


BAD: dict[str, tuple[str, list[Line]]] = {
    "percent beyond a GPU": (
        "overcommitted",
        history(boot(), start("x", vgpu(60)), start("y", vgpu(60))),
    ),
    "memory beyond a GPU, contexts counted": (
        "overcommitted",
        history(boot(), start("x", vgpu(10, 5000)), start("y", vgpu(10, 4850))),
    ),
    "a resize beyond a GPU": (
        "overcommitted",
        history(
            boot(), start("x"), start("y"), ("resize", {"grant": "x", "vgpus": [vgpu(60)]})
        ),
    ),
    "beyond it across a restart of the server": (
        "overcommitted",
        history(boot(), start("x", vgpu(60)), boot(), start("y", vgpu(60))),
    ),
    "two vGPUs of one grant on one card": (
        "overcommitted",
        history(boot(), start("x", vgpu(60), vgpu(60))),
    ),
    "a GPU that is not there": ("overcommitted", history(boot(), start("x", vgpu(gpu="g9")))),
    "a grant on two nodes": (
        "owners",
        [*history(boot(), start("x")), *history(boot(), start("x"), node="b")],
    ),
    "a grant for two requests": (
        "owners",
        history(boot(), start("x", request="1"), end("x"), start("x", request="2")),
    ),
    "two grants for one request": (
        "owners",
        history(boot(), start("x", request="1"), start("y", request="1")),
    ),
    "a session that is started twice": (
        "owners",
        history(boot(), start("x", request="1"), start("x", request="1")),
    ),
    "work that is ended for nothing": (
        "lost",
        history(boot(), start("x"), end("x", "ordered", "the server does not run it any more")),
    ),
    "a younger request served first": (
        "order",
        history(boot(), ask("old"), waits("old"), ask("new"), answer("new"), answer("old")),
    ),
    "a younger one served while the older never is": (
        "order",
        history(boot(), ask("old"), waits("old"), ask("new"), answer("new")),
    ),
    "a lower priority served first": (
        "order",
        history(
            boot(), ask("low", priority=0), ask("high", priority=1), waits("high"),
            ask("lower", priority=0), answer("lower"), answer("high"), answer("low"),
        ),
    ),
    "a refusal before its time": (
        "early",
        history(boot(), ask("x", wait=20), answer("x", 999, "the controller cannot store a grant")),
    ),
    "a refusal of one who waits for ever": (
        "early",
        history(boot(), ask("x"), waits("x"), answer("x", 46, "not in time")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_planted_violation_is_found(name: str) -> None:
    kind, lines = BAD[name]
    assert kind in {violation.kind for violation in checker.check_account(lines)}


FAIR = {
    "a higher priority passes": history(
        boot(), ask("low"), waits("low"), ask("high", priority=1), answer("high"), answer("low")
    ),
    "the order after a broken line is chance": history(
        boot(), ask("old"), waits("old"), ask("new"), line(False), line(True), answer("new"),
        answer("old"),
    ),
    "a reservation's owner draws on it": history(
        boot(), ask("old"), waits("old"), ask("new", label="team"), answer("new"), answer("old")
    ),
    "who preempts makes room": history(
        boot(), ask("old"), waits("old"), ask("new", preempt=True), answer("new"), answer("old")
    ),
    "answers that cross each other": history(
        boot(), ask("old"), waits("old"), ask("new"), answer("new"), answer("old"), every=1.5
    ),
    "a grant that is preempted before its session is there": history(
        boot(), ask("x"), answer("x", 802, "preempted: request y takes the room of priority 0")
    ),
    "a server without a controller": history(
        boot(), ask("x"), answer("x", 802, "sluice-server cannot reach the controller at c")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAIR)
def test_what_only_looks_like_one_is_none(name: str) -> None:
    assert checker.check_account(FAIR[name]) == []


def test_a_request_without_an_answer_is_found_unless_its_process_was_killed() -> None:
    assert [v.kind for v in checker.unanswered(history(boot(), ask("x")))] == ["unanswered"]
    assert checker.unanswered(history(boot(), ask("x"), boot())) == []


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("lost", lambda lines: checker.differences(lines, snapshot(99.0))),
        ("lost", lambda lines: checker.differences(lines, snapshot(99.0, "x", percent=40))),
        ("orphaned", lambda lines: checker.differences(lines, snapshot(99.0, "x", "y"))),
    ],
)
def test_grants_that_differ_from_what_runs_are_found(
    kind: str, found: Callable[[list[Line]], list[Violation]]
) -> None:
    lines = history(boot(), start("x"))
    assert checker.differences(lines, snapshot(99.0, "x")) == []
    assert [violation.kind for violation in found(lines)] == [kind]


def test_a_grant_that_is_booked_and_runs_nowhere_is_found_after_its_time() -> None:
    lines = history(boot(), start("x"), end("x"))
    times = range(12, 80, 2)
    assert [v.kind for v in checker.orphaned(lines, [snapshot(t, "x") for t in times], 30.0)] == [
        "orphaned"
    ]
    assert checker.orphaned(lines, [snapshot(t, "x") for t in times], 90.0) == []
    gap = [snapshot(t, "x") for t in (12, 14, 60, 62)]
    assert checker.orphaned(lines, gap, 30.0) == [], "nobody led meanwhile"
    away = [snapshot(t, "x", up=()) for t in times]
    assert checker.orphaned(lines, away, 30.0) == [], "its node is away: it may run there"


def test_what_runs_on_after_its_end_is_found_unless_it_was_adopted() -> None:
    lines = history(boot(), start("x"))
    ended = event(1, "grant.ended", "x", "its process ended", 10.0)
    assert [v.kind for v in checker.ended_yet_running(lines, [ended], 30.0)] == ["lost"]
    adopted = event(2, "grant.adopted", "x", at=20.0)
    assert checker.ended_yet_running(lines, [ended, adopted], 30.0) == []
    lost = event(1, "grant.ended", "x", checker.NODE_LOST, 10.0)
    assert checker.ended_yet_running(lines, [lost], 30.0) == []


@pytest.mark.parametrize("now", [[], [(1, "grant.made", "x", "other")]])
def test_history_that_is_rewritten_is_found(now: list[tuple[int, str, str, str]]) -> None:
    seen = [event(1, "grant.made", "x", "one")]
    assert checker.rewritten(seen, [(1, "grant.made", "x", "one")]) == []
    assert [v.kind for v in checker.rewritten(seen, now)] == ["history"]


def test_what_is_suspended_leaves_its_room_and_needs_it_to_go_on() -> None:
    large = (vgpu(80, 6000),)
    taken = [boot(), start("a", *large), suspend("a", 100), start("b", *large)]
    assert checker.overcommitted(history(*taken, end("b"), resume("a"))) == []
    [found] = checker.overcommitted(history(*taken, resume("a")))
    assert found.text.startswith("resume of grant a: g0 runs ")
    [found] = checker.overcommitted(history(*taken[:2], suspend("a", 5000), taken[3]))
    assert found.text.startswith("start of grant b: g0 runs "), "what stays counts"


def test_at_the_end_nobody_is_suspended_any_more() -> None:
    lines = history(boot(), start("a"), suspend("a", 0))
    kinds = {found.kind for found in checker.differences(lines, snapshot(99, "a"))}
    assert kinds == {"lost", "stuck"}, "it is booked as one that runs"
    lines = history(boot(), start("a"), suspend("a", 0), resume("a"))
    assert checker.differences(lines, snapshot(99, "a")) == []
    said = snapshot(99, "a")
    grants = {"a": {**said.grants["a"], "suspension": {"state": "resuming"}}}
    [found] = checker.differences(lines, Snapshot(99, grants, said.nodes_up))
    assert found.kind == "stuck"
