# SPDX-License-Identifier: Apache-2.0
"""One-time enrolments: a machine gets a token of its own, once, in time, and for itself only."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, wait_for

from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.tokens import TokenBook
from sluice.controller.pool.model import Change

pytestmark = pytest.mark.control_plane(shared=True, guarded=True, requests_per_second=0)

VM = "5026a1b2-0000-4000-8000-00000000000a"


class HeldStore:
    """Keeps nothing; a commit is done when it is let."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def commit(self, changes: Sequence[Change]) -> None:
        await self.goes_on.wait()


async def test_withdrawn_while_its_token_is_stored_it_takes_that_along() -> None:
    store = HeldStore()
    tokens = TokenBook(store)  # type: ignore[arg-type]
    book = EnrolmentBook(store, tokens)  # type: ignore[arg-type]
    enrolment, _ = await book.create("node", by="a test", seconds=60, node="n1")
    store.goes_on.clear()
    using = asyncio.create_task(book.use(enrolment.id))
    await asyncio.sleep(0)
    withdrawing = asyncio.create_task(book.withdraw(enrolment.id, "a test"))
    await asyncio.sleep(0)
    store.goes_on.set()
    token, _ = await using
    assert (await withdrawing).state(0) == "withdrawn"
    assert tokens.tokens[token.id].state(0) == "revoked"


@pytest.fixture
def operator(plane: ControlPlane) -> httpx.Client:
    return plane.rest_as(plane.rest.post("/tokens", json={"role": "operator"}).json()["secret"])


@pytest.fixture
def reservation(operator: httpx.Client) -> Iterator[dict[str, Any]]:
    body = {"owner_kind": "vm", "owner": VM, "project": "amber", "memory_mib": 64}
    answer = operator.post("/reservations", json={**body, "compute_percent": 10})
    assert answer.status_code == 201, answer.text
    yield answer.json()
    operator.delete(f"/reservations/{answer.json()['id']}")


def made(client: httpx.Client, **wanted: Any) -> dict[str, Any]:
    answer = client.post("/enrolments", json=wanted)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    result: dict[str, Any] = answer.json()
    return result


def test_a_vm_enrols_once_and_draws_on_its_own_reservation(
    plane: ControlPlane, operator: httpx.Client, reservation: dict[str, Any]
) -> None:
    enrolment = made(operator, reservation=reservation["id"], name="vm-a")
    assert enrolment["state"] == "open"
    assert (enrolment["project"], enrolment["vm"]) == ("amber", VM)
    machine = plane.rest_as(enrolment["secret"])
    answer = machine.post("/enrol")
    assert answer.status_code == 201, answer.text
    token = answer.json()
    assert (token["role"], token["project"], token["vm"]) == ("tenant", "amber", VM)
    again = machine.post("/enrol")
    assert again.status_code == 401
    assert "is used" in again.json()["detail"]
    shown = operator.get(f"/enrolments/{enrolment['id']}").json()
    assert (shown["state"], shown["token_id"]) == ("used", token["token_id"])
    client = plane.rest_as(token["secret"])
    wanted = {"gmem_mib": 64, "ratio_percent": 10, "mode": "reserved"}
    ticket = client.post("/sessions", json=wanted)
    assert ticket.status_code == 201, ticket.text
    drawn = operator.get(f"/reservations/{reservation['id']}").json()["grants"]
    assert drawn == [ticket.json()["grant_id"]]
    client.delete(f"/grants/{drawn[0]}")


def test_another_vms_token_does_not_draw_on_it(
    plane: ControlPlane, operator: httpx.Client, reservation: dict[str, Any]
) -> None:
    other = made(operator, project="amber", vm="5026a1b2-0000-4000-8000-00000000000b")
    token = plane.rest_as(other["secret"]).post("/enrol").json()
    wanted = {"gmem_mib": 64, "ratio_percent": 10, "mode": "reserved"}
    refused = plane.rest_as(token["secret"]).post("/sessions", json=wanted)
    assert refused.status_code in (403, 409)
    assert "no reservation is held" in refused.json()["detail"]


def test_of_two_that_show_the_same_secret_one_gets_a_token(
    plane: ControlPlane, operator: httpx.Client
) -> None:
    enrolment = made(operator, project="amber")
    clients = [plane.rest_as(enrolment["secret"]) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda client: client.post("/enrol").status_code, clients))
    assert min(answers) == 201
    assert set(answers[1:]) | set(answers[:-1]) <= {201, 401, 409}
    assert answers.count(201) == 1


def test_a_secret_opens_no_other_door(plane: ControlPlane, operator: httpx.Client) -> None:
    machine = plane.rest_as(made(operator, project="amber")["secret"])
    for method, path in (
        ("GET", "/pool"),
        ("GET", "/grants"),
        ("GET", "/whoami"),
        ("POST", "/sessions"),
        ("POST", "/tokens"),
        ("POST", "/enrolments"),
    ):
        answer = machine.request(method, path, json={} if method == "POST" else None)
        assert answer.status_code == 403, path
    assert machine.post("/enrol").status_code == 201


