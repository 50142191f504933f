# SPDX-License-Identifier: Apache-2.0
"""Today's controller opens the store of a pool in use that a release left, and goes on with it.

Its wall clock is set to a minute after the recording, so that what was good for minutes is good.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import etcd_members
import httpx
import pytest
from controllers import Controllers, controllers

from sluice.rpc import pool_pb2 as rpc

from . import controller_then
from .domains import contains
from .recording.record_stores import LISTS, PREFIX, StoredServer, etcd_call
from .releases import RELEASES, ROOT

PARAMETERS = [
    pytest.param((release, kind), id=f"{release.name}-{kind}")
    for release in RELEASES
    for kind in ("sqlite", "etcd")
]
#: What says which of a list it is.
KEYS = {"quotas": "project", "nodes": "name", "attachments": "gpu"}
#: What is otherwise while no server is connected, and what counts up.
CHANGES = {
    "nodes": {"state", "generation"},
    "gpus": {"state"},
}


@dataclass
class Pool:
    """A controller over a recorded store, and what belongs to that store."""

    running: Controllers
    folder: Path
    known: dict[str, Any]
    servers: list[StoredServer] = field(default_factory=list)

    def call(self, method: str, path: str, body: Any = None, **how: str) -> httpx.Response:
        """A REST call as one of the tokens' owners."""
        secret = self.known["secrets"][how.pop("by", "admin")]
        headers = {"Authorization": f"Bearer {secret}", **how}
        url = f"http://{self.running.rest[0]}/v1{path}"
        return httpx.request(method, url, json=body, headers=headers, timeout=60)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def recorded_id(self, name: str) -> str:
        found: str = self.known["ids"][name]
        return found


@pytest.fixture(scope="module", params=PARAMETERS)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    release, kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    known = json.loads((release / "stores" / f"{kind}.json").read_text())
    then = known["answers"]["at"] + 60 - time.time()
    store: dict[str, Any] = {}
    with ExitStack() as stack:
        if kind == "sqlite":
            with sqlite3.connect(folder / "controller.db") as file:
                file.executescript((release / "stores" / "sqlite.sql").read_text())
            file.close()
        else:
            if not etcd_members.is_there():
                pytest.skip("etcd is not installed")
            members = stack.enter_context(etcd_members.etcd_members(folder / "etcd"))
            put_keys(members, release / "stores" / "etcd.jsonl")
            store = {"kind": "etcd", "endpoints": ",".join(members.endpoints), "prefix": PREFIX}
        running = stack.enter_context(
            controllers(
                folder,
                1,
                store,
                pool={"node_timeout_seconds": 3600},
                auth={"required": "yes"},
                program=("-m", "tests.compatibility.controller_then"),
                environment={
                    controller_then.VARIABLE: str(then),
                    "PYTHONPATH": f"{ROOT / 'python'}:{ROOT}",
                },
            )
        )
        yield Pool(running, folder, known)


def put_keys(members: etcd_members.EtcdMembers, recorded: Path) -> None:
    """What was in etcd, in it again."""
    pairs = [json.loads(line) for line in recorded.read_text().splitlines()]
    for n in range(0, len(pairs), 100):  # etcd takes 128 in one transaction
        puts = [{"requestPut": pair} for pair in pairs[n : n + 100]]
        etcd_call(members, "txn", {"success": puts})


