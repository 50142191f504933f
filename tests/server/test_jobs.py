# SPDX-License-Identifier: Apache-2.0
"""Jobs with the real controller, server, workers and processes: shared, restarted, killed, refused.

Programs find our libcuda.so.1 by the loader's path, as under `sluice run`.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, native_worker, running, wait_for
from job_process import JobProcess

from sluice.config.native_files import find_native
from sluice.protocol.frames import LEDGER_HEADER_BYTES, LEDGER_KINDS, LEDGER_SLOTS, LedgerKind
from sluice.server.sessions.grant_ledgers import BYTES, GrantLedgers

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")
MIB = 128
OUT_OF_MEMORY = "2"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[ControlPlane]:
    pool = {"job_linger_seconds": 2, "job_sessions": 4}
    with running(tmp_path, pool=pool, server={"context_overhead_mib": 100}) as plane:
        yield plane


def variables(plane: ControlPlane, **more: str) -> dict[str, str]:
    ours = {
        "HOME": str(plane.folder),
        "PYTHONPATH": str(ROOT / "python"),
        "SLUICE_LIBRARIES": str(find_native("libcuda.so.1").parent),
        "SLUICE_GMEM": str(MIB),
        "SLUICE_WAIT": "10",
    }
    return plane.program_environment(**{**ours, **more})


@pytest.fixture(params=["shm", "tcp"])
def job(shared: ControlPlane, request: pytest.FixtureRequest) -> dict[str, str]:
    return variables(shared, SLUICE_JOB=secrets.token_hex(16), SLUICE_CHANNEL=request.param)


def granted_mib(plane: ControlPlane) -> int:
    return int(plane.rest.get("/gpus").json()["gpus"][0]["granted_mib"])


def test_two_processes_have_one_grant(shared: ControlPlane, job: dict[str, str]) -> None:
    one, other = JobProcess(job), JobProcess(job)
    assert (one.first, other.first) == ("ready", "ready")
    [grant] = shared.grants()
    assert len(grant["sessions"]) == 2
    assert grant["job"]
    assert job["SLUICE_JOB"] not in str(grant)
    assert {s["grant_id"] for s in shared.sessions()} == {grant["id"]}
    assert granted_mib(shared) == MIB + 2 * 100
    assert one.do("alloc 100") == "0"
    assert other.do("alloc 30") == OUT_OF_MEMORY
    assert other.free_mib() == 28
    assert one.do("devices") == other.do("devices")
    handle = one.do("export")
    assert other.do(f"open {handle}") == "0"
    assert one.do("write 9") == "0"
    assert other.do("read") == "09090909"
    one.kill()
    wait_for(lambda: other.free_mib() == MIB, message="the killed process's memory")
    wait_for(lambda: granted_mib(shared) == MIB + 100, message="its context's charge")
    assert other.quit() == 0
    wait_for(lambda: not shared.grants(), message="the grant to return")
    assert token_is_nowhere(shared, job["SLUICE_JOB"])


def token_is_nowhere(plane: ControlPlane, token: str) -> bool:
    files = [p for p in plane.folder.rglob("*") if p.is_file()]
    return not any(token.encode() in path.read_bytes() for path in files)


def test_it_outlives_a_restart_of_the_server(shared: ControlPlane, job: dict[str, str]) -> None:
    one, other = JobProcess(job), JobProcess(job)
    assert one.do("alloc 100") == "0"
    assert other.do("alloc 10") == "0"
    shared.stop("server", signal.SIGKILL)
    other.kill()
    wait_for(lambda: len(shared.session_worker_pids()) == 1, message="its worker to end")
    shared.start_server()
    wait_for(lambda: one.free_mib() == MIB - 100, message="what the dead process had")
    third = JobProcess(job)
    assert third.first == "ready"
    assert len({s["grant_id"] for s in shared.sessions()}) == 1
    assert third.free_mib() == MIB - 100, "the new server goes on with the old ledger"
    assert third.do("alloc 30") == OUT_OF_MEMORY
    assert third.do("alloc 28") == "0"
    assert one.free_mib() == 0
    assert one.quit() == third.quit() == 0
    wait_for(lambda: not shared.grants(), message="the grant to return")


def test_it_outlives_a_restart_of_the_controller(shared: ControlPlane, job: dict[str, str]) -> None:
    one = JobProcess(job)
    [before] = shared.grants()
    shared.stop("controller", signal.SIGKILL)
    shared.start_controller()
    wait_for(lambda: shared.node_state() == "up")
    other = JobProcess(job)
    assert other.first == "ready"
    [grant] = shared.grants()
    assert grant["id"] == before["id"]
    assert one.quit() == other.quit() == 0
    wait_for(lambda: not shared.grants(), message="the grant to return")


def test_a_job_has_no_more_sessions_than_configured(
    shared: ControlPlane, job: dict[str, str]
) -> None:
    members = [JobProcess(job) for _ in range(4)]
    assert [m.first for m in members] == ["ready"] * 4
    one_more = JobProcess(job)
    assert one_more.first == "failed 46"
    assert "job_sessions" in one_more.errors()
    for member in members:
        member.quit()


def test_the_operator_ends_a_job(shared: ControlPlane, job: dict[str, str]) -> None:
    one, other = JobProcess(job), JobProcess(job)
    [grant] = shared.grants()
    assert shared.rest.delete(f"/grants/{grant['id']}").status_code == 202
    wait_for(lambda: not shared.grants(), message="the grant to end")
    assert one.do("alloc 1") not in ("0", OUT_OF_MEMORY)
    one.kill()
    other.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_users_process_is_refused(shared: ControlPlane) -> None:
    job = variables(shared, SLUICE_JOB=secrets.token_hex(16))
    one = JobProcess(job)
    thief = shared.client(job=job["SLUICE_JOB"], uid=65534)
    assert thief.first["status"] == 800
    assert "belongs to another user" in thief.first["message"]
    assert "sluice run --share" in thief.first["message"]
    container = shared.client(job=job["SLUICE_JOB"], unshare=True)
    assert container.first["status"] == 800
    tcp = JobProcess({**job, "SLUICE_CHANNEL": "tcp"})
    assert tcp.first == "failed 800"
    assert "SLUICE_JOB" in tcp.errors()
    assert one.quit() == 0


class Launcher:
    """`sluice run --share` of a shell that starts what it is told to."""

    def __init__(self, plane: ControlPlane, *options: str, **more: str) -> None:
        prepared = variables(plane, **more)
        shell = [sys.executable, "-m", "sluice.guest_runtime", "run", "--share", *options]
        shell += ["sh", "-c", 'while read -r line; do eval "$line"; done']
        prepared.pop("LD_LIBRARY_PATH")
        self.process = subprocess.Popen(
            shell, env=prepared, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, line: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def run_one(self) -> str:
        """A process of the job from its beginning to its end."""
        program = Path(JobProcess.__module__.replace(".", "/")).name
        path = ROOT / "tests" / "harness" / f"{program}.py"
        return self.say(f"echo info | {sys.executable} {path} 0 | tail -1")

    def close(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(60)


def keeps_its_grant(plane: ControlPlane, seconds: float) -> None:
    """For longer than a job lingers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert plane.grants()
        time.sleep(0.1)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_between_its_processes_a_job_keeps_its_grant_while_the_launcher_lives(
    shared: ControlPlane, channel: str
) -> None:
    launcher = Launcher(shared, "--gmem", "64", "--processes", "2", SLUICE_CHANNEL=channel)
    assert launcher.run_one() == "64 64"
    [grant] = shared.grants()
    assert (grant["vgpus"][0]["memory_mib"], grant["job_processes"]) == (64, 2)
    assert granted_mib(shared) == 64 + 2 * 100
    keeps_its_grant(shared, 4)
    assert launcher.run_one() == "64 64"
    assert [g["id"] for g in shared.grants()] == [grant["id"]]
    assert launcher.close() == 0


