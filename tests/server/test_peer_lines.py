# SPDX-License-Identifier: Apache-2.0
"""What peers do fills no log: lines are limited, summed up, short; files and screen are bounded."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.config import peer_lines
from sluice.config.logs import (
    OF_LIBRARIES,
    SCREEN_BURST_LINES,
    SCREEN_LINES_PER_SECOND,
    LogFile,
    OfLibraries,
    Screen,
)
from sluice.config.metric_families import Samples
from sluice.config.peer_lines import PeerLines


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(record.getMessage())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    log = logging.getLogger("test.peers")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(kept)
    yield kept
    log.removeHandler(kept)


@pytest.fixture
def lines(kept: Kept, clock: Clock) -> PeerLines:
    return PeerLines(logging.getLogger("test.peers"), clock)


def test_what_one_peer_repeats_is_summed_up(lines: PeerLines, kept: Kept, clock: Clock) -> None:
    for _ in range(1239):
        lines.warning("no key", "10.0.0.9", "refused %s: no key", "10.0.0.9")
    assert kept.lines == ["refused 10.0.0.9: no key"] * peer_lines.MOST_OF_PEER
    clock.seconds += peer_lines.WINDOW_SECONDS
    lines.sum_up()
    assert kept.lines[peer_lines.MOST_OF_PEER :] == [
        "… 1,234 more of this kind in the last 60 s: no key (10.0.0.9: 1,234)"
    ]
    assert kept.records[-1].levelno == logging.WARNING
    lines.sum_up()
    assert len(kept.lines) == peer_lines.MOST_OF_PEER + 1, "a sum is told once"


def test_many_peers_share_the_lines_of_a_kind(lines: PeerLines, kept: Kept, clock: Clock) -> None:
    for number in range(100_000):
        lines.info("no key", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "refused")
    assert len(kept.lines) == peer_lines.MOST_OF_KIND
    [window] = lines._windows._windows.values()
    assert len(window.left_out) + len(window.written) <= (
        peer_lines.MOST_PEERS + 1 + peer_lines.MOST_OF_KIND
    ), "peers that are remembered are bounded"
    clock.seconds += peer_lines.WINDOW_SECONDS
    lines.info("something else", "10.0.0.1", "another line tells what was left out, too")
    assert len(kept.lines) == peer_lines.MOST_OF_KIND + 2
    assert f"{100_000 - peer_lines.MOST_OF_KIND:,} more" in kept.lines[-2]
    assert "others: " in kept.lines[-2]


def test_another_peer_and_another_kind_still_have_their_lines(
    lines: PeerLines, kept: Kept, clock: Clock
) -> None:
    for _ in range(1000):
        lines.info("no key", "10.0.0.9", "rubbish")
    lines.info("no key", "10.0.0.8", "another peer")
    lines.info("no TLS", "10.0.0.9", "another kind")
    assert kept.lines[-2:] == ["another peer", "another kind"]
    clock.seconds += peer_lines.WINDOW_SECONDS
    lines.info("no key", "10.0.0.9", "a minute later")
    assert kept.lines[-1] == "a minute later"


def test_kinds_are_bounded_and_counted(lines: PeerLines) -> None:
    for number in range(1000):
        lines.info(f"kind {number}", "10.0.0.9", "a line")
    assert len(lines.counts) == peer_lines.MOST_KINDS + 1
    assert lines.counts.total() == 1000
    samples = Samples((peer_lines.FAMILY,))
    lines.fill(samples)
    [family] = samples.found()
    assert sum(sample.value for sample in family.samples) == 1000


def test_what_a_peer_sent_stays_one_short_line(lines: PeerLines, kept: Kept) -> None:
    lines.info("a kind", "10.0.0.9", "it said %s", "a\n2026 INFO sluice: forged\x1b[2J" + "x" * 999)
    [line] = kept.lines
    assert "\n" not in line
    assert "\x1b" not in line
    assert "a\\n2026 INFO sluice: forged\\x1b[2J" in line
    assert len(line) <= peer_lines.MOST_CHARACTERS + 50


def test_a_line_that_is_not_written_is_not_formatted(lines: PeerLines, kept: Kept) -> None:
    class Counted:
        asked = 0

        def __str__(self) -> str:
            Counted.asked += 1
            return "text"

    for _ in range(100):
        lines.info("a kind", "10.0.0.9", "%s", Counted())
    assert Counted.asked == len(kept.lines) == peer_lines.MOST_OF_PEER


def write(handler: logging.Handler, text: str) -> None:
    handler.handle(logging.LogRecord("test", logging.INFO, "", 0, text, None, None))


def test_a_log_file_and_its_older_ones_have_a_size(tmp_path: Path, clock: Clock) -> None:
    handler = LogFile(tmp_path / "server.log", 10_000, 2, clock)
    for number in range(1000):
        write(handler, f"{number:03d} {'x' * 95}")
    handler.close()
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["server.log", "server.log.1", "server.log.2"]
    assert all(path.stat().st_size <= 10_100 for path in tmp_path.iterdir())
    newest = (tmp_path / "server.log").read_text().splitlines()
    before = (tmp_path / "server.log.1").read_text().splitlines()
    assert newest[-1].startswith("999 ")
    assert int(before[-1][:3]) + 1 == int(newest[0][:3]), "no line is lost between two files"


def test_a_log_file_that_is_there_counts(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "server.log"
    path.write_text("x" * 10_000)
    handler = LogFile(path, 10_000, 1, clock)
    write(handler, "after a restart")
    handler.close()
    assert path.read_text() == "after a restart\n"
    assert len((tmp_path / "server.log.1").read_text()) == 10_000


def test_a_log_file_is_followed_by_logrotate_too(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "server.log"
    handler = LogFile(path, 0, 1, clock)
    write(handler, "one")
    path.rename(tmp_path / "moved")
    clock.seconds += 1
    write(handler, "two")
    handler.close()
    assert path.read_text() == "two\n"


def test_the_screen_has_a_rate(clock: Clock) -> None:
    stream = io.StringIO()
    screen = Screen(stream, clock)
    for _ in range(int(SCREEN_BURST_LINES) + 500):
        write(screen, "a line")
    assert len(stream.getvalue().splitlines()) == SCREEN_BURST_LINES
    clock.seconds += 1
    for _ in range(500):
        write(screen, "a later line")
    told = stream.getvalue().splitlines()[int(SCREEN_BURST_LINES) :]
    assert told[0] == "500 lines before this one are left out here"
    assert len(told) == SCREEN_LINES_PER_SECOND + 1


def test_what_libraries_say_of_peers_is_limited_too(
    lines: PeerLines, kept: Kept, clock: Clock
) -> None:
    handler = OfLibraries(lines, [kept])
    for _ in range(1000):
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Bad %s", ("x",), None)
        handler.handle(record)
    assert kept.lines == ["Bad x"] * peer_lines.MOST_OF_PEER * OF_LIBRARIES
    clock.seconds += peer_lines.WINDOW_SECONDS
    lines.sum_up()
    assert "980 more of this kind" in kept.lines[-1]