def test_it_is_over_in_time(plane: ControlPlane, operator: httpx.Client) -> None:
    assert (
        operator.post("/enrolments", json={"project": "amber", "expires_seconds": 9}).status_code
        == 422
    )
    enrolment = made(operator, project="amber", expires_seconds=10)
    machine = plane.rest_as(enrolment["secret"])
    state = f"/enrolments/{enrolment['id']}"
    wait_for(lambda: operator.get(state).json()["state"] == "expired")
    refused = machine.post("/enrol")
    assert refused.status_code == 401
    assert "is expired" in refused.json()["detail"]


def test_a_withdrawn_enrolment_takes_its_token_along(
    plane: ControlPlane, operator: httpx.Client
) -> None:
    unused = made(operator, project="amber")
    assert operator.delete(f"/enrolments/{unused['id']}").json()["state"] == "withdrawn"
    assert plane.rest_as(unused["secret"]).post("/enrol").status_code == 401
    used = made(operator, project="amber")
    client = plane.rest_as(plane.rest_as(used["secret"]).post("/enrol").json()["secret"])
    assert client.get("/grants").status_code == 200
    assert operator.delete(f"/enrolments/{used['id']}").status_code == 200
    assert client.get("/grants").status_code == 401
    assert operator.delete(f"/enrolments/{used['id']}").status_code == 200  # again: the same


def test_it_is_over_with_its_reservation(
    plane: ControlPlane, operator: httpx.Client, reservation: dict[str, Any]
) -> None:
    enrolment = made(operator, reservation=reservation["id"])
    operator.delete(f"/reservations/{reservation['id']}")
    refused = plane.rest_as(enrolment["secret"]).post("/enrol")
    assert refused.status_code == 409
    assert "has ended" in refused.json()["detail"]
    late = operator.post("/enrolments", json={"reservation": reservation["id"]})
    assert late.status_code == 409


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({}, 422),
        ({"role": "admin"}, 422),
        ({"role": "node"}, 422),
        ({"role": "node", "node": "n", "project": "amber"}, 422),
        ({"project": "a b"}, 422),
        ({"project": "amber", "name": "a\nb"}, 422),
        ({"reservation": "0123"}, 409),
        ({"role": "node", "node": "n"}, 403),
    ],
)
def test_what_cannot_be_is_refused(
    operator: httpx.Client, wanted: dict[str, Any], status: int
) -> None:
    assert operator.post("/enrolments", json=wanted).status_code == status


def test_a_reservation_is_not_lent_to_another(
    operator: httpx.Client, reservation: dict[str, Any]
) -> None:
    for stolen in ({"project": "blue"}, {"vm": "another"}):
        answer = operator.post("/enrolments", json={"reservation": reservation["id"], **stolen})
        assert answer.status_code == 422
        assert "leave" in answer.json()["detail"]


def test_who_may(plane: ControlPlane, operator: httpx.Client) -> None:
    node = made(plane.rest, role="node", node="gpu-vm-1")
    assert operator.delete(f"/enrolments/{node['id']}").status_code == 403
    token = plane.rest_as(node["secret"]).post("/enrol").json()
    assert (token["role"], token["node"]) == ("node", "gpu-vm-1")
    assert plane.rest_as(token["secret"]).get("/whoami").json()["node"] == "gpu-vm-1"
    for role in ({"role": "viewer"}, {"role": "tenant", "project": "amber"}):
        client = plane.rest_as(plane.rest.post("/tokens", json=role).json()["secret"])
        assert client.get("/enrolments").status_code == 403
        assert client.post("/enrolments", json={"project": "amber"}).status_code == 403
        assert client.post("/enrol").status_code == 403
    assert plane.rest_as("sluice_enrol_" + "A" * 43).post("/enrol").status_code == 401


def test_a_restart_forgets_nothing_and_the_store_knows_no_secret(
    plane: ControlPlane, operator: httpx.Client
) -> None:
    used, unused = made(operator, project="amber"), made(operator, project="amber")
    token = plane.rest_as(used["secret"]).post("/enrol").json()["secret"]
    plane.stop("controller", signal.SIGKILL)
    plane.start_controller()
    assert plane.rest_as(used["secret"]).post("/enrol").status_code == 401
    assert plane.rest_as(unused["secret"]).post("/enrol").status_code == 201
    kept = b"".join(path.read_bytes() for path in Path(plane.folder).glob("controller.db*"))
    written = kept + plane.log("controller").encode()
    assert used["id"].encode() in kept
    for secret in (used["secret"], unused["secret"], token):
        assert secret.encode() not in written
