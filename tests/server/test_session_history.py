# SPDX-License-Identifier: Apache-2.0
"""What a session used, step by step: means of its worker's sums, bounded, gone with it."""

from __future__ import annotations

import math

import pytest

from sluice.controller.api.session_figures import MOST_STEPS, session_figures
from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.session_history import STEPS, SessionHistory


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> SessionHistory:
    return SessionHistory(clock, lambda: 1_767_225_600.0 + clock.now)


def test_a_step_is_what_the_sums_grew_by(clock: Clock, history: SessionHistory) -> None:
    counters = {"commands": 1000, "round_trips": 10, "bytes_in": 0, "bytes_out": 5}
    history.hear("s", 50.0, 100.0, counters)
    for _ in range(14):
        clock.now += 1
        history.hear("s", 55.0, 120.0, counters)
    assert not history.of("s"), "a step takes 15 seconds"
    clock.now += 1
    more = {"commands": 4000, "round_trips": 40, "bytes_in": 1500, "bytes_out": 5}
    history.hear("s", 65.0, 150.0, more)
    [step] = history.of("s")
    assert step.time == 1_767_225_600.0 + 115.0
    assert (step.gpus, step.memory_mib) == (1.0, 150.0)
    assert (step.commands, step.round_trips, step.received, step.sent) == (200.0, 2.0, 100.0, 0.0)


def test_a_worker_that_answers_late_spreads_nothing_wrongly(
    clock: Clock, history: SessionHistory
) -> None:
    history.hear("s", 0.0, 1.0, {"commands": 0})
    clock.now += 60
    history.hear("s", 30.0, 1.0, {"commands": 600})
    [step] = history.of("s")
    assert (step.gpus, step.commands) == (0.5, 10.0)


def test_sums_that_fall_are_no_negative_use(clock: Clock, history: SessionHistory) -> None:
    history.hear("s", 100.0, 1.0, {"commands": 500})
    clock.now += 20
    history.hear("s", 1.0, 1.0, {})
    [step] = history.of("s")
    assert (step.gpus, step.commands) == (0.0, 0.0)


def test_it_has_a_bound_and_ends_with_the_session(clock: Clock, history: SessionHistory) -> None:
    for _ in range(STEPS * 2):
        history.hear("s", 0.0, 1.0, {})
        clock.now += 15
    assert len(history.of("s")) == STEPS
    history.end("s")
    assert not history.of("s")
    assert not history._before


def test_what_a_node_says_that_cannot_be_is_nothing() -> None:
    wild = rpc.SessionStep(
        time=math.nan, gpus=math.inf, memory_mib=-5, commands=1e300, sent_bytes=7
    )
    [step] = session_figures([wild]).steps
    assert (step.gpus, step.memory_mib, step.commands, step.sent_bytes) == (0, 0, 0, 7)
    assert step.time.year == 1970
    assert len(session_figures([rpc.SessionStep()] * (MOST_STEPS + 50)).steps) == MOST_STEPS
