# SPDX-License-Identifier: Apache-2.0
"""What a client asks for besides sizes reaches the pool, and only what its host allows it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane

from sluice.config.ini import ConfigError
from sluice.config.server import read_server_config
from sluice.config.server_projects import ProjectsSection
from sluice.protocol.frames import OpenFlags
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.open_session import (
    BadOpen,
    RefusalError,
    pack_open_session,
    parse_open_session,
)
from sluice.server.sessions.records import Requester, grant_request

pytestmark = pytest.mark.control_plane(
    projects={
        "users": "4711=vision nlp",
        "groups": "811=speech, 62999=sound",
        "labels": "user:4712=team-a, group:813=team-b",
    }
)


@pytest.fixture(autouse=True)
def others_come_in(tmp_path: Path) -> None:
    """Other users' processes find the plane's socket."""
    tmp_path.chmod(0o755)


EVERYTHING = (
    "project=vision",
    "gpu_model=NVIDIA H200",
    "gpu_architecture=sm_90",
    "label=rack=r12",
    "label=fast=yes",
    "sharing=capped",
    "what-comes-later=1",
)


def test_every_option_reaches_the_request_to_the_controller() -> None:
    wanted = parse_open_session(
        pack_open_session(
            flags=OpenFlags.PREEMPT | OpenFlags.SAME_GPU | OpenFlags.RESERVED_ONLY,
            priority=3,
            request_lines=EVERYTHING,
        )
    )
    assert len(wanted.raw) == 512
    assert wanted.raw[:4] == (512).to_bytes(4, "little"), "a worker knows the fixed part alone"
    asked = grant_request(
        "node",
        wanted,
        Requester("shm", "h", "p"),
        project="vision",
        owner_label="a",
        person="alice",
    )
    assert (asked.project, asked.gpu_model, asked.gpu_architecture) == (
        "vision",
        "NVIDIA H200",
        "sm_90",
    )
    assert [(label.name, label.value) for label in asked.labels] == [
        ("fast", "yes"),
        ("rack", "r12"),
    ]
    assert (asked.preempt, asked.same_gpu_allowed, asked.mode) == (True, True, "reserved")
    assert (asked.priority, asked.owner_label, asked.person) == (3, "a", "alice")
    assert asked.sharing == "capped"


@pytest.mark.parametrize(
    ("options", "flags", "text"),
    [
        (("project=../etc",), 0, "SLUICE_PROJECT"),
        (("gpu_model=" + "x" * 121,), 0, "SLUICE_GPU_MODEL"),
        (("label=rack",), 0, "SLUICE_LABELS"),
        (("sharing=mine",), 0, "SLUICE_SHARING"),
        (tuple(f"label=a=v{n}" for n in range(17)), 0, "at most 16"),
        ((), OpenFlags.RESERVED_ONLY | OpenFlags.ON_DEMAND_ONLY, "SLUICE_MODE"),
        (("project=" + "x" * 4000,), 0, "size"),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_name(
    options: tuple[str, ...], flags: int, text: str
) -> None:
    with pytest.raises(BadOpen, match=text):
        parse_open_session(pack_open_session(flags=flags, request_lines=options))


@pytest.mark.parametrize("change", [lambda f: f[:-1], lambda f: f + bytes(8), lambda f: f[:100]])
def test_a_frame_of_another_size_than_it_says_is_refused(change: Any) -> None:
    with pytest.raises(BadOpen):
        parse_open_session(change(pack_open_session(request_lines=EVERYTHING)))


# accounts

SECTION = ProjectsSection.model_validate(
    {
        "default": "guests",
        "users": "root=vision nlp, 4711=speech",
        "groups": "812=second, 811=first, root=admins",
        "vms": "web=vision, 11111111-2222-3333-4444-555555555555=nlp",
        "labels": "user:4711=team-a, vm:web=team-b, group:811=team-c, group:root=team-d",
    }
)


@pytest.mark.parametrize(
    ("requester", "projects", "label"),
    [
        ({"uid": 0}, ("vision", "nlp"), ""),
        ({"uid": 4711, "groups": (811,)}, ("speech",), "team-a"),
        ({"uid": 5, "groups": (811, 812)}, ("second",), "team-c"),
        ({"uid": 5}, ("guests",), ""),
        ({"uid": 5, "groups": (5, 0)}, ("admins",), "team-d"),
        ({"domain_uuid": "a", "domain_name": "web"}, ("vision",), "team-b"),
        ({"domain_uuid": "11111111-2222-3333-4444-555555555555"}, ("nlp",), ""),
        ({"domain_uuid": "a", "uid": 0}, ("guests",), ""),
    ],
)
def test_the_host_says_whose_account_it_is(
    requester: dict[str, Any], projects: tuple[str, ...], label: str
) -> None:
    account = Accounts(SECTION).of(Requester("shm", "h", "p", **requester))
    assert (account.projects, account.label) == (projects, label)


def test_a_client_chooses_among_its_own() -> None:
    account = Accounts(SECTION).of(Requester("shm", "h", "p", uid=0))
    assert (account.project("", "me"), account.project("nlp", "me")) == ("vision", "nlp")
    with pytest.raises(RefusalError, match=r"speech .* is not for me, who may use vision, nlp"):
        account.project("speech", "me")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("users = alice=", "alice"),
        ("users = a=x, a=y", "twice"),
        ("labels = alice=x", "user:NAME"),
        ("default = a b", "default"),
    ],
)
def test_mistakes_in_projects_are_named(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "server.conf").write_text(f"[projects]\n{line}\n")
    with pytest.raises(ConfigError, match=text):
        read_server_config(tmp_path / "server.conf")


# by real processes


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be other users")
def test_what_a_process_gets_is_its_users(plane: ControlPlane) -> None:
    small = {"gmem_mib": 64, "ratio_percent": 1}

    def project_of(**wanted: Any) -> str:
        before = {grant["id"] for grant in plane.grants()}
        client = plane.client(**small, **wanted)
        assert client.first["status"] == 0, client.first
        [grant] = [g for g in plane.grants() if g["id"] not in before]
        return str(grant["project"])

    assert project_of() == "default"
    assert project_of(uid=4711) == "vision"
    assert project_of(uid=4711, request_lines=["project=nlp"]) == "nlp"
    assert project_of(uid=4712, groups=[811]) == "speech"
    for count in (300, 3000):
        last = range(63000 - count, 63000)
        assert project_of(uid=4712, groups=list(last)) == "sound", f"{count} groups"
    foreign = plane.client(**small, uid=4711, request_lines=["project=speech"]).first
    assert foreign["status"] == 800
    assert "is not for" in foreign["message"]

    reservation = {"owner_kind": "label", "owner": "team-a", "memory_mib": 512}
    made = plane.rest.post("/reservations", json={**reservation, "compute_percent": 10})
    assert made.status_code == 201, made.text
    name = made.json()["id"]

    def drawn() -> list[str]:
        return list(plane.rest.get(f"/reservations/{name}").json()["grants"])

    assert plane.client(**small, uid=4711, flags=OpenFlags.RESERVED_ONLY).first["status"] == 800
    assert plane.client(**small).first["status"] == 0
    assert plane.client(**small, uid=4712, flags=OpenFlags.ON_DEMAND_ONLY).first["status"] == 0
    assert drawn() == []
    assert plane.client(**small, uid=4712).first["status"] == 0
    assert len(drawn()) == 1
    [grant] = [g for g in plane.grants() if g["reservation"]]
    assert (grant["id"], grant["mode"]) == (drawn()[0], "reserved")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be other users")
def test_a_process_joins_no_job_that_it_could_not_have_made(plane: ControlPlane) -> None:
    small = {"gmem_mib": 64, "ratio_percent": 10}
    job = {**small, "job": secrets.token_hex(16), "uid": 4711}
    assert plane.client(**job, priority=4).first["status"] == 0
    [grant] = plane.grants()
    assert (grant["project"], grant["priority"]) == ("vision", 4)
    other = plane.client(**job, request_lines=["project=nlp"]).first
    assert other["status"] == 800
    assert "is of project vision, and this process is of project nlp" in other["message"]
    plane.rest.put("/quotas/vision", json={"max_priority": 3})
    high = plane.client(**job).first
    assert high["status"] == 800
    assert "has priority 4" in high["message"]
    plane.rest.put("/quotas/vision", json={"max_priority": 4})
    assert plane.client(**job).first["status"] == 0

    reservation = {"owner_kind": "label", "owner": "team-b", "memory_mib": 512}
    made = plane.rest.post("/reservations", json={**reservation, "compute_percent": 10})
    assert made.status_code == 201, made.text
    reserved = {**small, "job": secrets.token_hex(16), "uid": 4713}
    assert plane.client(**reserved, groups=[813]).first["status"] == 0
    lacking = plane.client(**reserved, groups=[814]).first
    assert lacking["status"] == 800
    assert f"draws on reservation {made.json()['id']}" in lacking["message"]
    assert plane.client(**reserved, groups=[813]).first["status"] == 0
    assert sorted(len(g["sessions"]) for g in plane.grants()) == [2, 2]


def test_model_and_labels_choose_and_rights_are_kept(plane: ControlPlane) -> None:
    small = {"gmem_mib": 64, "ratio_percent": 1}
    model = plane.rest.get("/gpus").json()["gpus"][0]["model"]
    assert plane.client(**small, request_lines=[f"gpu_model={model}"]).first["status"] == 0
    wrong = plane.client(**small, request_lines=["gpu_model=h200"]).first
    assert wrong["status"] != 0
    assert "h200" in wrong["message"]
    lost = plane.client(**small, request_lines=["label=rack=r1"]).first
    assert lost["status"] != 0
    assert "rack=r1" in lost["message"]
    preempting = plane.client(**small, flags=OpenFlags.PREEMPT).first
    assert preempting["status"] == 800
    assert "quota set default --may-preempt" in preempting["message"]
    plane.rest.put("/quotas/default", json={"max_priority": 2})
    assert plane.client(**small, priority=2).first["status"] == 0
    high = plane.client(**small, priority=3).first
    assert high["status"] == 800
    assert "SLUICE_PRIORITY" in high["message"]


def test_two_vgpus_of_one_card_where_that_is_allowed(plane: ControlPlane) -> None:
    wanted = {"vgpu_count": 2, "gmem_mib": 64, "ratio_percent": 10}
    assert plane.client(**wanted).first["status"] != 0
    both = plane.client(**wanted, flags=OpenFlags.SAME_GPU)
    assert both.first["status"] == 0, both.first
    [grant] = plane.grants()
    assert len({vgpu["gpu"] for vgpu in grant["vgpus"]}) == 1
    assert len(grant["vgpus"]) == 2


def test_a_person_is_the_hosts_user_and_of_a_guest_nobody() -> None:
    accounts = Accounts()
    assert accounts.of(Requester("shm", "h", "p", uid=0)).person == "root"
    assert accounts.of(Requester("shm", "h", "p", uid=4_000_000)).person == "uid 4000000"
    guest = Requester("ivshmem", "h", "p", domain_uuid="u", domain_name="vm")
    assert accounts.of(guest).person == ""
    assert accounts.of(Requester("tcp", "h", "p")).person == ""
