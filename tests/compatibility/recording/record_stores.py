# SPDX-License-Identifier: Apache-2.0
"""Records a pool in use, as this tree's controller stores it: in SQLite and in etcd.

Called by record.py. The same things are done to a controller over each store; then it is killed,
and its store is written down as text, with what REST had answered and the secrets that belong to it
(they open nothing else).
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from control_plane import wait_for
from controllers import Controllers, SimulatedServer, controllers
from etcd_members import EtcdMembers, etcd_members

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, LocalGrant
from sluice.server.controller.tls import ControllerCredentials

VM = "606ef660-97e7-4293-92c4-c8b7480e0c99"
PREFIX = "/sluice/"
#: What is asked of REST at the end, and what of each thing says which it is.
LISTS = {
    "nodes": "/nodes",
    "gpus": "/gpus",
    "grants": "/grants?state=all",
    "sessions": "/sessions?state=all",
    "reservations": "/reservations?state=all",
    "quotas": "/quotas",
    "tokens": "/tokens",
    "enrolments": "/enrolments",
    "attachments": "/attachments",
    "events": "/events?limit=1000",
    "audit": "/audit?limit=1000",
    "usage": "/usage",
}


class StoredServer(SimulatedServer):
    """A simulated server with a token, whose first GPU may be a VM's, and that takes clients."""

    def __init__(self, name: str, target: str, gpus: int, token_file: Path) -> None:
        self.holder = ""
        super().__init__(name, [target], gpus)
        self._line.cancel()  # of a link without a token
        credentials = ControllerCredentials(None, token_file)
        self.link = ControllerLink([target], self, 30, credentials)
        self._line = asyncio.create_task(self.link.run())

    async def take_as(self, **fields: Any) -> LocalGrant:
        """A grant for a process of this host."""
        asked_for = {"vgpu_count": 1, "memory_mib": 2048, "compute_percent": 25, "channel": "shm"}
        request = rpc.GrantRequest(node=self.name, **{**asked_for, **fields})
        async with self.link.grant(request, lambda _: None) as grant:
            self.running[grant.grant_id] = (grant, request)
            report = next(s for s in self.inventory().sessions if s.grant_id == grant.grant_id)
            report.host, report.client_pid, report.client_uid = "workstation", 4711, 1000
            self.link.report(rpc.NodeReport(session_started=report))
        return grant

    def inventory(self) -> rpc.Inventory:
        found = super().inventory()
        found.hands_over = True
        found.labels.append(rpc.Label(name="rack", value="r12"))
        found.gpus[0].pci_address = "0000:65:00.0"
        return found

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        self.holder = order.attach.domain if order.HasField("attach") else ""
        done = rpc.NativeDone(call=order.call)
        if self.holder:
            done.holding.CopyFrom(self._holding())
        return done

    def report_holdings(self) -> None:
        held = [self._holding()] if self.holder else []
        self.link.report(rpc.NodeReport(native_holdings=rpc.NativeHoldings(holdings=held)))

    def _holding(self) -> rpc.NativeHolding:
        return rpc.NativeHolding(
            pci_address="0000:65:00.0",
            domain_uuid=VM,
            domain_name=self.holder,
            live=True,
            config=True,
        )

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        """Every client over the network is welcome."""