def test_a_launcher_that_ends_takes_its_grant_with_it_at_once(tmp_path: Path) -> None:
    with running(tmp_path, pool={"job_linger_seconds": 600}) as plane:
        launcher = Launcher(plane)
        assert launcher.run_one()
        assert plane.grants()
        assert launcher.close() == 0
        wait_for(lambda: not plane.grants(), message="the grant to return without the linger")


def test_the_launchers_hold_outlives_server_and_controller(tmp_path: Path) -> None:
    # the linger is what a launcher on a busy machine has to come back in
    with running(tmp_path, pool={"job_linger_seconds": 10}) as plane:
        launcher = Launcher(plane)
        assert launcher.run_one()
        [grant] = plane.grants()
        for service in ("server", "controller"):
            plane.stop(service, signal.SIGKILL)
            getattr(plane, f"start_{service}")()
            wait_for(lambda: plane.node_state() == "up")
            keeps_its_grant(plane, 11)
        assert launcher.run_one()
        assert [g["id"] for g in plane.grants()] == [grant["id"]]
        launcher.close()
        wait_for(lambda: not plane.grants())


def test_a_killed_launcher_leaves_nothing_behind_its_last_process(shared: ControlPlane) -> None:
    launcher = Launcher(shared)
    path = ROOT / "tests" / "harness" / "job_process.py"
    assert launcher.say(f"sleep 1000 | {sys.executable} {path} 0 &") == "ready"
    [session] = shared.sessions()
    launcher.process.kill()
    launcher.process.wait()
    keeps_its_grant(shared, 3)
    os.kill(session["client_pid"], signal.SIGKILL)
    wait_for(lambda: not shared.grants(), message="the grant to return")
    wait_for(lambda: not shared.session_worker_pids())


