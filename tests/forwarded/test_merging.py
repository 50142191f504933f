# SPDX-License-Identifier: Apache-2.0
"""Programs that repeat themselves, with and without merged launches: the same, bit for bit."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from static_pool import StaticPool, build_programs

PROGRAMS = Path(__file__).resolve().parents[2] / "tests" / "programs"
MERGED = re.compile(r"session ended: .* merged=(\d+) in (\d+) graphs")
SECONDS = 30


@pytest.fixture(scope="session")
def repeats() -> Path:
    return build_programs("repeats") / "repeats"


def run(pool: StaticPool, program: Path, argument: str, how: str) -> str:
    done = subprocess.run(
        [str(program), *argument.split()],
        env=pool.environment(SLUICE_MERGE=how),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def merged(folder: Path, sessions: int) -> list[int]:
    """How many commands of each session graphs stood for, as their workers' last words say."""
    until = time.monotonic() + SECONDS
    while True:
        logs = "".join(f.read_text(errors="replace") for f in (folder / "log").rglob("*.log"))
        found = [int(count) for count, _ in MERGED.findall(logs)]
        if len(found) >= sessions:
            return found
        assert time.monotonic() < until, logs
        time.sleep(0.05)


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "TCP"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_results_are_the_same_bit_for_bit(
    tmp_path: Path, repeats: Path, seed: int, tcp: bool
) -> None:
    with StaticPool(tmp_path, tcp=tcp) as pool:
        plain = run(pool, repeats, str(seed), "off")
        forced = run(pool, repeats, str(seed), "force")
        assert forced == plain
        counts = sorted(merged(tmp_path, 2))
    assert counts[0] == 0
    assert counts[1] > 0


def test_what_merges_by_itself_is_the_same(tmp_path: Path, repeats: Path) -> None:
    with StaticPool(tmp_path) as pool:
        expected = (PROGRAMS / "expected" / "repeats.out").read_text()
        assert run(pool, repeats, "1", "auto") == expected


@pytest.mark.parametrize("name", ["graphs", "capture_errors", "other_streams", "host_callback"])
def test_what_no_piece_goes_over_is_as_ever(tmp_path: Path, name: str) -> None:
    program = build_programs(name) / name
    with StaticPool(tmp_path) as pool:
        assert run(pool, program, "", "force") == run(pool, program, "", "off")


def test_an_unknown_word_is_refused_by_name(tmp_path: Path, repeats: Path) -> None:
    with StaticPool(tmp_path) as pool:
        done = subprocess.run(
            [str(repeats), "1"],
            env=pool.environment(SLUICE_MERGE="sometimes"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert "SLUICE_MERGE" in done.stderr
