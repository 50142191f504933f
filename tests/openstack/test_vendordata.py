# SPDX-License-Identifier: Apache-2.0
"""Dynamic vendordata: Nova's account gets an instance's secret, nobody else does, and it is good
once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from control_plane import wait_for

if TYPE_CHECKING:
    from conftest import Pool
    from instance_records import InstanceRecords

    from tests.rigs.openstack.rig import OpenStackRig

pytestmark = [pytest.mark.openstack, pytest.mark.slow]


def keystone_token(rig: OpenStackRig, user: str, project: str) -> str:
    body = {
        "auth": {
            "identity": {
                "methods": ["password"],
                "password": {
                    "user": {"name": user, "domain": {"id": "default"}, "password": "rig"}
                },
            },
            "scope": {"project": {"name": project, "domain": {"id": "default"}}},
        }
    }
    answer = httpx.post(f"{rig.keystone}/v3/auth/tokens", json=body, timeout=30)
    answer.raise_for_status()
    return str(answer.headers["X-Subject-Token"])


def ask(pool: Pool, token: str, instance: str, project: str) -> httpx.Response:
    body = {"instance-id": instance, "project-id": project, "hostname": "x", "metadata": {}}
    return pool.rest.post(
        "/vendordata", json=body, headers={"X-Auth-Token": token} if token else {}
    )


def test_only_novas_account_is_answered(rig: OpenStackRig, pool: Pool) -> None:
    instance, project = str(uuid.uuid4()), uuid.uuid4().hex
    of_nova = keystone_token(rig, "nova", "service")
    assert ask(pool, of_nova, instance, project).json()["reservation"] == ""
    of_admin = ask(pool, keystone_token(rig, "admin", "admin"), instance, project)
    assert of_admin.status_code == 401
    assert "[openstack] users names nova" in of_admin.json()["detail"]
    assert ask(pool, "no-such-token", instance, project).status_code == 401
    assert ask(pool, "x" * 20_000, instance, project).status_code in (400, 401, 431)
    assert ask(pool, "", instance, project).status_code == 403  # an operator is not Nova
    wrong = ask(pool, of_nova, "../../etc", project)
    assert wrong.status_code == 422
    assert "instance-id" in wrong.text
    # and Keystone's tokens open no other door
    answer = pool.rest.get("/tokens", headers={"X-Auth-Token": of_nova})
    assert "keystone" not in answer.text


def test_an_instance_gets_a_secret_of_its_own(
    cloud: Any, image: Any, records: InstanceRecords, pool: Pool, rig: OpenStackRig
) -> None:
    flavor = pool.make_flavor(rig, "rig.told", (1, 1024, 25))
    server = cloud.compute.create_server(
        name="told", flavor_id=flavor, image_id=image.id, networks="none"
    )
    server = cloud.compute.wait_for_server(server, interval=0.3, wait=180)
    [reservation] = wait_for(lambda: records.reservations(server.id), message="its reservation")

    # Nova has asked while it made the config drive, and was told
    enrolments = pool.rest.get("/enrolments").json()["enrolments"]
    [told] = [e for e in enrolments if e["vm"] == server.id]
    assert (told["reservation"], told["project"]) == (reservation["id"], server.project_id)
    assert told["created_by"] == "keystone-nova"

    token = keystone_token(rig, "nova", "service")
    first = ask(pool, token, server.id, server.project_id).json()
    assert first["controller"] == "pool.example:9123"
    again = ask(pool, token, server.id, server.project_id).json()
    assert again == first  # until somebody uses it
    foreign = ask(pool, token, server.id, uuid.uuid4().hex).json()
    assert foreign["enrolment"] == ""  # another project's instance is nobody's

    machine = {"Authorization": f"Bearer {first['enrolment']}"}
    enrolled = pool.rest.post("/enrol", headers=machine)
    assert enrolled.status_code == 201
    assert (enrolled.json()["vm"], enrolled.json()["role"]) == (server.id, "tenant")
    assert pool.rest.post("/enrol", headers=machine).status_code == 401
    later = ask(pool, token, server.id, server.project_id).json()
    assert later["enrolment"] not in ("", first["enrolment"])

    # the token is the instance's, and goes with it
    its_own = {"Authorization": f"Bearer {enrolled.json()['secret']}"}
    assert pool.rest.get("/sessions", headers=its_own).status_code == 200
    cloud.compute.delete_server(server)
    cloud.compute.wait_for_delete(server, interval=0.5, wait=60)
    wait_for(
        lambda: pool.rest.get("/sessions", headers=its_own).status_code == 401,
        message="the deleted instance's token to be refused",
    )
