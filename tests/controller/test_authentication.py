# SPDX-License-Identifier: Apache-2.0
"""Who may call: a real controller that wants tokens, over REST and gRPC."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from control_plane import PYTHON_PATH, ControlPlane, wait_for
from forks import run_command

from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

pytestmark = pytest.mark.control_plane(shared=True, guarded=True)


def made(plane: ControlPlane, **wanted: Any) -> dict[str, Any]:
    answer = plane.rest.post("/tokens", json=wanted)
    assert answer.status_code == 201, answer.text
    result: dict[str, Any] = answer.json()
    return result


def as_role(plane: ControlPlane, **wanted: Any) -> httpx.Client:
    return plane.rest_as(made(plane, **wanted)["secret"])


def sluice(
    plane: ControlPlane, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    clean |= {
        "PYTHONPATH": str(PYTHON_PATH),
        "HOME": str(plane.folder),
        "SLUICE_CONTROLLER": plane.url,
        **environment,
    }
    return run_command(*words, environment=clean)


def test_without_a_token_nothing_is_told(plane: ControlPlane) -> None:
    stranger = plane.rest_as("")
    for method, path in (
        ("GET", "/pool"),
        ("GET", "/nonsense"),
        ("POST", "/sessions"),
        ("DELETE", "/grants/x"),
        ("GET", "/events/stream"),
    ):
        answer = stranger.request(method, path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "SLUICE_TOKEN" in answer.json()["detail"]
    assert stranger.get("/openapi.json").status_code == 200


@pytest.mark.parametrize("token", ["x", "sluice_" + "A" * 43, "ü", "sluice_"])
def test_a_wrong_token_is_refused(plane: ControlPlane, token: str) -> None:
    answer = plane.rest_as("").get("/pool", headers={"Authorization": f"Bearer {token}".encode()})
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_an_expired_token_is_refused(plane: ControlPlane) -> None:
    client = as_role(plane, role="viewer", expires_seconds=1)
    wait_for(lambda: client.get("/pool").status_code == 401)
    assert "expired" in client.get("/pool").json()["detail"]


def test_a_revoked_token_is_refused_at_once_and_its_stream_ends(plane: ControlPlane) -> None:
    token = made(plane, role="viewer")
    client = plane.rest_as(token["secret"])
    with client.stream("GET", "/events/stream") as stream:
        assert plane.rest.delete(f"/tokens/{token['id']}").json()["state"] == "revoked"
        assert "revoked" in client.get("/pool").json()["detail"]
        list(stream.iter_lines())  # it ends


ROLES = {
    "admin": {"/pool": 200, "/tokens": 200, "/audit": 200},
    "operator": {"/pool": 200, "/tokens": 403, "/audit": 403},
    "viewer": {"/pool": 200, "/tokens": 403, "/audit": 403},
    "tenant": {"/pool": 403, "/grants": 200, "/tokens": 403, "/nodes": 403},
    "node": {"/pool": 403, "/grants": 403, "/whoami": 200},
}


@pytest.mark.parametrize("role", ROLES)
def test_what_each_role_may_see_and_end(plane: ControlPlane, role: str) -> None:
    of = {"tenant": {"project": "amber"}, "node": {"node": "n"}}.get(role, {})
    client = as_role(plane, role=role, **of)
    assert role in client.get("/whoami").json()["roles"]
    for path, status in ROLES[role].items():
        assert client.get(path).status_code == status, path
    ends = 404 if role in ("admin", "operator", "tenant") else 403
    assert client.delete("/grants/0123").status_code == ends
    opens = 201 if role in ("admin", "operator", "tenant") else 403
    opened = client.post("/sessions", json={"gmem_mib": 1, "ratio_percent": 1})
    assert opened.status_code == opens
    if opens == 201:
        plane.rest.delete(f"/grants/{opened.json()['grant_id']}")


def test_a_tenant_sees_and_ends_its_own_only(plane: ControlPlane) -> None:
    red, blue = (as_role(plane, role="tenant", project=p) for p in ("red", "blue"))
    small = {"gmem_mib": 1, "ratio_percent": 1}
    assert red.post("/sessions", json={**small, "project": "blue"}).status_code == 403
    ticket = red.post("/sessions", json=small).json()
    grant, session = f"/grants/{ticket['grant_id']}", f"/sessions/{ticket['session_id']}"
    assert red.get(grant).json()["project"] == "red"
    assert red.get(session).status_code == 200
    assert grant[8:] in [event["subject"] for event in red.get("/events").json()["events"]]
    for path in (grant, session, f"{session}/log"):
        assert blue.get(path).status_code == 404
    assert blue.delete(grant).status_code == 404
    assert blue.get("/grants").json()["grants"] == []
    assert blue.get("/sessions").json()["sessions"] == []
    assert grant[8:] not in [event["subject"] for event in blue.get("/events").json()["events"]]
    assert [g["id"] for g in red.get("/grants").json()["grants"]] == [ticket["grant_id"]]
    assert red.delete(grant).status_code == 202
    wait_for(lambda: red.get(grant).json()["state"] == "ended")


def test_tokens_of_a_project_join_only_jobs_that_they_could_have_started(
    plane: ControlPlane,
) -> None:
    def token(**more: Any) -> httpx.Client:
        return as_role(plane, role="tenant", project="amber", **more)

    def open_as(client: httpx.Client, job: str, **more: Any) -> httpx.Response:
        return client.post(
            "/sessions", json={"gmem_mib": 1, "ratio_percent": 1, "job": job, **more}
        )

    def refused(client: httpx.Client, job: str, text: str) -> None:
        answer = open_as(client, job)
        assert answer.status_code == 403, answer.text
        assert text in answer.json()["detail"]
        assert answer.json()["cuda_error"] == 800

    urgent, labelled, plain = token(max_priority=5), token(label="team-a"), token()
    high, reserved, low = (secrets.token_hex(16) for _ in range(3))
    assert open_as(urgent, high, priority=5).status_code == 201
    refused(plain, high, "has priority 5")
    assert open_as(urgent, high).status_code == 201

    owner = {"owner_kind": "label", "owner": "team-a", "memory_mib": 8, "compute_percent": 2}
    reservation = plane.rest.post("/reservations", json=owner).json()["id"]
    assert open_as(labelled, reserved).status_code == 201
    refused(plain, reserved, f"draws on reservation {reservation}")

    assert open_as(plain, low).status_code == 201
    assert open_as(urgent, low).status_code == 201
    grants = plain.get("/grants").json()["grants"]
    assert sorted(len(g["sessions"]) for g in grants) == [1, 2, 2]

    # over the network those of no project are one domain for each address: projects part them
    operator, job = as_role(plane, role="operator"), secrets.token_hex(16)
    assert open_as(operator, job, project="amber").status_code == 201
    refused(operator, job, "is of project amber")
    assert open_as(operator, job, project="amber").status_code == 201
    for grant in [*grants, *operator.get("/grants").json()["grants"]]:
        plane.rest.delete(f"/grants/{grant['id']}")
    plane.rest.delete(f"/reservations/{reservation}")


def test_secrets_are_in_no_file(plane: ControlPlane) -> None:
    secret = made(plane, role="viewer", name="kept nowhere")["secret"]
    key = {"Idempotency-Key": "secret-1"}
    body = {"role": "viewer"}
    other = plane.rest.post("/tokens", json=body, headers=key).json()["secret"]
    assert plane.rest.post("/tokens", json=body, headers=key).json()["secret"] == other
    for path in plane.folder.rglob("*"):
        if path.is_file() and path.name != "node.token":
            content = path.read_bytes()
            assert secret.encode() not in content, path
            assert other.encode() not in content, path


def test_the_audit_trail_says_who_did_what(plane: ControlPlane) -> None:
    token = made(plane, role="operator", name="alice")
    client = plane.rest_as(token["secret"])
    client.delete("/grants/no%0Asuch")
    client.get("/tokens")
    lines = plane.rest.get("/audit", params={"token": token["id"]}).json()["events"]
    assert [line["kind"] for line in lines] == ["audit.denied", "audit.delete"]
    assert "DELETE /v1/grants/no%0Asuch: 404" in lines[1]["text"]
    assert "(alice) from 127.0.0.1" in lines[1]["text"]
    kinds = {e["kind"] for e in client.get("/events", params={"limit": 1000}).json()["events"]}
    assert not [kind for kind in kinds if kind.startswith("audit")]


def test_the_last_admin_token_is_not_revoked_by_mistake(plane: ControlPlane) -> None:
    [admin] = plane.rest.get("/tokens", params={"role": "admin", "limit": 1}).json()["tokens"]
    for other in plane.rest.get("/tokens", params={"role": "admin"}).json()["tokens"][1:]:
        assert plane.rest.delete(f"/tokens/{other['id']}").status_code == 200
    stale = plane.rest.delete(f"/tokens/{admin['id']}", headers={"If-Match": '"9"'})
    assert stale.status_code == 412
    assert plane.rest.delete(f"/tokens/{admin['id']}").status_code == 409


def test_the_command_takes_its_token_from_where_it_is_said(plane: ControlPlane) -> None:
    secret = made(plane, role="viewer")["secret"]
    refused = sluice(plane, "status")
    assert (refused.returncode, "SLUICE_TOKEN" in refused.stderr) == (5, True)
    assert sluice(plane, "status", SLUICE_TOKEN=secret).returncode == 0
    path = plane.folder / ".sluice" / "token"
    path.parent.mkdir(exist_ok=True)
    path.write_text(secret + "\n")
    path.chmod(0o600)
    assert sluice(plane, "status").returncode == 0
    assert sluice(plane, "token", "list").returncode == 5
    path.unlink()
    assert sluice(plane, "--token-file", "/none", "status").returncode == 1


def test_tokens_by_command(plane: ControlPlane) -> None:
    admin = plane.first_token()
    words = ("token", "create", "--role", "tenant", "--project", "green", "--expires", "1h")
    made = sluice(plane, *words, SLUICE_TOKEN=admin)
    assert made.stdout.startswith("sluice_")
    token = made.stderr.split()[1]
    assert "green" in sluice(plane, "token", "list", SLUICE_TOKEN=admin).stdout
    assert sluice(plane, "token", "revoke", token, SLUICE_TOKEN=admin).returncode == 0
    assert "revoked" in sluice(plane, "token", "list", "-a", SLUICE_TOKEN=admin).stdout
    assert token in sluice(plane, "audit", SLUICE_TOKEN=admin).stdout
    me = sluice(plane, "token", "whoami", "-o", "yaml", SLUICE_TOKEN=made.stdout.strip())
    assert (me.returncode, "is revoked" in me.stderr) == (5, True)


# gRPC


def stub(plane: ControlPlane, token: str) -> tuple[Any, tuple[tuple[str, str], ...]]:
    channel = grpc.insecure_channel(f"127.0.0.1:{plane.grpc_port}")
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return pool_pb2_grpc.PoolStub(channel), metadata


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        list(call) if hasattr(call, "__next__") else call()
    return refused.value.code(), refused.value.details()


def inventory(node: str) -> Iterator[rpc.NodeReport]:
    yield rpc.NodeReport(inventory=rpc.Inventory(node=node, vgpu_count=4))
    time.sleep(20)


@pytest.mark.parametrize("token", ["", "sluice_wrong"])
def test_a_server_without_a_token_is_refused(plane: ControlPlane, token: str) -> None:
    pool, metadata = stub(plane, token)
    code, _ = refusal(pool.Register(inventory("stranger"), metadata=metadata))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert plane.rest.get("/nodes/stranger").status_code == 404


def test_another_role_is_no_server(plane: ControlPlane) -> None:
    pool, metadata = stub(plane, made(plane, role="operator")["secret"])
    code, _ = refusal(pool.Register(inventory("stranger"), metadata=metadata))
    assert code is grpc.StatusCode.PERMISSION_DENIED


def test_a_node_speaks_for_no_other(plane: ControlPlane) -> None:
    token = made(plane, role="node", node="node-b")
    pool, metadata = stub(plane, token["secret"])
    code, text = refusal(pool.Register(inventory(plane.node), metadata=metadata))
    assert (code, "node-b" in text) == (grpc.StatusCode.PERMISSION_DENIED, True)
    request = rpc.GrantRequest(request_id="x", node=plane.node)
    assert refusal(pool.RequestGrant(request, metadata=metadata))[0] is code

    held = plane.client()
    [grant] = plane.grants()
    release = rpc.GrantRelease(grant_id=grant["id"])
    assert refusal(lambda: pool.ReleaseGrant(release, metadata=metadata))[0] is code
    # over its own stream, about what is another's
    ended = rpc.NodeReport(
        session_ended=rpc.SessionEnded(session_id=held.session_id, grant_id=grant["id"])
    )
    said = [*_first(inventory("node-b")), ended]
    list(pool.Register(iter(said), metadata=metadata))
    assert [g["id"] for g in plane.grants()] == [grant["id"]]
    assert plane.node_state() == "up"
    denied = plane.rest.get("/audit", params={"token": token["id"]}).json()["events"]
    assert len(denied) >= 3
    held.kill()
    wait_for(lambda: not plane.grants())


def _first(reports: Iterator[rpc.NodeReport]) -> list[rpc.NodeReport]:
    return [next(reports)]


def test_a_real_server_with_anothers_token_stays_out(plane: ControlPlane, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(made(plane, role="node", node="somebody-else")["secret"])
    twin = ControlPlane(tmp_path, fake=True, token_file=token_file, server={"node_name": "twin"})
    conf = tmp_path / "server.conf"
    text = conf.read_text().replace(str(twin.grpc_port), str(plane.grpc_port))
    conf.write_text(text)
    try:
        twin.start_server(joined=False)
        wait_for(lambda: "speaks for no other" in twin.log("server"))
        assert plane.rest.get("/nodes/twin").status_code == 404
    finally:
        twin.close()
