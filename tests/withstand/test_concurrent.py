# SPDX-License-Identifier: Apache-2.0
"""Sessions of a project that run at once: whom they share a GPU and a daemon with, how they end.

Real controller, server and workers on the software GPU. NVIDIA's MPS cannot run without a GPU of
NVIDIA's: in its place is FakeMpsControl, of which the software GPU's processes are clients. What
MPS does on a card is tests/gpu/at_once.py's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, running, wait_for

from .at_work import Start, goes_on, worked, worker_of, working
from .prompted import ENDLESS, Prompted
from .traces import LIMIT

HARNESS = Path(__file__).parents[1] / "harness"
CONTROL = "nvidia-cuda-mps-control"
BEGUN_SECONDS = 0.2  # of the GPU that a kernel has used once it has begun


@pytest.fixture
def plane(built: None) -> Iterator[ControlPlane]:
    """A host that has MPS, whose root works for projects a and b."""
    if os.geteuid() != 0:
        pytest.skip("MPS has a user for each project, which only root can give")
    # pytest's own folders are closed to other users
    with tempfile.TemporaryDirectory(prefix="sluice-mps-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(HARNESS / "fake_mps_control.py", folder / CONTROL)
        throttle = {"mps_control": folder / CONTROL, "mps_idle_seconds": 1}
        projects = {"users": "0 = a b"}
        with running(folder, throttle=throttle, projects=projects) as control_plane:
            yield control_plane
            for daemon in daemons(control_plane).values():
                with suppress(ProcessLookupError):
                    os.kill(daemon["pid"], signal.SIGKILL)


def daemons(plane: ControlPlane) -> dict[str, dict[str, Any]]:
    """The records of the host's daemons, by project."""
    found = []
    for path in (plane.folder / "run" / "mps").glob("*.json"):
        with suppress(FileNotFoundError):  # it has just ended
            found.append(json.loads(path.read_text()))
    return {record["project"]: record for record in found}


def commands(plane: ControlPlane, project: str) -> list[dict[str, Any]]:
    """What a project's daemon has been told."""
    folder = plane.folder / "run" / "mps" / daemons(plane)[project]["id"]
    return [json.loads(line) for line in (folder / "commands.log").read_text().splitlines()]


def at_once(start: Start, percent: int = 25, project: str = "a", **more: str) -> Prompted:
    """A program that works, at once with others of its project."""
    return working(start, percent, SLUICE_SHARING="concurrent", SLUICE_PROJECT=project, **more)


def idle(start: Start) -> Prompted:
    """A program of project a that has nothing under way: what it launches next begins at once."""
    return start(SLUICE_RATIO="25", SLUICE_SHARING="concurrent", SLUICE_PROJECT="a")


def begin_endless(plane: ControlPlane, program: Prompted) -> None:
    """Gives the GPU a kernel without end, and waits until it has begun."""
    (session,) = [s for s in plane.sessions() if s["client_pid"] == program.pid]

    def used() -> float:
        vgpus = plane.rest.get("/vgpus").json()["vgpus"]
        return sum(v["gpu_seconds"] or 0 for v in vgpus if session["id"] in v["sessions"])

    before = used()
    assert program.ask(f"launch {ENDLESS}") == "launch: ok"
    wait_for(lambda: used() > before + BEGUN_SECONDS, LIMIT, "the kernel's begin")


def live(plane: ControlPlane) -> list[dict[str, Any]]:
    """The grants that there are."""
    return [grant for grant in plane.grants() if grant["state"] == "live"]


