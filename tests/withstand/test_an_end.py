# SPDX-License-Identifier: Apache-2.0
"""However an application or its worker ends, all comes back in five seconds and nobody hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from control_plane import ControlPlane, wait_for

from .prompted import ENDLESS, Prompted, is_cuda_error
from .traces import LIMIT, Traces

pytestmark = pytest.mark.control_plane(reused=True)

Start = Callable[..., Prompted]
Seen = Callable[..., Traces]
CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])


@CHANNELS
@pytest.mark.parametrize("state", ["idle", "in mid-kernel", "in a blocking call", "flooding"])
def test_of_a_killed_application_nothing_remains(
    start: Start, seen: Seen, channel: str, state: str
) -> None:
    application = start(channel)
    if state in ("in mid-kernel", "in a blocking call"):
        assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    if state == "in a blocking call":
        application.say("wait")
    if state == "flooding":
        application.say("flood 100000000")
    if state != "idle":
        assert application.is_silent(0.5)
    traces = seen()
    began = time.monotonic()
    application.signal(signal.SIGKILL)
    application.kill()
    traces.wait_gone(f"kill -9 of an application over {channel}, {state}", began)
    assert start(channel).ask("compute") == "compute: wrong 0 of 1000"


@CHANNELS
def test_of_an_application_that_ends_by_itself_nothing_remains(
    start: Start, seen: Seen, channel: str
) -> None:
    application = start(channel)
    assert application.ask("compute") == "compute: wrong 0 of 1000"
    traces = seen()
    began = time.monotonic()
    application.quit()
    traces.wait_gone(f"exit of an application over {channel}", began)


@CHANNELS
@pytest.mark.parametrize(
    "call", ["wait", "wait-event", "poll-event", "poll-stream", "turned 0", "compute"]
)
def test_a_killed_worker_is_a_cuda_error_in_whatever_call(
    plane: ControlPlane, start: Start, seen: Seen, channel: str, call: str
) -> None:
    application = start(channel)
    assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    traces = seen()
    application.say(call)
    assert application.is_silent(0.5), application.answer()
    began = time.monotonic()
    os.kill(traces.worker, signal.SIGKILL)
    answer = application.answer(LIMIT)
    assert is_cuda_error(answer), answer
    print(f"{call} over {channel}: {answer} after {time.monotonic() - began:.2f} s")
    # the memory of the session stays mapped in the application until it ends; all else is back
    wait_for(lambda: not plane.grants(), LIMIT, "the grant to return")
    [ended] = [s for s in plane.sessions("ended") if s["id"] in traces.sessions]
    assert ended["cause"] == "worker-failed"
    assert is_cuda_error(application.ask("compute")), "the error stays"
    application.quit()
    traces.wait_gone(f"kill -9 of the worker over {channel} during {call}", began)
    assert start(channel).ask("compute") == "compute: wrong 0 of 1000"


@CHANNELS
def test_a_worker_killed_between_two_calls_is_a_cuda_error_at_the_next(
    start: Start, seen: Seen, channel: str
) -> None:
    application = start(channel)
    traces = seen()
    os.kill(traces.worker, signal.SIGKILL)
    assert is_cuda_error(application.ask("compute", LIMIT))
    application.quit()
    traces.wait_gone(f"kill -9 of an idle worker over {channel}", time.monotonic())


@CHANNELS
def test_a_worker_killed_under_a_flood_of_commands_is_a_cuda_error(
    start: Start, seen: Seen, channel: str
) -> None:
    application = start(channel)
    traces = seen()
    application.say("flood 100000000")
    assert application.is_silent(0.5)
    os.kill(traces.worker, signal.SIGKILL)
    assert is_cuda_error(application.answer(LIMIT + 30))
    application.quit()
    traces.wait_gone(f"kill -9 of a busy worker over {channel}", time.monotonic())


@CHANNELS
def test_an_operator_who_ends_a_grant_gives_its_application_an_error(
    plane: ControlPlane, start: Start, seen: Seen, channel: str
) -> None:
    application = start(channel)
    assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    application.say("wait")
    assert application.is_silent(0.5)
    traces = seen()
    [grant] = traces.grants
    assert plane.rest.delete(f"/grants/{grant}").status_code == 202
    assert is_cuda_error(application.answer(LIMIT))
    application.quit()
    traces.wait_gone(f"end of a grant over {channel}", time.monotonic())