class Filling:
    """What is done to a pool."""

    def __init__(self, pool: Controllers, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self.secrets = {"admin": pool.first_token()}
        self.kept: dict[str, Any] = {}
        self.url = f"http://{pool.rest[0]}/v1"

    async def call(self, method: str, path: str, body: Any = None, **how: Any) -> Any:
        """A REST call that has to succeed."""
        secret = self.secrets[how.pop("by", "admin")]
        headers = {"Authorization": f"Bearer {secret}", **how}

        def ask() -> httpx.Response:
            return httpx.request(method, self.url + path, json=body, headers=headers, timeout=30)

        answer = await asyncio.to_thread(ask)
        if answer.is_error:
            raise SystemExit(f"{method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    async def until(self, what: Callable[[Any], bool], path: str) -> Any:
        """GETs until it is as wanted."""
        for _ in range(600):
            if what(found := await self.call("GET", path)):
                return found
            await asyncio.sleep(0.1)
        raise SystemExit(f"{path} stays {found}")

    async def token(self, name: str, **fields: Any) -> None:
        """A token, whose secret is kept."""
        made = await self.call("POST", "/tokens", {"name": name, **fields})
        self.secrets[name] = made["secret"]
        self.kept[f"token {name}"] = made["id"]

    async def server(self, name: str, gpus: int) -> StoredServer:
        """A node that has joined."""
        await self.token(name, role="node", node=name)
        token_file = self.folder / f"{name}.token"
        token_file.write_text(self.secrets[name] + "\n")
        token_file.chmod(0o600)
        server = StoredServer(name, self.pool.grpc[0], gpus, token_file)
        await server.joined()
        await self.until(lambda node: bool(node["state"] == "up"), f"/nodes/{name}")
        return server

    async def fill(self) -> None:
        """Everything that a store keeps."""
        first = await self.server("node-a", 3)
        second = await self.server("node-b", 1)
        third = await self.server("node-c", 1)
        for name in ("operator", "viewer"):
            await self.token(name, role=name)
        rights = {"max_priority": 5, "may_preempt": True, "label": "blue"}
        await self.token("tenant", role="tenant", project="vision", **rights)
        await self.token("revoked", role="operator", expires_seconds=10**7)
        await self.call("DELETE", f"/tokens/{self.kept['token revoked']}")

        quota = {"vgpus": 8, "memory_mib": 65536, "compute_percent": 400, "may_preempt": True}
        await self.call("PUT", "/quotas/vision", {**quota, "max_priority": 7})
        await self.call("PUT", "/quotas/audio", {"vgpus": 1})
        size = {"memory_mib": 4096, "compute_percent": 20}
        for owner in (
            {"owner_kind": "label", "owner": "blue", "project": "vision", "count": 2},
            {"owner_kind": "project", "owner": "vision", "project": "vision"},
            {"owner_kind": "vm", "owner": VM, "origin": "vsphere.dc1", "priority": 3},
        ):
            made = await self.call("POST", "/reservations", {**owner, **size})
            self.kept[f"reservation {owner['owner_kind']}"] = made["id"]
        made = await self.call("POST", "/reservations", {"owner_kind": "label", "owner": "old"})
        await self.call("DELETE", f"/reservations/{made['id']}")

        key = {"Idempotency-Key": "recorded-1"}
        body = {"owner_kind": "label", "owner": "once", **size}
        answer = await self.call("POST", "/reservations", body, by="operator", **key)
        self.kept["idempotent"] = {"key": "recorded-1", "body": body, "answer": answer}

        for name in ("open", "used", "withdrawn"):
            asked_for = {"project": "vision", "name": name, "expires_seconds": 3600}
            made = await self.call("POST", "/enrolments", asked_for, by="operator")
            self.secrets[f"enrolment {name}"] = made["secret"]
            self.kept[f"enrolment {name}"] = made["id"]
        enrolled = await self.call("POST", "/enrol", by="enrolment used")
        self.secrets["enrolled"] = enrolled["secret"]
        withdrawn = self.kept["enrolment withdrawn"]
        await self.call("DELETE", f"/enrolments/{withdrawn}", by="operator")

        grant = await first.take_as(program="train.py", priority=4, project="vision")
        self.kept["grant local"] = grant.grant_id
        grant = await first.take_as(program="ünïcode", domain_uuid=VM, domain_name="web")
        self.kept["grant vm"] = grant.grant_id
        grant = await first.take_as(program="over", project="audio")
        first.end(grant)
        self.kept["grant ended"] = grant.grant_id
        await self.until(lambda g: bool(g["state"] == "ended"), f"/grants/{grant.grant_id}")
        ticket = await self.call(
            "POST",
            "/sessions",
            {
                "gmem_mib": 1000,
                "ratio_percent": 10,
                "vgpu_count": 2,
                "host": "laptop",
                "program": "job.py",
                "job": "0123456789abcdef" * 2,
                "job_processes": 2,
                "same_gpu_allowed": True,
            },
            by="tenant",
        )
        self.kept["grant job"] = ticket["grant_id"]

        waiting = {"owner_kind": "project", "owner": "late", "count": 4, "wait": True}
        waiting |= {"memory_mib": 60000, "compute_percent": 100}
        made = await self.call("POST", "/reservations", waiting)
        self.kept["reservation waiting"] = made["id"]

        machines = [
            rpc.GuestMachine(
                domain_uuid=VM, domain_name="web", project="vision", vgpu_count=1, priority=2,
                memory_mib=4096, compute_percent=20, mode="auto",
            ),
            rpc.GuestMachine(
                domain_uuid=VM[:-1] + "8", domain_name="wrong", problems=["memory-mib=-1: give 1"]
            ),
        ]  # fmt: skip
        first.link.report(rpc.NodeReport(guest_machines=rpc.GuestMachines(machines=machines)))
        await self.call("PUT", "/nodes/node-b/drain")
        await self.call("PUT", "/gpus/node-a:node-a-2/switch", {"to": "drained"})
        await self.until(lambda gpu: bool(gpu["mode"] == "drained"), "/gpus/node-a:node-a-2")
        await self.call("PUT", "/gpus/node-c:node-c-0/switch", {"to": "native"})
        await self.until(lambda gpu: bool(gpu["mode"] == "native"), "/gpus/node-c:node-c-0")
        await self.call("PUT", "/gpus/node-c:node-c-0/attachment", {"domain": "web"})
        await self.until(lambda gpu: bool(gpu["held_by"] == "web"), "/gpus/node-c:node-c-0")
        note = {"kind": "adapter.recorded", "subject": VM, "text": "a note of an adapter"}
        await self.call("POST", "/events", note, by="operator")
        await self.until(
            lambda events: any(e["kind"] == "vm.problem" for e in events["events"]),
            "/events?limit=1000",
        )
        await asyncio.sleep(2)  # of use
        self.answers = {name: await self.call("GET", path) for name, path in LISTS.items()}
        self.answers["at"] = time.time()
        self.pool.signal(0, signal.SIGKILL)
        for server in (first, second, third):
            await server.close()


def fill(pool: Controllers, folder: Path, out: Path) -> None:
    """Fills a pool and ends it; what belongs to its store."""
    filling = Filling(pool, folder)
    asyncio.run(filling.fill())
    known = {"secrets": filling.secrets, "ids": filling.kept, "answers": filling.answers}
    out.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def dump_sqlite(path: Path) -> str:
    """The file as SQL, its version included."""
    with sqlite3.connect(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return "\n".join([*connection.iterdump(), f"PRAGMA user_version = {version};", ""])


def dump_etcd(members: EtcdMembers) -> str:
    """Every key of the pool, base64, but those of a lease, which are the leader's own."""
    first, end = (base64.b64encode(key).decode() for key in (b"/sluice/", b"/sluice0"))
    answer = etcd_call(members, "range", {"key": first, "range_end": end})
    lines = [
        json.dumps({"key": each["key"], "value": each.get("value", "")})
        for each in answer["kvs"]
        if not int(each.get("lease", 0))
    ]
    return "\n".join([*lines, ""])


def etcd_call(members: EtcdMembers, verb: str, body: dict[str, Any]) -> Any:
    """A call of etcd's JSON gateway, where keys and values are base64."""
    answer = httpx.post(f"http://{members.endpoints[0]}/v3/kv/{verb}", json=body, timeout=30)
    answer.raise_for_status()
    return answer.json()


def record_stores(out: Path) -> None:
    """Writes both stores into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    auth = {"required": "yes"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with controllers(folder, 1, {}, auth=auth) as pool:
            fill(pool, folder, out / "sqlite.json")
        (out / "sqlite.sql").write_text(dump_sqlite(folder / "controller.db"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with etcd_members(folder / "etcd") as members:
            store = {"kind": "etcd", "endpoints": ",".join(members.endpoints), "prefix": PREFIX}
            with controllers(folder, 1, store, auth=auth) as pool:
                wait_for(lambda: "leading" in pool.log(0), message="a leader")
                fill(pool, folder, out / "etcd.json")
            (out / "etcd.jsonl").write_text(dump_etcd(members))
