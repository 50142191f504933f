# SPDX-License-Identifier: Apache-2.0
"""Several real controllers over one etcd, and servers that are simulated down to their own link.

Used by tests/controller and tests/bench. Controllers owns its processes. A SimulatedServer is the
server's real ControllerLink (real gRPC, real protocol) with records instead of workers: it reports
as running what it was granted, so that what was acknowledged can be held against what exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from control_plane import PYTHON_PATH, wait_for
from ends import DONE
from forks import OTHER_CODE, Service, start_service
from free_ports import free_port
from places import HERE, Place

from sluice.resources.ends import End
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, LocalGrant
from sluice.server.controller.orders import OrderRefused


class Controllers:
    """Controllers that share a store; start() first.

    They are forked off one that has loaded what a controller does, unless their code is another
    (`program`, `environment`), they are elsewhere, or `anew` wants them as users start them.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        store: dict[str, Any],
        *,
        pool: dict[str, Any] | None = None,
        auth: dict[str, Any] | None = None,
        log_level: str = "INFO",
        places: Sequence[Place] = (),
        program: Sequence[str] = (),
        anew: bool = False,
        environment: dict[str, str] | None = None,
        database: Path | None = None,
    ) -> None:
        self._folder = folder
        self.database = database or folder / "controller.db"
        self._places = places or [HERE] * count
        self._program = program
        self._anew = anew
        self._told = environment or {}
        self._environment = {**os.environ, "PYTHONPATH": str(PYTHON_PATH), **self._told}
        self.token = ""  # shown with every REST call
        self.rest = [f"{place.address}:{free_port()}" for place in self._places]
        self.grpc = [f"{place.address}:{free_port()}" for place in self._places]
        self.processes: list[Service | None] = [None] * count
        for number in range(count):
            sections = {
                "log": {
                    "log_dir": folder / f"log{number}",
                    "log_level": log_level,
                    "file_log_level": log_level,
                },
                "controller": {
                    "bind_addr": self._places[number].address,
                    "rest_port": self.rest[number].partition(":")[2],
                    "grpc_port": self.grpc[number].partition(":")[2],
                    "store": self.database,
                },
                "store": store,
                "pool": {"heartbeat_seconds": 1, "node_timeout_seconds": 20, **(pool or {})},
                "auth": auth or {},
            }
            lines = []
            for section, keys in sections.items():
                lines += [f"[{section}]", *(f"{key} = {value}" for key, value in keys.items())]
            (folder / f"controller{number}.conf").write_text("\n".join(lines) + "\n")

    @property
    def addresses(self) -> str:
        """What a server or the CLI is configured with."""
        return ",".join(self.rest)

    def start(self) -> None:
        """Starts all and waits for a leader."""
        for number in range(len(self.processes)):
            self.start_one(number)
        self.leader()

    def start_one(self, number: int, environment: dict[str, str] | None = None) -> None:
        """Starts one, anew or again; with `environment` another one, such as a newer release's."""
        said = self._folder / f"controller{number}.out"
        config = ["--config", str(self._folder / f"controller{number}.conf")]
        variables = {**self._environment, **(environment or {})}
        enter, other = self._places[number].enter, OTHER_CODE & {*self._told, *(environment or {})}
        if not (self._anew or self._program or enter or other):
            self.processes[number] = start_service("controller", config, said, variables)
            return
        program = self._program or ("-m", "sluice.controller")
        with said.open("ab") as out:
            self.processes[number] = subprocess.Popen(
                [*enter, sys.executable, *program, *config], stdout=out, stderr=out, env=variables
            )

    def part(self, number: int) -> dict[str, Any]:
        """What a controller says of itself; empty while it does not answer."""
        try:
            answer = httpx.get(f"http://{self.rest[number]}/v1/controller", timeout=1)
        except httpx.TransportError:
            return {}
        result: dict[str, Any] = answer.json()
        return result

    def leader(self, seconds: float = 300.0) -> int:
        """The number of the one that leads, waiting for it."""

        def leading() -> list[int]:
            return [
                number
                for number, process in enumerate(self.processes)
                if process and self.part(number).get("leads")
            ]

        return int(wait_for(leading, seconds, "a leader")[0])

    def both(self) -> tuple[int, int]:
        """Of two: the leader and its follower, once both know that."""
        found: list[int] = []

        def settled() -> bool:
            leader = self.leader()
            found[:] = leader, 1 - leader
            return self.part(1 - leader).get("leader") == self.rest[leader]

        wait_for(settled, 120, "a leader and a follower")
        return found[0], found[1]

    def signal(self, number: int, what: signal.Signals) -> None:
        """Kills, pauses or continues one."""
        process = self.processes[number]
        assert process
        process.send_signal(what)
        if what in (signal.SIGKILL, signal.SIGTERM):
            process.wait()
            self.processes[number] = None

    def get(self, path: str, **parameters: Any) -> Any:
        """A GET to whoever leads; to the next one where that ends in between."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}

        def answered() -> httpx.Response | None:
            url = f"http://{self.rest[self.leader()]}/v1{path}"
            try:
                answer = httpx.get(url, params=parameters, headers=headers, timeout=60)
            except httpx.TransportError:
                return None
            return None if answer.status_code in (307, 503) else answer

        answer = wait_for(answered, 300, "a leader's answer")
        answer.raise_for_status()
        return answer.json()

    def grants(self) -> list[dict[str, Any]]:
        """Every live grant, page by page."""
        found: list[dict[str, Any]] = []
        marker: dict[str, str] = {}
        while True:
            page = self.get("/grants", **marker)
            found += page["grants"]
            if not page.get("next_marker"):
                return found
            marker = {"marker": page["next_marker"]}

    def first_token(self) -> str:
        """The admin token that the first leader of a new pool printed."""
        printed = "".join(self.log(number) for number in range(len(self.processes)))
        found = re.search(r"^ +(sluice_\S+)$", printed, re.MULTILINE)
        assert found, "no controller has printed a token"
        return found[1]

    def log(self, number: int) -> str:
        """What one printed."""
        return (self._folder / f"controller{number}.out").read_text()

    def close(self) -> None:
        """Ends all."""
        for process in self.processes:
            if process:
                process.kill()
                process.wait()


@contextmanager
def controllers(
    folder: Path, count: int, store: dict[str, Any], **options: Any
) -> Iterator[Controllers]:
    """Running controllers for the time of a block."""
    several = Controllers(folder, count, store, **options)
    try:
        several.start()
        yield several
    finally:
        several.close()


class SimulatedServer:
    """A server of the pool without workers; it is the ServerSide of a real ControllerLink."""

    def __init__(self, name: str, targets: Sequence[str], gpus: int = 16) -> None:
        self.name = name
        self.gpus = gpus
        self.running: dict[str, tuple[LocalGrant, rpc.GrantRequest]] = {}
        self.ended_by_controller: list[tuple[str, str]] = []
        self.acknowledged: list[float] = []  # when grants came, monotonic
        self.link = ControllerLink(targets, self, wait_seconds=30)
        self._line = asyncio.create_task(self.link.run())

    async def joined(self) -> None:
        """Returns once the controller has welcomed it."""
        while not self.link.is_connected:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Vanishes."""
        self._line.cancel()
        await asyncio.gather(self._line, return_exceptions=True)
        await self.link.close()

    async def take(self, wait_seconds: int = -1) -> LocalGrant:
        """Asks for one percent of a GPU, and runs it; raises RefusalError."""
        request = rpc.GrantRequest(
            node=self.name, vgpu_count=1, memory_mib=1, compute_percent=1,
            wait_seconds=wait_seconds,
            local_only=True, channel="shm", program=f"p-{secrets.token_hex(4)}",
        )  # fmt: skip
        async with self.link.grant(request, lambda _: None) as grant:
            self.running[grant.grant_id] = (grant, request)
            self.acknowledged.append(time.monotonic())
        return grant

    def end(self, grant: LocalGrant) -> None:
        """Its process is gone."""
        if self.running.pop(grant.grant_id, None):
            self.link.report_end(grant.session_id, grant.grant_id, DONE)

    async def call(self, held_seconds: float = 0.02, keep_every: int = 5) -> None:
        """Takes grants and gives most of them back, until it is cancelled."""
        taken = 0
        while True:
            grant = await self.take()
            taken += 1
            await asyncio.sleep(held_seconds)
            if taken % keep_every:
                self.end(grant)

    def longest_gap(self, since: float) -> float:
        """The longest time without a grant after that moment."""
        times = [since, *(t for t in self.acknowledged if t >= since)]
        return max(b - a for a, b in itertools.pairwise(times))

    # ServerSide

    def inventory(self) -> rpc.Inventory:
        """Everything that it believes to run."""
        return rpc.Inventory(
            sharing=rpc.NodeSharing(shares="kept"),
            node=self.name, data_address="127.0.0.1", data_port=1, version="simulated",
            vgpu_count=4,
            gpus=[
                rpc.Gpu(uuid=f"{self.name}-{n}", model="simulated", memory_mib=65536, software=True)
                for n in range(self.gpus)
            ],
            sessions=[
                rpc.SessionReport(
                    session_id=grant.session_id, grant_id=grant_id, request_id=grant.request_id,
                    vgpus=[
                        rpc.Vgpu(gpu_uuid=v.gpu_uuid, memory_mib=v.memory_mib,
                                 compute_percent=v.compute_percent)
                        for v in grant.vgpus
                    ],
                    channel="shm", program=request.program, started=time.time(),
                )
                for grant_id, (grant, request) in self.running.items()
            ],
        )  # fmt: skip

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        """Never asked for here."""
        raise OrderRefused(f"no session {assignment.session_id} is expected here")

    def end_grant(self, grant_id: str, why: End) -> None:
        """The controller's word is the end of it."""
        self.ended_by_controller.append((grant_id, why.text))
        with contextlib.suppress(KeyError):
            self.end(self.running[grant_id][0])

    def read_figures(self, session_id: str) -> Sequence[rpc.SessionStep]:
        """Nothing is used."""
        return []

    async def read_view(
        self, session_ids: Sequence[str], idle: Sequence[rpc.Vgpu]
    ) -> Sequence[rpc.SessionView]:
        """Nobody looks."""
        del session_ids, idle
        return []

    def end_session(self, session_id: str, why: End) -> None:
        """It goes, and so does its grant, which has no other."""
        for grant, *_ in list(self.running.values()):
            if grant.session_id == session_id:
                self.end(grant)

    def suspend_grant(self, order: rpc.SuspendGrant) -> None:
        """It has no host memory for that, and says so (swap_mib of its inventory)."""
        refused = rpc.GrantSuspension(
            grant_id=order.grant_id, state="running", error="simulated", serial=order.serial
        )
        self.link.report(rpc.NodeReport(grant_suspension=refused))

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """There is nothing that could not be."""

    async def hand_over(self, order: rpc.HandOver) -> None:
        """Nothing holds a simulated GPU."""

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        """There is no VM here."""
        return rpc.NativeDone(call=order.call, error="a simulated server has no VMs")

    async def change_request(self, order: rpc.ChangeRequest) -> rpc.RequestChanged:
        """There is no VM here."""
        return rpc.RequestChanged(call=order.call, error="a simulated server has no VMs")

    def report_holdings(self) -> None:
        """None, and no libvirt that would say so."""

    def order_gpu(self, uuid: str, *, clear: bool) -> None:
        """Its GPUs are never sick."""

    def read_log(self, session_id: str, tail_bytes: int) -> str:
        """There is none."""
        raise FileNotFoundError(session_id)
