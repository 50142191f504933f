# SPDX-License-Identifier: Apache-2.0
"""A client that writes rubbish into its own session's memory ends that session and nothing else."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, read_stream, running, wait_for

from sluice.protocol.frames import MAX_FRAME_BYTES, MAX_LARGE_FRAME_BYTES, ChannelKind
from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply

from .hostile_session import NO_LANE, HostileSession
from .prompted import ENDLESS, Prompted
from .traces import LIMIT, Traces

pytestmark = pytest.mark.control_plane(reused=True)

Start = Callable[..., Prompted]
ROUNDS = 1_000_000
#: Launches that are more than the gate lets through and less than every channel holds.
FLOOD = 20_000
DEVICE_IDLE, ARENA_REGISTER, COPY_TO_DEVICE, FILL_DEVICE = 8, 9, 13, 16
ARENA_ADDRESS, ARENA_CHUNK = 0x680000000000, 32 << 20
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
    assert ended["cause"] != "worker-failed", f"{what}: the worker crashed:\n{log}"
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


def test_a_command_that_fails_without_end_fills_no_disk(plane: ControlPlane, start: Start) -> None:
    with unaffected(plane, start):
        hostile = HostileSession(plane)
        # the same piece of the arena each time: known already, so that all but one of them fail
        body = struct.pack("<QQ", ARENA_ADDRESS, min(ARENA_CHUNK, hostile.arena_bytes))
        sent = hostile.send_often(ARENA_REGISTER, NO_LANE, body, 3.0)
        log = plane.folder / "log" / "session" / f"{hostile.id}.log"
        print(f"{sent} commands, {log.stat().st_size} bytes of log")
        assert sent > 1000
        assert log.stat().st_size < 100_000
        hostile.close()


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_who_dies_behind_a_kernel_without_end_gives_everything_back(
    plane: ControlPlane, start: Start, seen: Callable[..., Traces], channel: str
) -> None:
    """The worker's threads wait for the GPU then, and none of them hears of the end."""
    application = start(channel)
    traces = seen()
    assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    assert application.ask(f"flood {FLOOD}") == "flood: ok"
    time.sleep(2)  # until the gate is full
    began = time.monotonic()
    application.signal(signal.SIGKILL)
    traces.wait_gone(f"death behind {FLOOD} launches over {channel}", began)
    [ended] = [s for s in plane.sessions("ended") if s["id"] in traces.sessions]
    assert ended["cause"] == "client-ended"


def test_a_session_at_its_limit_of_threads_goes_on_or_ends_with_a_reason(tmp_path: Path) -> None:
    with running(tmp_path, server={"session_pids": "12"}) as plane:
        if "without memory and thread limits" in plane.log("server"):
            pytest.skip("no writable cgroup hierarchy on this machine")
        hostile = HostileSession(plane)
        source = random.Random(1)
        for lane in range(64):
            hostile.send_frame(source, DEVICE_IDLE, lane, bytes(8))
        time.sleep(1)
        assert plane.server
        assert plane.server.poll() is None
        [session] = plane.sessions() or plane.sessions("ended")
        assert "killed or crashed" not in str(session.get("reason"))
        hostile.close()


@contextlib.contextmanager
def over_tcp(plane: ControlPlane) -> Iterator[tuple[str, socket.socket]]:
    """A session by its id, and its connection, which only carries what the test sends."""
    answer = plane.rest.post("/sessions", json={"gmem_mib": 64, "ratio_percent": 10})
    assert answer.status_code in (200, 201), answer.text
    opened = answer.json()
    with socket.create_connection((opened["address"], int(opened["port"])), 10) as connected:
        connected.sendall(pack_open_session(key=opened["key"], channel=ChannelKind.TCP))
        status, number, message = unpack_open_reply(read_stream(connected, 512))
        assert status == 0, message
        yield f"{number:016x}", connected


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_over_tcp_end_that_session_alone(
    plane: ControlPlane, start: Start, seed: int
) -> None:
    source = random.Random(seed)
    with unaffected(plane, start), over_tcp(plane) as (session, connected):
        traces = Traces.of(plane, 2)
        with contextlib.suppress(OSError):
            for _ in range(64):
                connected.sendall(source.randbytes(65536))
        ended_with_a_reason(plane, session, traces, f"random bytes over TCP, seed {seed}")


#: Of frames that say such a size and bring so much: what the session ends with.
LARGE_FRAMES = [
    (FILL_DEVICE, MAX_FRAME_BYTES + 8, 0, "no valid frame"),
    (COPY_TO_DEVICE, MAX_LARGE_FRAME_BYTES + 8, 0, "no valid frame"),
    (COPY_TO_DEVICE, MAX_LARGE_FRAME_BYTES - 4, 0, "no valid frame"),
    (COPY_TO_DEVICE, (1 << 32) - 8, 0, "no valid frame"),
    (COPY_TO_DEVICE, MAX_LARGE_FRAME_BYTES, MAX_LARGE_FRAME_BYTES, "does not have"),
    (COPY_TO_DEVICE, MAX_FRAME_BYTES + 8, MAX_FRAME_BYTES + 8, "does not have"),
    (COPY_TO_DEVICE, MAX_LARGE_FRAME_BYTES, MAX_FRAME_BYTES, "client"),
]


@pytest.mark.parametrize(("function", "size", "brings", "why"), LARGE_FRAMES)
def test_a_large_frame_over_tcp_ends_that_session_alone(
    plane: ControlPlane, start: Start, function: int, size: int, brings: int, why: str
) -> None:
    head = struct.pack("<IHHII", size, function, NO_LANE, 1, 1)
    with unaffected(plane, start), over_tcp(plane) as (session, connected):
        traces = Traces.of(plane, 2)
        connected.sendall(head + random.Random(size).randbytes(max(0, brings - len(head))))
        connected.shutdown(socket.SHUT_WR)
        reason = ended_with_a_reason(plane, session, traces, f"{brings} of {size} bytes")
        assert why in reason


def test_large_frames_that_never_end_cost_their_own_sessions_alone(
    plane: ControlPlane, start: Start
) -> None:
    head = struct.pack("<IHHII", MAX_LARGE_FRAME_BYTES, COPY_TO_DEVICE, NO_LANE, 1, 1)
    with unaffected(plane, start), contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(over_tcp(plane)) for _ in range(4)]
        traces = Traces.of(plane, 1 + len(waiting))
        for _, connected in waiting:
            connected.sendall(head + bytes(MAX_FRAME_BYTES))
        assert start().ask("compute") == "compute: wrong 0 of 1000"
        for session, connected in waiting:
            connected.close()
            ended_with_a_reason(plane, session, traces, "a frame that nobody ends")
