# SPDX-License-Identifier: Apache-2.0
"""Stands in for the controller of one server: grants of one size, at once, to whoever asks.

Used by static_server.py. A session has as many vGPUs as it asks for, up to a number, with the
share of compute that it asks for (100 %), and each has as much memory as all others; sessions of
one job have one grant. StaticLink answers the server as its controller would, StaticTickets those
who ask a controller for a session over REST, and RelayLink a server that has no GPU itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from fake_controller_link import FakeControllerLink

from sluice.config.job_token import job_of
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_request import Sharing
from sluice.resources.vgpu_view import Process, view_text
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu, LocalGrant
from sluice.server.controller.orders import ServerSide

KEY_SECONDS = 60
NODE = "static"


class StaticLink(FakeControllerLink):
    """A server's connection to a controller that always has room on that server's GPUs."""

    wait_line = ""

    def __init__(self, side: ServerSide, vgpus: int, memory_mib: int) -> None:
        super().__init__()
        self.side = side
        self._most = vgpus
        self._memory_mib = memory_mib
        self._of_jobs: dict[tuple[str, str], LocalGrant] = {}

    def granted(self, request: rpc.GrantRequest) -> LocalGrant:
        """What a session gets: its own, or its job's."""
        if not request.job:
            return self._new(request)
        key = (request.job_domain, request.job)
        grant = self._of_jobs.setdefault(key, self._new(request))
        return LocalGrant(grant.grant_id, secrets.token_hex(8), request.request_id, grant.vgpus)

    def running(self) -> set[str]:
        """The ids of the server's sessions."""
        return {session.session_id for session in self.side.inventory().sessions}

    def assign(self, request: rpc.GrantRequest) -> rpc.Assignment:
        """What a session gets whose client comes to the data port, which expects it from now on."""
        granted = self.granted(request)
        assignment = rpc.Assignment(
            session_id=granted.session_id,
            grant_id=granted.grant_id,
            key=secrets.token_hex(16),
            key_seconds=KEY_SECONDS,
            vgpus=[vgpu.message for vgpu in granted.vgpus],
            host=request.host,
            program=request.program,
            job=request.job,
            job_domain=request.job_domain,
            chosen=request.chosen,
            relay=request.node if request.relay else "",
            client_pid=request.client_pid,
            client_uid=request.client_uid,
        )
        self.side.take_assignment(assignment)
        return assignment

    async def view(self, request: rpc.ViewRequest) -> rpc.ViewAnswer:
        """What a session would get, or those have that are asked for."""
        if request.session_ids:
            return rpc.ViewAnswer(sessions=await self.side.read_view(request.session_ids, ()))
        vgpus = [vgpu.message for vgpu in self._new(request.request).vgpus]
        return rpc.ViewAnswer(sessions=await self.side.read_view((), vgpus))

    def suspend_all(self, *, resume: bool, elsewhere: bool = False) -> None:
        """As a controller orders it, of every grant that runs.

        `elsewhere`: each comes back on another GPU than it is on, the next of the server's.
        """
        there = self.side.inventory()
        gpus = [gpu.uuid for gpu in there.gpus]
        for grant_id, uuid in {s.grant_id: s.vgpus[0].gpu_uuid for s in there.sessions}.items():
            to = gpus[(gpus.index(uuid) + 1) % len(gpus)] if elsewhere else ""
            self.side.suspend_grant(rpc.SuspendGrant(grant_id=grant_id, resume=resume, gpu_uuid=to))

    def _new(self, request: rpc.GrantRequest) -> LocalGrant:
        count, percent = request.vgpu_count, request.compute_percent or 100
        gpus = [gpu.uuid for gpu in self.side.inventory().gpus]
        sharing = Sharing.heard(request.sharing)
        vgpus = tuple(
            GrantedVgpu(gpus[place % len(gpus)], self._memory_mib, percent, sharing)
            for place in range(min(count or 1, self._most))
        )
        return LocalGrant(secrets.token_hex(8), secrets.token_hex(8), "", vgpus)


class RelayLink(FakeControllerLink):
    """Of a server without a GPU: what its clients are granted is on the server of `near`."""

    wait_line = ""

    def __init__(self, near: StaticLink) -> None:
        super().__init__()
        self._near = near

    async def view(self, request: rpc.ViewRequest) -> rpc.ViewAnswer:
        return await self._near.view(request)

    def granted(self, request: rpc.GrantRequest) -> LocalGrant:
        assignment = self._near.assign(request)
        there = self._near.side.inventory()
        target = rpc.RelayTarget(
            node=there.node,
            address=there.data_address,
            port=there.data_port,
            key=assignment.key,
            tls=there.data_tls,
        )
        vgpus = tuple(map(GrantedVgpu.of, assignment.vgpus))
        return LocalGrant(
            assignment.grant_id, assignment.session_id, request.request_id, vgpus, target
        )


class StaticTickets:
    """The answers of a controller's REST that clients on the network need.

    `address`: which tickets name in the place of the data port's own.
    """

    def __init__(self, link: StaticLink, address: str = "") -> None:
        self._link = link
        self._address = address
        self._processes: dict[str, Process] = {}  # by session

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        """While the block runs."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", port):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with _closing(writer.close):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            lengths = [
                int(value)
                for name, _, value in (line.partition(":") for line in head.splitlines())
                if name == "content-length"
            ]
            asked = await reader.readexactly(sum(lengths))
            status, answer = "404 Not Found", {"title": "Only POST /v1/sessions is served here"}
            if head.startswith("post /v1/sessions "):
                status, answer = self._ticket(json.loads(asked))
            if head.startswith("post /v1/views "):
                status, answer = "200 OK", await self._view(json.loads(asked))
            body = json.dumps(answer)
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()

    async def _view(self, asked: dict[str, Any]) -> dict[str, Any]:
        ids = [each for each in self._processes if each in self._link.running()]
        wanted = rpc.GrantRequest(vgpu_count=asked["vgpu_count"])
        answer = await self._link.view(rpc.ViewRequest(request=wanted, session_ids=ids))
        shown: dict[str, Any] = json.loads(view_text(answer.sessions, self._processes, whose="net"))
        return shown

    def _ticket(self, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        token = asked.get("job", "")
        try:
            job = job_of(token) if token else ""
        except ValueError as error:
            return "422 Unprocessable Content", {
                "type": ProblemType.INVALID_JOB_TOKEN.uri,
                "detail": str(error),
                "cuda_error": CudaStatus.INVALID_VALUE,
            }
        assignment = self._link.assign(
            rpc.GrantRequest(
                vgpu_count=asked["vgpu_count"],
                host=asked["host"],
                program=asked["program"],
                client_pid=asked["pid"],
                job=job,
                job_domain="network",
                chosen=asked.get("chosen", []),
            )
        )
        self._processes[assignment.session_id] = Process(asked["pid"], asked["program"])
        there = self._link.side.inventory()
        address = self._address or there.data_address
        ticket = {"address": address, "port": there.data_port, "key": assignment.key}
        if there.data_tls:
            ticket |= {"tls": True, "tls_name": there.node}
        return "201 Created", ticket


@contextlib.contextmanager
def _closing(close: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        pass  # whoever asked has gone
    finally:
        close()