def test_the_launcher_passes_signals_and_statuses_on(shared: ControlPlane) -> None:
    assert Launcher(shared).say("echo $SLUICE_JOB") != Launcher(shared).say("echo $SLUICE_JOB")
    launcher = Launcher(shared)
    launcher.say("trap 'exit 7' TERM; echo here")
    launcher.process.terminate()
    assert launcher.process.wait(60) == 7
    died = Launcher(shared)
    assert died.process.stdin
    died.process.stdin.write("kill -9 $$\n")
    assert died.close() == 128 + 9


def test_a_ledgers_page_is_as_workers_of_releases_have_it() -> None:
    page, _ = GrantLedgers().join("g")
    assert os.fstat(page).st_size == BYTES == 266240
    assert os.pread(page, 8, 0) == b"SLEDGER1"
    assert not any(os.pread(page, BYTES, 8))
    assert list(LedgerKind) == list(range(LEDGER_KINDS))


def test_ledgers_slots_are_cleared_and_pages_go_with_their_last_session() -> None:
    ledgers = GrantLedgers()
    page, slot = ledgers.join("g")
    same, other = ledgers.join("g")
    assert (same, slot, other) == (page, 0, 1)
    last_row = LEDGER_HEADER_BYTES + 8 * (127 * LEDGER_SLOTS + other)
    for place in (LEDGER_HEADER_BYTES + 8 * other, last_row, LEDGER_HEADER_BYTES):
        os.pwrite(page, b"\1" * 8, place)
    ledgers.leave("g", other)
    assert (
        os.pread(page, 8, LEDGER_HEADER_BYTES + 8 * other)
        == os.pread(page, 8, last_row)
        == bytes(8)
    )
    assert os.pread(page, 8, LEDGER_HEADER_BYTES) == b"\1" * 8
    assert ledgers.join("g") == (page, other)
    later: Any = GrantLedgers()
    later.adopt("g", 0, os.dup(page))
    later.adopt("g", 2, os.dup(page))
    os.pwrite(page, b"\1" * 8, LEDGER_HEADER_BYTES + 8 * 1)
    later.reconcile()
    assert os.pread(page, 8, LEDGER_HEADER_BYTES + 8 * 1) == bytes(8)
    assert os.pread(page, 8, LEDGER_HEADER_BYTES) == b"\1" * 8
    assert os.fstat(page).st_size == BYTES
    for made, slots in ((later, (0, 2)), (ledgers, (0, 1))):
        for each in slots:
            made.leave("g", each)
        assert len(made) == 0
