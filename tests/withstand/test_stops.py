# SPDX-License-Identifier: Apache-2.0
"""Applications that are stopped for long, workers that are, and the ring that fills meanwhile."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest
from control_plane import ControlPlane

from .conftest import PAUSE_SECONDS
from .prompted import Prompted
from .traces import Traces

pytestmark = pytest.mark.control_plane(reused=True)

Start = Callable[..., Prompted]
Seen = Callable[..., Traces]
ROUNDS = 1_000_000
#: Launches whose frames are more than the largest ring (4 MiB) and a socket's buffers hold.
FLOOD = 200_000
LARGEST_RING = 4 << 20


@pytest.mark.slow
def test_stopped_applications_survive(plane: ControlPlane, start: Start, seen: Seen) -> None:
    applications = {
        (channel, state): start(channel)
        for channel in ("shm", "tcp")
        for state in ("idle", "in mid-kernel", "in a blocking call")
    }
    traces = seen(len(applications))
    for (_, state), application in applications.items():
        if state != "idle":
            assert application.ask(f"launch {ROUNDS}") == "launch: ok"
        if state == "in a blocking call":
            application.say("wait")
    for application in applications.values():
        application.signal(signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    assert {g["id"] for g in plane.grants()} == traces.grants
    for application in applications.values():
        application.signal(signal.SIGCONT)
    for (channel, state), application in applications.items():
        if state == "in a blocking call":
            assert application.answer() == "wait: ok", (channel, state)
        if state != "idle":
            assert application.ask(f"turned {ROUNDS}") == "turned: right", (channel, state)
        assert application.ask("compute") == "compute: wrong 0 of 1000", (channel, state)
    began = time.monotonic()
    for application in applications.values():
        application.quit()
    traces.wait_gone(f"exit of {len(applications)} applications stopped for long", began)


def test_a_stopped_application_can_be_killed(start: Start, seen: Seen) -> None:
    application = start()
    traces = seen()
    application.signal(signal.SIGSTOP)
    began = time.monotonic()
    application.signal(signal.SIGKILL)
    application.kill()
    traces.wait_gone("kill -9 of a stopped application", began)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_full_ring_holds_the_application_until_there_is_room(
    plane: ControlPlane, start: Start, seen: Seen, channel: str
) -> None:
    application = start(channel)
    traces = seen()
    os.kill(traces.worker, signal.SIGSTOP)
    application.say(f"flood {FLOOD}")
    assert application.is_silent(5), "it issued more commands than the ring holds"
    os.kill(traces.worker, signal.SIGCONT)
    assert application.answer() == "flood: ok"
    assert application.ask("count") == f"count: {FLOOD}", "none was lost, none came twice"
    assert application.ask("compute") == "compute: wrong 0 of 1000"
    application.quit()
    traces.wait_gone(f"exit after a full ring over {channel}", time.monotonic())
    [session] = traces.sessions
    log = plane.rest.get(f"/sessions/{session}/log").text
    [received] = set(re.findall(r"session ended: .* bytes_in=(\d+)", log))
    assert int(received) > LARGEST_RING, "the flood was none"


def test_an_application_killed_while_its_ring_is_full_leaves_nothing(
    start: Start, seen: Seen
) -> None:
    application = start()
    traces = seen()
    os.kill(traces.worker, signal.SIGSTOP)
    application.say(f"flood {FLOOD}")
    assert application.is_silent(2)
    began = time.monotonic()
    application.kill()
    # the worker is still stopped, so it cannot end by itself: the server sees to it
    traces.wait_gone("kill -9 of an application whose worker was stopped", began)