def recorded_and_found(pool: Pool, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A list as it was answered then and is now."""
    inner = "events" if name == "audit" else name
    recorded = pool.known["answers"][name][inner]
    assert recorded, "the recording is empty"
    return recorded, pool.get(LISTS[name])[inner]


@pytest.mark.parametrize("name", sorted(LISTS.keys() - {"events", "audit", "usage"}))
def test_what_was_in_it_is_there(pool: Pool, name: str) -> None:
    recorded, found = recorded_and_found(pool, name)
    key = KEYS.get(name, "id")
    today = {each[key]: each for each in found}
    wrong: list[str] = []
    for one in recorded:
        lasting = {k: value for k, value in one.items() if k not in CHANGES.get(name, ())}
        wrong += contains(today.get(one[key]), lasting, one[key])
    assert wrong == []


@pytest.mark.parametrize("name", ["events", "audit"])
def test_what_was_told_is_told(pool: Pool, name: str) -> None:
    recorded, found = recorded_and_found(pool, name)
    assert [one for one in recorded if all(list(contains(each, one)) for each in found)] == []


def test_what_was_used_is_counted_on(pool: Pool) -> None:
    recorded, found = recorded_and_found(pool, "usage")
    for one in recorded:
        of_project = [each for each in found if each["project"] == one["project"]]
        for what in ("vgpu_seconds", "memory_mib_seconds", "compute_percent_seconds"):
            # grants live on, and the hour may have ended in between
            assert sum(each[what] for each in of_project) >= one[what], one["project"]


def test_tokens_open_what_they_opened(pool: Pool) -> None:
    roles = {"admin": "admin", "operator": "operator", "viewer": "viewer", "node-a": "node"}
    for name, role in {**roles, "tenant": "tenant", "enrolled": "tenant"}.items():
        answer = pool.call("GET", "/whoami", by=name)
        assert answer.status_code == 200, f"{name}: {answer.text}"
        assert role in answer.json()["roles"], name
    assert pool.call("GET", "/whoami", by="tenant").json()["project"] == "vision"
    assert pool.call("GET", "/whoami", by="revoked").status_code == 401
    assert pool.call("GET", "/tokens", by="viewer").status_code == 403


def test_a_creation_that_is_sent_again_creates_nothing(pool: Pool) -> None:
    again = pool.known["ids"]["idempotent"]
    key = {"Idempotency-Key": again["key"]}
    answer = pool.call("POST", "/reservations", again["body"], by="operator", **key)
    assert answer.status_code == 201, answer.text
    assert answer.json() == again["answer"]
    other = {**again["body"], "owner": "another"}
    assert pool.call("POST", "/reservations", other, by="operator", **key).status_code == 422


def test_enrolments_are_good_once(pool: Pool) -> None:
    refused = [pool.call("POST", "/enrol", by=f"enrolment {n}") for n in ("used", "withdrawn")]
    assert all(answer.status_code in (401, 403, 409) for answer in refused)
    answer = pool.call("POST", "/enrol", by="enrolment open")
    assert answer.status_code == 201, answer.text
    assert answer.json()["project"] == "vision"
    pool.known["secrets"]["now enrolled"] = answer.json()["secret"]
    assert pool.call("GET", "/whoami", by="now enrolled").json()["project"] == "vision"
    assert pool.call("POST", "/enrol", by="enrolment open").status_code in (401, 403, 409)


def test_switches_drains_quotas_and_reservations_can_be_taken_back(pool: Pool) -> None:
    assert pool.call("DELETE", "/nodes/node-b/drain").status_code == 200
    assert pool.get("/nodes/node-b")["drained"] is False
    assert pool.get("/gpus/node-a:node-a-2/switch")["mode"] == "drained"
    assert pool.call("PUT", "/gpus/node-a:node-a-2/switch", {"to": "pooled"}).status_code == 202
    assert pool.get("/gpus/node-c:node-c-0")["held_by"] == "web"
    quota = pool.call("GET", "/quotas/vision")
    assert quota.json()["max_priority"] == 7
    changed = {"vgpus": 9}
    stale = pool.call("PUT", "/quotas/vision", changed, **{"If-Match": '"99"'})
    assert stale.status_code == 412
    fresh = pool.call("PUT", "/quotas/vision", changed, **{"If-Match": quota.headers["etag"]})
    assert fresh.status_code == 200, fresh.text
    of_vm = pool.recorded_id("reservation vm")
    assert pool.call("DELETE", f"/reservations/{of_vm}").status_code == 200
    assert pool.get(f"/reservations/{of_vm}")["state"] == "ended"


def test_a_server_that_returns_finds_its_grants_and_ends_them_when_told(pool: Pool) -> None:
    names = ("grant local", "grant vm", "grant job")
    ours = [pool.recorded_id(name) for name in names]
    live = {each["id"]: each for each in pool.get("/grants")["grants"]}
    assert live.keys() >= set(ours)
    sessions = {each["grant_id"]: each for each in pool.get("/sessions")["sessions"]}

    async def check() -> None:
        token_file = pool.folder / "node-a.token"
        token_file.write_text(pool.known["secrets"]["node-a"] + "\n")
        token_file.chmod(0o600)
        server = ReturningServer("node-a", pool.running.grpc[0], 3, token_file)
        server.reports = [report_of(live[g], sessions[g]) for g in ours]
        try:
            await server.joined()
            await until(lambda: pool.get("/nodes/node-a")["state"] == "up")
            after = {each["id"]: each for each in pool.get("/grants")["grants"]}
            assert after.keys() == live.keys()
            for grant in ours:
                assert after[grant]["vgpus"] == live[grant]["vgpus"]
                assert after[grant]["reservation"] == live[grant]["reservation"]
            first = ours[0]
            answer = await asyncio.to_thread(pool.call, "DELETE", f"/grants/{first}")
            assert answer.status_code == 202, answer.text
            await until(lambda: pool.get(f"/grants/{first}")["state"] == "ended")
            assert [grant for grant, _ in server.ended_by_controller] == [first]
            # what waits keeps its turn until it is withdrawn; then the pool goes on
            late = f"/reservations/{pool.recorded_id('reservation waiting')}"
            assert pool.get(late)["state"] == "waiting"
            assert (await asyncio.to_thread(pool.call, "DELETE", late)).status_code == 200
            new = await server.take_as(program="new.py", memory_mib=512, compute_percent=1)
            assert pool.get(f"/grants/{new.grant_id}")["state"] == "live"
        finally:
            await server.close()

    asyncio.run(check())


class ReturningServer(StoredServer):
    """A server that reports what it had been running."""

    reports: list[rpc.SessionReport] = []  # noqa: RUF012

    def inventory(self) -> rpc.Inventory:
        found = super().inventory()
        found.sessions.extend(self.reports)
        return found

    def end_grant(self, grant_id: str, reason: str) -> None:
        self.ended_by_controller.append((grant_id, reason))
        for report in self.reports:
            if report.grant_id == grant_id:
                ended = rpc.SessionEnded(
                    session_id=report.session_id, grant_id=grant_id, reason="done"
                )
                self.link.report(rpc.NodeReport(session_ended=ended))


def report_of(grant: dict[str, Any], session: dict[str, Any]) -> rpc.SessionReport:
    """A session as the server that has it reports it."""
    return rpc.SessionReport(
        session_id=session["id"],
        grant_id=grant["id"],
        vgpus=[
            rpc.Vgpu(
                gpu_uuid=each["gpu"].partition(":")[2],
                memory_mib=each["memory_mib"],
                compute_percent=each["compute_percent"],
            )
            for each in grant["vgpus"]
        ],
        channel=session["channel"],
        program=session["program"],
        priority=grant["priority"],
        project=grant["project"],
        job=grant["job"],
        job_processes=grant["job_processes"],
    )


async def until(what: Callable[[], bool]) -> None:
    """Waits for something of the pool."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(what):
            await asyncio.sleep(0.05)


def test_it_is_all_there_again_after_a_restart(pool: Pool) -> None:
    ours = pool.recorded_id("reservation label")
    before = pool.get(f"/reservations/{ours}")
    events = pool.get("/events?limit=3")["events"]
    pool.running.signal(0, signal.SIGKILL)
    pool.running.start_one(0)
    pool.running.leader()
    assert pool.get(f"/reservations/{ours}") == before
    assert pool.get("/quotas/vision")["vgpus"] == 9
    found = pool.get("/events?limit=1000")["events"]
    assert all(event in found for event in events)
