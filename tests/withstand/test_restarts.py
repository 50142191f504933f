# SPDX-License-Identifier: Apache-2.0
"""Server and controller may be restarted or killed at any time: applications compute on."""

from __future__ import annotations

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
SIGNALS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
#: A kernel that takes a second or a few on the software GPU.
ROUNDS = 1_000_000


@CHANNELS
@SIGNALS
def test_a_session_survives_the_servers_restart(
    plane: ControlPlane, start: Start, seen: Seen, channel: str, how: signal.Signals
) -> None:
    application = start(channel)
    traces = seen()
    before = plane.grants()
    assert application.ask(f"launch {ROUNDS}") == "launch: ok"
    application.say("wait")
    plane.stop("server", how)
    assert application.answer() == "wait: ok"
    assert application.ask("compute") == "compute: wrong 0 of 1000", "while no server runs"
    plane.start_server()
    assert traces.worker in plane.session_worker_pids(), "it is the same worker"
    assert application.ask(f"turned {ROUNDS}") == "turned: right"
    assert application.ask("compute") == "compute: wrong 0 of 1000", "after the restart"
    assert plane.grants() == before
    assert [s["id"] for s in plane.sessions()] == list(traces.sessions)
    assert "adopted" in plane.rest.get(f"/sessions/{next(iter(traces.sessions))}/log").text
    neighbour = start(channel)
    assert neighbour.ask("compute") == "compute: wrong 0 of 1000", "a new one is served too"
    began = time.monotonic()
    application.signal(signal.SIGKILL)
    application.kill()
    traces.wait_gone(f"kill -9 of an adopted application over {channel}", began)
    assert neighbour.ask("compute") == "compute: wrong 0 of 1000"


@CHANNELS
@SIGNALS
def test_a_session_survives_the_controllers_restart(
    plane: ControlPlane, start: Start, seen: Seen, channel: str, how: signal.Signals
) -> None:
    application = start(channel)
    traces = seen()
    before = plane.grants()
    assert application.ask(f"launch {ROUNDS}") == "launch: ok"
    plane.stop("controller", how)
    assert application.ask("wait") == "wait: ok"
    assert application.ask("compute") == "compute: wrong 0 of 1000", "while no controller runs"
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up", message="the server to return by itself")
    assert plane.grants() == before
    assert [s["id"] for s in plane.sessions()] == list(traces.sessions)
    assert application.ask(f"turned {ROUNDS}") == "turned: right"
    began = time.monotonic()
    application.quit()
    traces.wait_gone(f"exit over {channel} after the controller's restart", began)


@CHANNELS
def test_of_an_application_killed_while_server_and_controller_are_down_nothing_remains(
    plane: ControlPlane, start: Start, seen: Seen, channel: str
) -> None:
    application = start(channel)
    assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    traces = seen()
    plane.stop("server", signal.SIGKILL)
    plane.stop("controller", signal.SIGKILL)
    application.kill()
    worker = traces.worker
    wait_for(lambda: worker not in plane.worker_pids(), LIMIT, "the worker to end by itself")
    plane.start_controller()
    plane.start_server()
    traces.wait_gone(f"start after a kill over {channel} that nobody saw", time.monotonic())


def test_without_a_controller_the_first_call_says_so_after_a_bounded_wait(
    plane: ControlPlane, start: Start
) -> None:
    plane.stop("controller")
    application = start("shm", opened=False)
    assert application.ask("open", 30) == "open: error 802 cudaErrorSystemNotReady"
    application.say("quit")
    assert "cannot reach the controller" in application.errors()
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up")
    assert start("shm").ask("compute") == "compute: wrong 0 of 1000"


def test_without_a_controller_a_client_of_the_network_names_the_address(
    plane: ControlPlane, start: Start
) -> None:
    plane.stop("controller")
    application = start("tcp", opened=False)
    assert is_cuda_error(application.ask("open", 30))
    application.say("quit")
    assert f"no sluice-controller at 127.0.0.1:{plane.rest_port}" in application.errors()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_without_a_server_the_first_call_names_the_socket(
    plane: ControlPlane, start: Start, how: signal.Signals
) -> None:
    plane.stop("server", how)
    application = start("shm", opened=False)
    assert application.ask("open", 30) == "open: error 100 cudaErrorNoDevice"
    application.say("quit")
    assert f"no sluice-server at {plane.socket_path}" in application.errors()
