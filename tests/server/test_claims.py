# SPDX-License-Identifier: Apache-2.0
"""Claims of a platform: a socket each, whose processes draw on that claim's part alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from claim_asker import ask_claims
from control_plane import ControlPlane, running, wait_for
from given_folder import with_folder
from holder import Holder
from network_program import built

VECTOR_ADD = str(Path(__file__).resolve().parents[2] / "build" / "programs" / "vector_add")

needs_native = pytest.mark.skipif(
    not (built() and Path(VECTOR_ADD).exists() and os.geteuid() == 0),
    reason="the native part or the programs are not built, or this is not root, who may mount",
)


class Claims:
    """What a platform does: it keeps parts of its reservation, and has claims prepared."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.run_dir = plane.folder / "run"
        wanted = {
            "owner_kind": "label",
            "owner": "kubernetes",
            "project": "kubernetes",
            "memory_mib": 4000,
            "compute_percent": 100,
        }
        self.whole = self._told(plane.rest.post("/reservations", json=wanted))

    def prepare(self, memory_mib: int = 1000, compute_percent: int = 25, **terms: Any) -> Any:
        uid = str(uuid.uuid4())
        gpu = self.whole["slots"][0]["gpu"]
        size = {"gpu": gpu, "memory_mib": memory_mib, "compute_percent": compute_percent}
        project = terms.setdefault("project", "kubernetes.red")
        path = f"/reservations/{self.whole['id']}/parts/claim-{uid}"
        self._told(self.plane.rest.put(path, json={"vgpus": [size], "project": project}))
        asked = {"uid": uid, "name": "red/claim", "label": f"claim-{uid}", **terms}
        answer = ask_claims(self.run_dir, {"prepare": asked})
        assert "error" not in answer, answer
        return answer

    def release(self, uid: str) -> dict[str, Any]:
        return ask_claims(self.run_dir, {"release": {"uid": uid, "why": "the pod is gone"}})

    @property
    def place(self) -> Path:
        """Where containers have the folder of their claim."""
        found = self.plane.folder / "given"
        found.mkdir(exist_ok=True)
        return found

    def environment(self, claim: Any) -> dict[str, str]:
        return self.plane.program_environment(
            SLUICE_CHANNEL="shm",
            SLUICE_SERVER_SOCKET=f"{self.place}/server.sock",
            SLUICE_JOB=claim["job"],
        )

    def run(self, claim: Any, **environment: str) -> subprocess.CompletedProcess[str]:
        """vector_add in the claim's container."""
        return subprocess.run(
            with_folder([VECTOR_ADD], claim["folder"], self.place),
            env={**self.environment(claim), **environment},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def hold(self, claim: Any) -> Holder:
        return Holder(
            self.environment(claim),
            lambda command: with_folder(command, claim["folder"], self.place),
        )

    def _told(self, answer: httpx.Response) -> Any:
        assert answer.status_code in (200, 201), answer.text
        return answer.json()


@pytest.fixture
def claims(short_path: Path) -> Iterator[Claims]:
    with running(short_path) as plane:
        yield Claims(plane)


@needs_native
def test_a_claims_program_computes_on_the_claims_part(claims: Claims) -> None:
    claim = claims.prepare()
    ran = claims.run(claim)
    assert ran.returncode == 0, ran.stderr
    assert "wrong 0" in ran.stdout
    [grant] = claims.plane.rest.get("/grants", params={"state": "all"}).json()["grants"]
    assert grant["project"] == "kubernetes.red"
    [vgpu] = grant["vgpus"]
    assert (vgpu["memory_mib"], vgpu["compute_percent"]) == (1000, 25)


@needs_native
def test_what_a_process_says_of_itself_gets_it_no_more(claims: Claims) -> None:
    claim = claims.prepare()
    for said in (
        {"SLUICE_GMEM": "2000"},
        {"SLUICE_MODE": "on-demand", "SLUICE_GMEM": "2000"},
        {"SLUICE_RATIO": "60"},
        {"SLUICE_PROJECT": "default"},
    ):
        ran = claims.run(claim, **{"SLUICE_JOB": "", "SLUICE_WAIT": "0", **said})
        assert ran.returncode != 0, (said, ran.stdout)
    assert claims.plane.rest.get("/grants").json()["grants"] == []


@needs_native
def test_the_processes_of_a_claim_share_its_grant_and_others_do_not_join(claims: Claims) -> None:
    first, second = claims.prepare(), claims.prepare()
    holders = [claims.hold(first) for _ in range(2)]
    for holder in holders:
        assert holder.work() == 0
    [grant] = claims.plane.grants()
    assert len(claims.plane.sessions()) == 2
    # another claim's process shows the first one's token: it is of another domain
    assert claims.run(second, SLUICE_JOB=first["job"], SLUICE_WAIT="0").returncode != 0
    assert [each["id"] for each in claims.plane.grants()] == [grant["id"]]
    for holder in holders:
        holder.kill()


@needs_native
def test_who_was_not_given_the_claims_folder_is_refused(claims: Claims) -> None:
    claim, other = claims.prepare(), claims.prepare()
    # as if a descriptor of the socket, or its path, had been passed to another container
    socket = f"{claim['folder']}/server.sock"
    ran = claims.run(other, SLUICE_SERVER_SOCKET=socket, SLUICE_JOB=claim["job"])
    assert ran.returncode != 0
    assert "in no container that has claim red/claim" in ran.stderr
    assert claims.plane.grants() == []


@needs_native
def test_a_claim_of_one_pod_serves_no_other_process_though_it_has_the_folder(
    claims: Claims,
) -> None:
    pod = str(uuid.uuid4())
    claim = claims.prepare(pod=pod, pod_name="trains", container="cuda")
    ran = claims.run(claim)
    assert ran.returncode != 0
    assert f"this process is in no container of pod red/claim ({pod})" in ran.stderr
    assert claims.plane.grants() == []
    held = ask_claims(claims.run_dir, {"held": {}})["held"][claim["uid"]]
    assert held == {"name": "red/claim", "label": f"claim-{claim['uid']}", "pod": pod}


@needs_native
def test_release_ends_what_runs_and_leaves_nothing(claims: Claims) -> None:
    claim = claims.prepare()
    holder = claims.hold(claim)
    assert holder.work() == 0
    assert claims.release(claim["uid"]) == {"released": True}
    wait_for(lambda: not claims.plane.session_worker_pids(), message="the worker to end")
    assert not Path(claim["folder"]).exists()
    part = f"/parts/claim-{claim['uid']}"
    assert claims.plane.rest.delete(part).status_code == 200
    assert claims.plane.rest.delete(part).status_code == 404
    wait_for(lambda: not claims.plane.grants())
    assert claims.release(claim["uid"]) == {"released": False}
    holder.kill()


@needs_native
def test_giving_the_part_back_ends_what_runs(claims: Claims) -> None:
    claim = claims.prepare()
    holder = claims.hold(claim)
    assert holder.work() == 0
    answer = claims.plane.rest.delete(f"/parts/claim-{claim['uid']}")
    assert answer.status_code == 200, answer.text
    wait_for(lambda: not claims.plane.grants())
    wait_for(lambda: not claims.plane.session_worker_pids(), message="the worker to end")
    [ended] = claims.plane.sessions("ended")
    assert ended["cause"] == "channel-removed"
    holder.kill()


@needs_native
def test_claims_and_their_sessions_outlive_the_server(claims: Claims) -> None:
    claim = claims.prepare()
    holder = claims.hold(claim)
    assert holder.work() == 0
    claims.plane.stop("server", signal.SIGKILL)
    claims.plane.start_server()
    assert ask_claims(claims.run_dir, {"list": {}}) == {"claims": {claim["uid"]: "red/claim"}}
    assert holder.work() == 0
    ran = claims.run(claim)  # joins the job of before
    assert ran.returncode == 0, ran.stderr
    about = {"sessions": {"uid": claim["uid"]}}
    wait_for(
        lambda: len(ask_claims(claims.run_dir, about)["sessions"]) == 1,
        message="the second session to end",
    )
    claims.release(claim["uid"])
    wait_for(lambda: not claims.plane.session_worker_pids(), message="the worker to end")
    holder.kill()


def test_prepare_again_answers_the_same(claims: Claims) -> None:
    claim = claims.prepare()
    terms = {"name": "red/claim", "label": f"claim-{claim['uid']}", "project": "kubernetes.red"}
    assert ask_claims(claims.run_dir, {"prepare": {"uid": claim["uid"], **terms}}) == claim
    record = Path(claim["folder"]).parent / "claim.json"
    assert record.stat().st_mode & 0o077 == 0  # the job's token is in it
    assert json.loads(record.read_text())["job"] == claim["job"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uid", "../../etc"),
        ("uid", 7),
        ("uid", None),
        ("name", "no-slash"),
        ("name", "a/" + "b" * 300),
        ("label", "with space"),
        ("project", "x" * 500),
        ("count", "two"),
        ("count", 10**9),
        ("priority", True),
        ("priority", 10**9),
        ("pod", "../x"),
        ("pod", 7),
        ("pod_name", "x" * 254),
        ("container", "Upper"),
        ("container", "c" * 64),
    ],
)
def test_what_is_wrong_is_named(claims: Claims, field: str, value: object) -> None:
    terms = {"uid": str(uuid.uuid4()), "name": "a/b", "label": "l", "project": "p", field: value}
    answer = ask_claims(claims.run_dir, {"prepare": terms})
    assert field in answer["error"]
    assert ask_claims(claims.run_dir, {"list": {}}) == {"claims": {}}


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"prepare": 1}', b'{"fly": {}}'])
def test_rubbish_is_refused(claims: Claims, line: bytes) -> None:
    assert ask_claims(claims.run_dir, line)["error"]


@needs_native
def test_it_is_said_how_this_hosts_gpus_are(claims: Claims) -> None:
    found = ask_claims(claims.run_dir, {"gpus": {}})
    [gpu] = claims.plane.rest.get("/gpus").json()["gpus"]
    well = {"fault": "", "held": "", "note": ""}
    assert found == {"node": gpu["node"], "gpus": {gpu["uuid"]: well}}
    for asked in ({"gpus": []}, {"gpus": None}, {"gpus": {}, "list": {}}):
        assert "error" in ask_claims(claims.run_dir, asked)