def real_uid(pid: int) -> int:
    """Whose process it is, also of one that nobody may look into."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])


def test_a_project_has_a_daemon_and_a_gpu_has_a_project(plane: ControlPlane, start: Start) -> None:
    one, other = at_once(start), at_once(start)
    goes_on(one)
    goes_on(other)
    (daemon,) = daemons(plane).values()
    workers = {worker_of(plane, one), worker_of(plane, other)}
    assert {real_uid(pid) for pid in (daemon["pid"], *workers)} == {daemon["uid"]}
    (gpu,) = plane.rest.get("/gpus").json()["gpus"]
    assert gpu["concurrent_project"] == "a"
    assert {v["sharing"] for g in plane.grants() for v in g["vgpus"]} == {"concurrent"}
    # nobody else is placed beside them, by MPS or by turns
    for wanted in (
        {"SLUICE_PROJECT": "a"},
        {"SLUICE_PROJECT": "b", "SLUICE_SHARING": "concurrent"},
    ):
        refused = start(opened=False, SLUICE_RATIO="10", SLUICE_WAIT="0", **wanted)
        assert "error" in refused.ask("open")
        assert "in use now" in refused.errors()
    waiting = start(
        opened=False,
        SLUICE_RATIO="10",
        SLUICE_PROJECT="b",
        SLUICE_SHARING="concurrent",
        SLUICE_WAIT="-1",
    )
    waiting.say("open")
    assert waiting.is_silent(1)
    one.quit()
    other.quit()
    assert waiting.answer() == "open: ok"
    assert daemons(plane)["b"]["uid"] != daemon["uid"]
    # the other project's is over, as it has no session
    wait_for(lambda: set(daemons(plane)) == {"b"}, LIMIT, "the end of the idle daemon")


def test_the_share_is_fixed_and_not_too_small(plane: ControlPlane, start: Start) -> None:
    small = start(opened=False, SLUICE_RATIO="7", SLUICE_SHARING="concurrent")
    assert "error" in small.ask("open")
    assert "8 % at least" in small.errors()
    at_once(start, 25)
    (grant,) = plane.grants()
    answer = plane.rest.patch(f"/grants/{grant['id']}", json={"compute_percent": 50})
    assert answer.status_code == 409, answer.text
    assert "fixed when a session begins" in answer.json()["detail"]


def test_a_client_is_ended_by_mps_before_it_is_killed(plane: ControlPlane, start: Start) -> None:
    endless, other = idle(start), at_once(start)
    begin_endless(plane, endless)
    pid = worker_of(plane, endless)
    endless.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), LIMIT, "the end of the worker")
    said = [c for c in commands(plane, "a") if c["command"][0] == "terminate_client"]
    assert [c["command"][2] for c in said] == [str(pid)]
    assert pid in said[0]["clients"], "it lived then"
    goes_on(other)


def test_one_that_has_done_its_work_just_ends(plane: ControlPlane, start: Start) -> None:
    one, other = at_once(start), at_once(start)
    pid = worker_of(plane, one)
    one.quit()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), LIMIT, "the end of the worker")
    assert not [c for c in commands(plane, "a") if c["command"][0] == "terminate_client"]
    goes_on(other)


def test_a_fault_ends_its_session_with_the_reason(plane: ControlPlane, start: Start) -> None:
    faulty, other = at_once(start), at_once(start)
    (session,) = [s for s in plane.sessions() if s["client_pid"] == faulty.pid]
    faulty.ask("illegal")
    wait_for(
        lambda: plane.rest.get(f"/sessions/{session['id']}").json()["cause"] == "concurrent-fault",
        LIMIT,
        lambda: str(plane.rest.get(f"/sessions/{session['id']}").json()),
    )
    assert "MPS" in plane.rest.get(f"/sessions/{session['id']}").json()["reason"]
    # the software GPU's contexts have nothing in common: what becomes of it is the card's to say
    goes_on(other)


def test_they_outlive_the_server_and_keep_their_daemon(plane: ControlPlane, start: Start) -> None:
    one = at_once(start)
    before = daemons(plane)
    plane.stop("server", signal.SIGKILL)
    goes_on(one)
    plane.start_server()
    other = at_once(start)
    goes_on(other)
    assert daemons(plane) == before
    endless = idle(start)
    pid = worker_of(plane, endless)
    begin_endless(plane, endless)
    endless.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), LIMIT, "the end of the worker")
    said = [c["command"] for c in commands(plane, "a")]
    assert ["terminate_client", str(before["a"]["pid"]), str(pid)] in said


def test_one_that_ends_while_no_server_runs_is_ended_by_the_next(
    plane: ControlPlane, start: Start
) -> None:
    endless, other = idle(start), at_once(start)
    pid = worker_of(plane, endless)
    begin_endless(plane, endless)
    plane.stop("server", signal.SIGKILL)
    endless.kill()
    goes_on(other, 20)
    assert Path(f"/proc/{pid}").exists(), "its work is under way"
    plane.start_server()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), LIMIT, "the end of the worker")
    said = [c for c in commands(plane, "a") if c["command"][0] == "terminate_client"]
    log = plane.log("server")
    assert [c["command"][2] for c in said if pid in c["clients"]] == [str(pid)], f"{said}\n{log}"
    goes_on(other)


def test_a_daemon_that_is_killed_is_replaced(plane: ControlPlane, start: Start) -> None:
    one = at_once(start)
    before = daemons(plane)["a"]
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: "a" not in daemons(plane), LIMIT, "its record to go")
    other = at_once(start)
    assert "a" in daemons(plane), plane.log("server")
    assert daemons(plane)["a"]["pid"] != before["pid"]
    goes_on(other)
    assert worked(one) > 0


def test_a_worker_that_does_not_reach_its_daemon_serves_nobody(
    plane: ControlPlane, start: Start
) -> None:
    at_once(start).quit()
    wait_for(lambda: not daemons(plane), LIMIT, "the end of the idle daemon")
    control = plane.folder / CONTROL
    whole = control.read_text()
    control.write_text(whole.replace('listening("control")', 'listening("elsewhere")'))
    program = start(
        opened=False, SLUICE_RATIO="25", SLUICE_SHARING="concurrent", SLUICE_PROJECT="a"
    )
    assert "error" in program.ask("open")
    control.write_text(whole)
    at_once(start)


def test_the_next_of_its_size_finds_a_worker_ready(plane: ControlPlane, start: Start) -> None:
    at_once(start, 25)

    def ready() -> list[dict[str, Any]]:
        return [r for r in plane.worker_records() if r["mps"] and not r["session"]]

    wait_for(ready, LIMIT, "a worker that waits ready")
    (waiting,) = ready()
    next_one = at_once(start, 25)
    assert worker_of(plane, next_one) == waiting["pid"]


def test_a_pool_or_a_host_may_prefer_it(plane: ControlPlane, start: Start) -> None:
    node = plane.rest.get(f"/nodes/{plane.node}").json()
    assert (node["concurrent"], node["sharing"], node["shares"]) == (True, "turns", "kept")
    plane.stop("server")
    path = plane.folder / "server.conf"
    path.write_text(path.read_text() + "    sharing = concurrent\n")
    plane.start_server()
    program = working(start, 25, SLUICE_PROJECT="a")
    goes_on(program)
    (vgpu,) = [v for g in plane.grants() for v in g["vgpus"]]
    assert vgpu["sharing"] == "concurrent"
    program.quit()
    # who asks for turns has them, and so has who asks for too little
    wait_for(lambda: not live(plane), LIMIT, "its end")
    for percent, more in ((25, {"SLUICE_SHARING": "turns"}), (5, {})):
        program = working(start, percent, SLUICE_PROJECT="a", **more)
        assert live(plane)[0]["vgpus"][0]["sharing"] != "concurrent"
        program.quit()
        wait_for(lambda: not live(plane), LIMIT, "its end")
