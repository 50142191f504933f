# SPDX-License-Identifier: Apache-2.0
"""A client that writes rubbish into its own session's memory ends that session and nothing else."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from control_plane import ControlPlane, read_stream, wait_for

from sluice.server.open_session import Channel, pack_open_session, unpack_open_reply

from .hostile_session import NO_LANE, HostileSession
from .prompted import Prompted
from .traces import LIMIT, Traces

Start = Callable[..., Prompted]
ROUNDS = 1_000_000
#: The frames of native/wire/frame.h, and the API functions behind them; the former go deeper.
CONTROL_FUNCTIONS, API_FUNCTIONS = range(4, 36), range(64, 700)


@contextlib.contextmanager
def unaffected(plane: ControlPlane, start: Start) -> Iterator[Prompted]:
    """Another session that computes all the while, and a server that stays the same process."""
    assert plane.server
    server = plane.server.pid
    neighbour = start()
    assert neighbour.ask(f"launch {ROUNDS}") == "launch: ok"
    yield neighbour
    assert neighbour.ask("wait") == "wait: ok"
    assert neighbour.ask(f"turned {ROUNDS}") == "turned: right"
    assert neighbour.ask("compute 20000") == "compute: wrong 0 of 20000"
    assert plane.server.poll() is None
    assert plane.server.pid == server
    assert start().ask("compute") == "compute: wrong 0 of 1000", "the next client is served"


def ended_with_a_reason(plane: ControlPlane, session: str, traces: Traces, what: str) -> str:
    """Waits for the end; returns the reason, which is one that the worker gave."""
    began = time.monotonic()
    wait_for(lambda: session not in {s["id"] for s in plane.sessions()}, LIMIT, f"{what}: the end")
    [ended] = [s for s in plane.sessions("ended") if s["id"] == session]
    log = plane.rest.get(f"/sessions/{session}/log").text
    reason = str(ended["reason"])
    assert "killed or crashed" not in reason, f"{what}: the worker crashed:\n{log}"
    assert reason in log
    print(f"{what}: {reason} ({time.monotonic() - began:.2f} s)")
    del traces
    return reason


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_over_the_whole_memory_end_that_session_alone(
    plane: ControlPlane, start: Start, seed: int
) -> None:
    with unaffected(plane, start):
        hostile = HostileSession(plane)
        traces = Traces.of(plane, 2)
        hostile.scribble(seed, 1)
        hostile.wake()
        ended_with_a_reason(plane, hostile.id, traces, f"scribbling with seed {seed}")
        hostile.scribble(seed + 100, 1)
        hostile.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_in_the_ring_end_that_session_alone(
    plane: ControlPlane, start: Start, seed: int
) -> None:
    with unaffected(plane, start):
        hostile = HostileSession(plane)
        traces = Traces.of(plane, 2)
        hostile.scribble_ring(seed)
        reason = ended_with_a_reason(plane, hostile.id, traces, f"a random ring, seed {seed}")
        assert "frame" in reason or "command" in reason
        hostile.close()


def test_random_commands_in_valid_frames_end_that_session_alone(
    plane: ControlPlane, start: Start
) -> None:
    source = random.Random(20261121)
    with unaffected(plane, start):
        for _ in range(20):
            hostile = HostileSession(plane)
            traces = Traces.of(plane, 2)
            sent = []
            for _ in range(200):
                function = source.choice(
                    CONTROL_FUNCTIONS if source.random() < 0.9 else API_FUNCTIONS
                )
                lane = source.choice((NO_LANE, source.randrange(64)))
                sent.append(function)
                hostile.send_frame(source, function, lane)
                if hostile.id not in {s["id"] for s in plane.sessions()}:
                    break
            else:
                hostile.scribble_ring(1)
            ended_with_a_reason(
                plane, hostile.id, traces, f"{len(sent)} random commands, the last {sent[-1]}"
            )
            hostile.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_over_tcp_end_that_session_alone(
    plane: ControlPlane, start: Start, seed: int
) -> None:
    source = random.Random(seed)
    with unaffected(plane, start):
        answer = plane.rest.post("/sessions", json={"gmem_mib": 64, "ratio_percent": 10})
        assert answer.status_code in (200, 201), answer.text
        opened = answer.json()
        with socket.create_connection((opened["address"], int(opened["port"])), 10) as connected:
            connected.sendall(pack_open_session(key=opened["key"], channel=Channel.TCP))
            status, number, message = unpack_open_reply(read_stream(connected, 512))
            assert status == 0, message
            session = f"{number:016x}"
            traces = Traces.of(plane, 2)
            with contextlib.suppress(OSError):
                for _ in range(64):
                    connected.sendall(source.randbytes(65536))
            ended_with_a_reason(plane, session, traces, f"random bytes over TCP, seed {seed}")
