# SPDX-License-Identifier: Apache-2.0
"""Programs as their users start them: what they ask for, how they wait, give way and are resized.

Real controller, server, worker and client library; the programs find our libcuda.so.1 by the
loader's path, as under `sluice run`.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import job_process
import pytest
from control_plane import ControlPlane, native_worker, wait_for
from forks import run_command
from job_process import JobProcess

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(native_worker() is None, reason="the native part is not built"),
    pytest.mark.control_plane(
        pool={"waiting_line_seconds": 0.3, "job_linger_seconds": 60},
        projects={"users": f"{os.getuid()}=default vision"},
    ),
]
OUT_OF_MEMORY = "2"
ALL = {"SLUICE_RATIO": "100", "SLUICE_GMEM": "256"}


def variables(plane: ControlPlane, **more: str) -> dict[str, str]:
    ours = {
        "HOME": str(plane.folder),
        "PYTHONPATH": str(ROOT / "python"),
        "SLUICE_LIBRARIES": str(find_native("libcuda.so.1").parent),
    }
    return plane.program_environment(**{**ours, **more})


def sluice(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(*words, environment=variables(plane))


# what is asked for


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_what_sluice_run_is_told_reaches_the_pool(plane: ControlPlane, channel: str) -> None:
    model = plane.rest.get("/gpus").json()["gpus"][0]["model"]
    program = JobProcess(
        variables(plane, SLUICE_CHANNEL=channel),
        *(sys.executable, "-m", "sluice.guest_runtime", "run"),
        *("--project", "vision", "--priority=7", "--gmem", "64", "--ratio", "10", "--vgpu", "2"),
        *("--same-gpu", "--mode", "on-demand", "--gpu-model", model, "--wait", "0", "--"),
    )
    assert program.first == "ready", program.errors()
    [grant] = plane.grants()
    assert (grant["project"], grant["priority"], grant["mode"]) == ("vision", 7, "on-demand")
    assert [vgpu["memory_mib"] for vgpu in grant["vgpus"]] == [64, 64]
    assert len({vgpu["gpu"] for vgpu in grant["vgpus"]}) == 1
    assert len(program.do("devices").split()) == 2
    assert program.do("alloc 32") == "0"
    program.quit()


@pytest.mark.parametrize("channel", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SLUICE_PROJECT", "a/b", "letters, digits"),
        ("SLUICE_LABELS", "rack", "NAME=VALUE"),
        ("SLUICE_LABELS", "rack=r1", "rack=r1"),
        ("SLUICE_GPU_MODEL", "h200", "h200"),
        ("SLUICE_GPU_ARCHITECTURE", "sm_1", "sm_1"),
        ("SLUICE_MODE", "mine", "auto, reserved, on-demand"),
        ("SLUICE_MODE", "reserved", "no reservation"),
        ("SLUICE_PREEMPT", "1", "no right to preempt"),
    ],
)
def test_what_cannot_be_had_is_said(
    plane: ControlPlane, channel: str, variable: str, value: str, said: str
) -> None:
    wanted = {variable: value, "SLUICE_CHANNEL": channel, "SLUICE_WAIT": "0"}
    program = JobProcess(variables(plane, **wanted))
    assert program.first.startswith("failed")
    assert said in program.errors()


# waiting


def test_a_program_waits_with_a_line_that_tells_its_position(plane: ControlPlane) -> None:
    holder = JobProcess(variables(plane, **ALL))
    waiting = [
        subprocess.Popen(
            [sys.executable, job_process.__file__, "0"],
            env=variables(plane, **ALL),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    wait_for(lambda: plane.rest.get("/queue").json()["total"] == 2)
    by_line = {}
    for process in waiting:
        assert process.stderr
        while " of 2 in the queue" not in (line := process.stderr.readline()):
            assert "position 1 of 1" in line, "the first was told so until the other came"
        assert line.startswith("sluice: waiting for 1 vGPU of 256 MiB and 100 %: position ")
        assert process.stderr.readline() == line, "the same is said again after a while"
        by_line[line.partition("position ")[2][:6]] = process
    assert sorted(by_line) == ["1 of 2", "2 of 2"]
    holder.quit()
    ahead, behind = by_line["1 of 2"], by_line["2 of 2"]
    assert ahead.stdout
    assert ahead.stdout.readline() == "ready\n"
    assert behind.stderr
    while "position 1 of 1" not in (line := behind.stderr.readline()):
        assert "position 2 of 2" in line, line
    ahead.communicate("quit\n", timeout=60)
    assert behind.stdout
    assert behind.stdout.readline() == "ready\n"
    behind.communicate("quit\n", timeout=60)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_program_that_will_not_wait_fails_at_once(plane: ControlPlane, channel: str) -> None:
    holder = JobProcess(variables(plane, **ALL))
    refused = JobProcess(variables(plane, **ALL, SLUICE_CHANNEL=channel, SLUICE_WAIT="0"))
    assert refused.first == "failed 46"
    said = refused.errors()
    assert "every GPU that could give it is in use now" in said
    assert "position" not in said
    holder.quit()


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_program_waits_as_long_as_it_says(plane: ControlPlane, channel: str) -> None:
    holder = JobProcess(variables(plane, **ALL))
    refused = JobProcess(variables(plane, **ALL, SLUICE_CHANNEL=channel, SLUICE_WAIT="1"))
    assert refused.first == "failed 46"
    assert "still at position 1 after 1 s" in refused.errors()
    assert holder.do("alloc 1") == "0"
    holder.quit()


# giving way


def test_who_is_preempted_ends_with_an_error_and_the_other_runs(plane: ControlPlane) -> None:
    plane.rest.put("/quotas/vision", json={"may_preempt": True, "max_priority": 5})
    victim = JobProcess(variables(plane, **ALL))
    [lost] = plane.grants()
    urgent = JobProcess(
        variables(plane, **ALL, SLUICE_PROJECT="vision", SLUICE_PREEMPT="1", SLUICE_PRIORITY="5")
    )
    assert urgent.first == "ready"
    assert int(victim.do("alloc 1")) in (46, 719, 802)
    ended = plane.rest.get(f"/grants/{lost['id']}").json()
    assert ended["state"] == "ended"
    assert ended["reason"].startswith("preempted: request ")
    assert ended["cause"] == "preempted"
    assert "of priority 5 (project vision) takes the room of priority 0" in ended["reason"]
    [session] = plane.sessions("ended")
    log = plane.rest.get(f"/sessions/{session['id']}/log").text
    assert "preempted: request" in log
    victim.kill()
    high = JobProcess(variables(plane, **ALL, SLUICE_PROJECT="vision", SLUICE_PRIORITY="6"))
    assert high.first == "failed 800"
    assert "priority 6 (SLUICE_PRIORITY)" in high.errors()
    urgent.quit()


# resizing


def test_compute_is_resized_while_a_program_runs_and_memory_is_not(plane: ControlPlane) -> None:
    program = JobProcess(variables(plane, SLUICE_GMEM="256", SLUICE_RATIO="20"))
    [grant] = plane.grants()
    done = sluice(plane, "grant", "resize", grant["id"], "--compute", "60")
    assert done.returncode == 0, done.stderr
    [grant] = plane.grants()
    assert grant["vgpus"][0]["compute_percent"] == 60
    log = plane.rest.get(f"/sessions/{grant['sessions'][0]}/log").text
    assert "resized: 256 MiB 60 %" in log
    refused = sluice(plane, "grant", "resize", grant["id"], "--memory", "512")
    assert refused.returncode == 1
    assert "memory can be changed only while none does" in refused.stderr
    assert plane.grants()[0]["vgpus"][0]["memory_mib"] == 256
    assert program.do("info").split()[1] == "256"
    too_much = sluice(plane, "grant", "resize", grant["id"], "--compute", "101")
    assert too_much.returncode == 1
    assert program.do("alloc 100") == "0"
    program.quit()


@pytest.mark.parametrize("mib", [512, 128])
def test_memory_is_resized_while_nothing_of_the_job_runs(plane: ControlPlane, mib: int) -> None:
    job = variables(plane, SLUICE_JOB=secrets.token_hex(16), SLUICE_GMEM="256")
    first = JobProcess(job)
    assert first.do("info").split()[1] == "256"
    assert first.do("alloc 300") == OUT_OF_MEMORY
    first.quit()
    wait_for(lambda: not plane.sessions())
    [grant] = plane.grants()
    done = sluice(plane, "grant", "resize", grant["id"], "--memory", str(mib))
    assert done.returncode == 0, done.stderr
    second = JobProcess(job)
    assert second.first == "ready"
    assert second.do("info").split()[1] == str(mib)
    assert second.do("alloc 300") == ("0" if mib == 512 else OUT_OF_MEMORY)
    assert plane.grants()[0]["id"] == grant["id"]
    second.quit()


# who is charged


def test_usage_is_what_the_grants_lasted_times_what_they_held(plane: ControlPlane) -> None:
    sizes: list[dict[str, Any]] = [
        {"SLUICE_GMEM": "128", "SLUICE_RATIO": "10"},
        {"SLUICE_GMEM": "256", "SLUICE_RATIO": "20", "SLUICE_PROJECT": "vision"},
        {"SLUICE_GMEM": "64", "SLUICE_RATIO": "5", "SLUICE_PROJECT": "vision"},
    ]
    programs = [JobProcess(variables(plane, **size)) for size in sizes]
    for program in programs:
        assert program.do("alloc 8") == "0"
        program.quit()
    wait_for(lambda: not plane.grants())
    by_hand: dict[str, list[float]] = {}
    for grant in plane.rest.get("/grants", params={"state": "all"}).json()["grants"]:
        begin, end = (datetime.fromisoformat(grant[key]) for key in ("created", "ended"))
        seconds = (end - begin).total_seconds()
        sums = by_hand.setdefault(grant["project"], [0.0, 0.0, 0.0])
        for vgpu in grant["vgpus"]:
            for place, amount in enumerate((1, vgpu["memory_mib"], vgpu["compute_percent"])):
                sums[place] += seconds * amount
    exported = sluice(plane, "usage", "-o", "csv")
    charged: dict[str, list[float]] = {}
    for row in csv.DictReader(io.StringIO(exported.stdout)):  # a row for each hour
        sums = charged.setdefault(row["project"], [0.0, 0.0, 0.0])
        for place, key in enumerate(
            ("vgpu_seconds", "memory_mib_seconds", "compute_percent_seconds")
        ):
            sums[place] += float(row[key])
    assert charged.keys() == by_hand.keys() == {"default", "vision"}
    for project, sums in by_hand.items():
        assert charged[project] == pytest.approx(sums, rel=0.02)
