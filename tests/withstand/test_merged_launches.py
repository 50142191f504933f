# SPDX-License-Identifier: Apache-2.0
"""Sessions whose launches are merged are suspended, cut off and killed while commands are held.

Real controller, server and workers on the software GPU. The program is tests/programs/repeats.cu,
which prints the sum of all that it has computed, turn by turn; merging is forced, so that commands
are held most of the time. No test goes by how long something takes.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, running, wait_for
from scrapes import scrape
from static_pool import build_programs

from .traces import LIMIT

CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])
SUSPENSIONS, CUTS = 8, 40
SEED, TURNS, MANY_TURNS = "4", "60", "900"
SUSPEND = {"swap_mib": 64, "drain_seconds": 60}


@pytest.fixture(scope="module")
def repeats() -> Path:
    return build_programs("repeats") / "repeats"


@contextmanager
def started(
    plane: ControlPlane, repeats: Path, channel: str, how: str, turns: str = TURNS, **more: str
) -> Iterator[subprocess.Popen[str]]:
    """The program; it is killed if it has not ended."""
    environment = plane.program_environment(
        SLUICE_CHANNEL=channel, SLUICE_GMEM="64", SLUICE_MERGE=how, SLUICE_STATS="1", **more
    )
    program = subprocess.Popen(
        [repeats, SEED, turns],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def plain(plane: ControlPlane, repeats: Path, turns: str = TURNS) -> str:
    """What it prints without merging."""
    with started(plane, repeats, "shm", "off", turns) as program:
        out, said = program.communicate(timeout=300)
    assert program.returncode == 0, said
    return out


def is_same(program: subprocess.Popen[str], expected: str) -> None:
    """It ends well, was merged, and has computed the same."""
    out, said = program.communicate(timeout=300)
    assert program.returncode == 0, said
    assert out == expected
    assert " commands merged into " in said
    assert "sluice: 0 commands merged" not in said


def grant_of(plane: ControlPlane, program: subprocess.Popen[str]) -> str | None:
    found = [s["grant_id"] for s in plane.sessions() if s["client_pid"] == program.pid]
    return str(found[0]) if found else None


def state_of(plane: ControlPlane, grant: str, program: subprocess.Popen[str]) -> str:
    """Of its suspension; "over": the program is."""
    answer = plane.rest.get(f"/grants/{grant}")
    if answer.status_code != 200 or program.poll() is not None:
        return "over"
    shown = answer.json()["suspension"]
    return str(shown["state"]) if shown else "running"


@pytest.mark.chaos
@CHANNELS
@pytest.mark.control_plane(suspend=SUSPEND)
def test_suspended_again_and_again_it_computes_the_same(
    plane: ControlPlane, repeats: Path, channel: str
) -> None:
    expected = plain(plane, repeats, MANY_TURNS)
    with started(plane, repeats, channel, "force", MANY_TURNS) as program:
        grant = wait_for(lambda: grant_of(plane, program), LIMIT, "its session")
        suspended = 0
        while suspended < SUSPENSIONS and program.poll() is None:
            if plane.rest.post(f"/grants/{grant}/suspend").status_code != 202:
                time.sleep(0.01)  # it has only just begun, or is over
                continue
            wait_for(
                lambda: state_of(plane, grant, program) in {"suspended", "over", "running"},
                LIMIT,
                "an end of stopping",
            )
            if state_of(plane, grant, program) != "suspended":
                continue
            suspended += 1
            assert plane.rest.post(f"/grants/{grant}/resume").status_code == 202
            wait_for(
                lambda: state_of(plane, grant, program) in {"running", "over"}, LIMIT, "it to go on"
            )
        is_same(program, expected)
    assert suspended > 0


def test_cut_off_again_and_again_it_computes_the_same(
    built: None, tmp_path: Path, repeats: Path
) -> None:
    server = {"advertise_addr": "127.0.0.2", "network_grace_seconds": 20}
    with (
        running(tmp_path, server=server) as plane,
        BreakingNetwork(plane.data_port) as network,
    ):
        expected = plain(plane, repeats)
        seed = 0
        while network.cuts < CUTS and seed < 10:
            network.cut_within(300_000, seed=seed)
            seed += 1
            with started(plane, repeats, "tcp", "force") as program:
                is_same(program, expected)
        assert network.cuts >= CUTS


@CHANNELS
def test_killed_while_commands_are_held_it_leaves_nothing(
    plane: ControlPlane, repeats: Path, channel: str
) -> None:
    for turns in (1, 7):
        with started(plane, repeats, channel, "force") as program:
            assert program.stdout is not None
            for _ in range(turns):
                assert program.stdout.readline()
            program.kill()
        wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")
    expected = plain(plane, repeats)
    with started(plane, repeats, channel, "force") as program:
        is_same(program, expected)


def test_two_that_share_a_gpu_compute_the_same(plane: ControlPlane, repeats: Path) -> None:
    expected = plain(plane, repeats)
    share = {"SLUICE_RATIO": "30"}
    with (
        started(plane, repeats, "shm", "force", **share) as one,
        started(plane, repeats, "tcp", "force", **share) as other,
    ):
        is_same(one, expected)
        is_same(other, expected)


@pytest.mark.control_plane(metrics={})
def test_metrics_count_each_command_once(plane: ControlPlane, repeats: Path) -> None:
    with started(plane, repeats, "shm", "force") as program:
        _, said = program.communicate(timeout=300)
    assert program.returncode == 0, said
    wait_for(lambda: not plane.grants(), LIMIT, "the grant's end")
    seen = wait_for(
        lambda: (
            found
            if (found := scrape(plane.metrics_url)).value(
                "sluice_server_sessions_ended_total", channel="shm"
            )
            else None
        ),
        LIMIT,
        "its last figures",
    )
    merged = seen.value("sluice_channel_merged_commands_total", channel="shm")
    left = seen.total("sluice_channel_left_commands_total")
    assert merged > 0
    assert seen.value("sluice_channel_merged_graphs_total", channel="shm") > 0
    assert merged + left == seen.value("sluice_channel_commands_total", channel="shm")
