# SPDX-License-Identifier: Apache-2.0
"""Sessions of a release's clients are answered by today's worker as they were by the release's.

The client's part of a recording is played again, over each channel. Skipped where the native part
is not built.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_plane import native_worker

from sluice.protocol import frames
from sluice.server.sessions.open_session import parse_open_session

from .openings import opening_differences, read_request
from .recording.record_frames import SESSIONS
from .recording.stand_ins import has_compiler, stand_in_libraries
from .releases import NAMES, RELEASES, files_of_each
from .replay import data_of, load, replay, text_of
from .streams import NO_LANE
from .workers import Host

SESSIONS_OF_EACH = files_of_each("frames/*.json.xz")
CASES = [pytest.param(path, id=name) for name, path in SESSIONS_OF_EACH]

needs_worker = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What stands in for NVIDIA's on the node; empty: there is no compiler."""
    if not has_compiler():
        return ""
    return stand_in_libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def make_host(short_path: Path, libraries: str) -> Callable[[Path], Host]:
    def host(recording: Path) -> Host:
        with_libraries = "library_calls" in recording.name
        if with_libraries and not libraries:
            pytest.skip("there is no C compiler for what stands in for cuBLAS")
        return Host(short_path, libraries if with_libraries else "")

    return host


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_a_release_has_sessions_of_every_channel(release: Path) -> None:
    channels = {path.name.split("-")[0] for path in release.glob("frames/*.json.xz")}
    assert channels >= {"shm", "ivshmem", "tcp", "vsock", "relay"}
    assert channels <= SESSIONS.keys()


@needs_worker
@pytest.mark.parametrize("recording", CASES)
def test_a_recorded_session_is_answered_as_it_was(
    recording: Path, make_host: Callable[[Path], Host]
) -> None:
    assert replay(make_host(recording), load(recording)) == []


@pytest.mark.parametrize("recording", CASES)
def test_a_recorded_request_is_understood_as_it_was(recording: Path) -> None:
    request = data_of(load(recording)["request"])
    asked = parse_open_session(request)
    for name, value in read_request(request).items():
        if hasattr(asked, name):
            assert getattr(asked, name) == value, name
    fixed = request[: frames.OpenSession.BYTES]
    assert frames.OpenSession.unpack(fixed).pack() == fixed


# that a difference is seen


def vector_add(channel: str) -> Path:
    return next(p for _, p in SESSIONS_OF_EACH if p.name == f"{channel}-vector_add.json.xz")


def answered(recorded: dict[str, Any]) -> Any:
    """The last answer with a body; notices answer nothing."""
    found = [a for step in recorded["steps"] for a in step["then"].get("answers", ())]
    return [a for a in found if a.get("body") and a["lane"] != NO_LANE][-1]


@needs_worker
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_another_answer_is_seen(channel: str, make_host: Callable[[Path], Host]) -> None:
    path = vector_add(channel)
    recorded = load(path)
    answer = answered(recorded)
    body = bytearray(data_of(answer["body"]))
    body[-9] ^= 1
    answer["body"] = text_of(bytes(body))
    found = replay(make_host(path), recorded)
    assert any(": function " in each for each in found), found


@needs_worker
def test_another_status_is_seen(make_host: Callable[[Path], Host]) -> None:
    path = vector_add("shm")
    recorded = load(path)
    answered(recorded)["status"] = 700
    assert any("recorded 700" in each for each in replay(make_host(path), recorded))


def test_a_record_that_lies_elsewhere_is_seen() -> None:
    opening = data_of(load(vector_add("shm"))["opening"])
    assert opening_differences(opening, opening) == []
    assert opening_differences(opening, opening[:520] + bytes(8) + opening[520:])
    other = bytearray(opening)
    (window,) = struct.unpack_from("<Q", other, 512 + 64)
    struct.pack_into("<Q", other, 512 + 64, window + (1 << 40))
    assert opening_differences(opening, bytes(other)) == [
        f"the session's record has device 0 window_begin {window + (1 << 40)}, recorded {window}"
    ]
