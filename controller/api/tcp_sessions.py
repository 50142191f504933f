# SPDX-License-Identifier: Apache-2.0
"""POST /v1/sessions: where a client without a server near it asks for a session.

Mounted by controller.api.app. The answer names a GPU node's data port and a one-time key, which
that node already holds when the client reads it. If the client hangs up while it waits, or the
node does not take the assignment, the grant is given back. While it waits, the client may ask
where it stands, by the Idempotency-Key of its request, which nobody else knows.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Request

from sluice.config.job_token import job_of
from sluice.config.places import Places
from sluice.controller.api.authorisation import Client
from sluice.controller.api.problems import Problem, no_place, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import (
    HoldRequest,
    PlaceInQueue,
    SessionRequest,
    SessionTicket,
    TicketPart,
)
from sluice.controller.auth.access import Caller
from sluice.controller.auth.tokens import Role
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Granted, GrantRequest, Refused
from sluice.controller.pool.grants.jobs import JobKey, network_domain
from sluice.controller.pool.model import DEFAULT_PROJECT, Grant, Mode, Session
from sluice.controller.rpc.announcing import NODE_TRIES, NotTaken, announce
from sluice.controller.rpc.messages import other_node_message
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.store.store import StoreError
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.resources.problem_types import ProblemType
from sluice.rpc import pool_pb2 as rpc

HANGUP_POLL_SECONDS = 1.0
HUNG_UP = "the client hung up"
#: Jobs that launchers hold over REST, each by a connection.
MOST_HOLDS = 2048
MOST_HOLDS_OF_CALLER = 512


class _Tickets:
    """Sessions that are asked for over REST: from the request to where its client connects."""

    def __init__(self, grant_service: GrantService, service: PoolService, key_seconds: int) -> None:
        self._grant_service = grant_service
        self._service = service
        self._key_seconds = key_seconds
        self._waits: dict[tuple[str, str], GrantRequest] = {}  # by caller and Idempotency-Key

    def waiting(self, caller: Caller, idempotency_key: str) -> GrantRequest | None:
        """The caller's request with this key, while it waits."""
        wanted = self._waits.get((caller.id, idempotency_key)) if idempotency_key else None
        queue = self._grant_service.pool.queue
        return wanted if wanted is not None and wanted.request_id in queue else None

    async def open(self, body: SessionRequest, request: Request, caller: Caller) -> SessionTicket:
        """Asks until a node takes the session; raises Problem, StoreError."""
        peer = request.client.host if request.client else ""
        asked = grant_request_of(self._grant_service, body, caller, peer)
        if len(set(body.chosen)) < len(body.chosen):
            raise Problem(422, ProblemType.INVALID_CHOICE, "`chosen` names a vGPU twice")
        trouble = ""
        for _ in range(NODE_TRIES):
            wanted = replace(asked, request_id=secrets.token_hex(8))
            if refusal := self._grant_service.pool.requests.not_allowed(wanted):
                raise Problem(
                    403, ProblemType.NOT_ALLOWED, refusal.message, cuda_error=int(refusal.status)
                )
            ticket, trouble = await self._ask(wanted, request, caller)
            if ticket:
                return ticket
        raise Problem(
            503,
            ProblemType.SESSION_NOT_TAKEN,
            f"{trouble}; look at `sluice node list` and try again",
            cuda_error=int(CudaStatus.SYSTEM_NOT_READY),
        )

    async def _ask(
        self, wanted: GrantRequest, request: Request, caller: Caller
    ) -> tuple[SessionTicket | None, str]:
        """A ticket, or why a node of the grant did not take its session."""
        keys, trouble = list[str](), ""
        asked = (caller.id, request.headers.get("idempotency-key", ""))
        self._service.under_way.add(wanted.request_id)
        self._waits[asked] = wanted
        try:
            answer = await _answer_or_hangup(self._grant_service, wanted, request)
            # a client that waited may be gone by now, and nobody else has the key
            gone = await request.is_disconnected()
            if not gone:
                keys = await self._announce(answer)
                gone = await request.is_disconnected()
        except NotTaken as not_taken:
            trouble = str(not_taken)
            gone = await request.is_disconnected()
        finally:
            self._service.under_way.discard(wanted.request_id)
            if self._waits.get(asked) is wanted:
                del self._waits[asked]
        if not trouble and not gone:
            return self._ticket(answer, keys), ""
        why = End(EndCause.WITHDRAWN, HUNG_UP) if gone else End(EndCause.NOT_TAKEN, trouble)
        lifecycle = self._grant_service.pool.lifecycle
        await self._grant_service.step(lambda: lifecycle.not_taken(answer, why))
        if gone:
            raise _hung_up()
        return None, trouble

    async def _announce(self, answer: Granted) -> list[str]:
        """Returns the key of each of its sessions, once their nodes expect it. Raises NotTaken."""
        keys = [secrets.token_hex(16) for _ in answer.sessions]
        links, seconds = self._service.links, self._seconds(answer)
        others = self._others(answer)
        calls = (
            announce(self._grant_service, links, answer, session, key, seconds, others[session.id])
            for session, key in zip(answer.sessions, keys, strict=True)
        )
        results = await asyncio.gather(*calls, return_exceptions=True)
        for failed in filter(None, results):
            raise failed
        return keys

    def _others(self, answer: Granted) -> dict[str, list[rpc.OtherNode]]:
        """What each session's node is told of the others': each two of them have a key."""
        others: dict[str, list[rpc.OtherNode]] = {session.id: [] for session in answer.sessions}
        for one, other in itertools.combinations(answer.sessions, 2):
            key = secrets.token_hex(32)
            for here, there in ((one, other), (other, one)):
                node = self._grant_service.pool.nodes[there.node]
                others[here.id].append(other_node_message(answer, there, node, key))
        return others

    def _seconds(self, answer: Granted) -> int:
        # its client goes from node to node
        return self._key_seconds * len(answer.sessions)

    def _ticket(self, answer: Granted, keys: list[str]) -> SessionTicket:
        parts = [
            self._part(answer.grant, session, key)
            for session, key in zip(answer.sessions, keys, strict=True)
        ]
        first = parts[0]
        return SessionTicket(
            session_id=first.session_id,
            grant_id=answer.grant.id,
            address=first.address,
            port=first.port,
            tls=first.tls,
            tls_name=first.tls_name,
            key=first.key,
            key_seconds=self._seconds(answer),
            parts=parts if len(parts) > 1 else [],
        )

    def _part(self, grant: Grant, session: Session, key: str) -> TicketPart:
        node = self._grant_service.pool.nodes[session.node]
        return TicketPart(
            node=node.name,
            session_id=session.id,
            address=node.address,
            port=node.port,
            key=key,
            tls=node.data_tls,
            tls_name=node.name if node.data_tls else "",
            vgpus=len(session.chosen or grant.vgpus),
        )


def grant_request_of(
    grant_service: GrantService, body: SessionRequest, caller: Caller, peer: str
) -> GrantRequest:
    """What a caller at this address asks the pool for; raises Problem. Each try has its own id."""
    project = _project(caller, body.project)
    job = _job_name(body.job) if body.job else ""
    return GrantRequest(
        request_id="",
        count=body.vgpu_count or 1,
        memory_mib=body.gmem_mib,
        compute_percent=body.ratio_percent,
        cross_node=body.cross_node,
        one_node=not body.takes_parts,
        gpu_model=body.gpu_model,
        gpu_architecture=body.gpu_architecture,
        labels=tuple(sorted(body.labels.items())),
        priority=body.priority,
        wait_seconds=body.wait_seconds,
        channel="tcp",
        host=body.host or peer,
        program=body.program,
        client_pid=body.pid,
        job=job,
        job_domain=network_domain(caller.project, peer) if job else "",
        job_processes=body.job_processes if job else 0,
        chosen=tuple(body.chosen) if job else (),
        project=project,
        preempt=body.preempt,
        same_gpu=body.same_gpu_allowed,
        mode=Mode(body.mode),
        sharing=body.sharing,
        owner_label=caller.label,
        person=caller.person,
        domain_uuid=caller.vm,
        max_priority=_max_priority(grant_service, caller),
        may_preempt=caller.may_preempt,
    )


def tcp_session_routes(
    grant_service: GrantService, service: PoolService, key_seconds: int
) -> APIRouter:
    """The handlers, bound to one pool."""
    routes = APIRouter(prefix=REST)
    tickets = _Tickets(grant_service, service, key_seconds)

    @routes.post(
        "/sessions",
        tags=["sessions"],
        status_code=201,
        responses=problem_responses(
            (409, "cannot be granted"), (503, "no node took it, or nothing is stored")
        ),
    )
    async def open_session(body: SessionRequest, request: Request, caller: Client) -> SessionTicket:
        """Grants vGPUs on a GPU node and returns where to connect; waits up to wait_seconds."""
        return await tickets.open(body, request, caller)

    @routes.get("/queue/mine", tags=["queue"], responses=problem_responses(404))
    async def show_my_place(
        caller: Client, idempotency_key: Annotated[str, Header(max_length=255)] = ""
    ) -> PlaceInQueue:
        """Where the caller's `POST /sessions` with this Idempotency-Key stands while it waits."""
        wanted = tickets.waiting(caller, idempotency_key)
        if wanted is None:
            raise Problem(
                404,
                ProblemType.NOTHING_WAITS,
                "no request of yours with this Idempotency-Key waits for a grant here",
            )
        place = grant_service.pool.requests.waiting(wanted)
        return PlaceInQueue(
            position=place.position,
            waiting=len(grant_service.pool.queue),
            line=place.line,
            line_seconds=grant_service.line_seconds,
        )

    _add_holds(routes, grant_service)
    return routes


def _add_holds(routes: APIRouter, grant_service: GrantService) -> None:
    """Jobs that are held by a connection."""
    holds = Places(MOST_HOLDS, MOST_HOLDS_OF_CALLER)

    @routes.post(
        "/holds",
        tags=["sessions"],
        responses=problem_responses(422, 429, 503),
    )
    async def hold_job(body: HoldRequest, request: Request, caller: Client) -> None:
        """Keeps a job's grant between its sessions until the client closes the connection.

        So it is never answered but by a refusal.
        """
        peer = request.client.host if request.client else ""
        key = JobKey(_job_name(body.job), network_domain(caller.project, peer))
        if full := holds.take(caller.owner):
            what = f"{holds.of(caller.owner) or MOST_HOLDS} jobs held"
            raise no_place(full, ProblemType.TOO_MANY_HOLDS, caller.owner, what, "end one of them")
        holder = f"request {secrets.token_hex(8)}"
        with holds.held(caller.owner):
            grant_service.pool.lifecycle.job_held(key, holder)
            # a controller that stops is no end of the job: its launcher asks the next one
            while not await request.is_disconnected():
                await asyncio.sleep(HANGUP_POLL_SECONDS)
            await grant_service.step(lambda: grant_service.pool.lifecycle.job_released(key, holder))


def _hung_up() -> Problem:
    return Problem(499, ProblemType.CLIENT_HUNG_UP, "the client closed the connection")


def _job_name(token: str) -> str:
    try:
        return job_of(token)
    except ValueError as error:
        raise Problem(
            422, ProblemType.INVALID_JOB_TOKEN, str(error), cuda_error=int(CudaStatus.INVALID_VALUE)
        ) from None


def _max_priority(grant_service: GrantService, caller: Caller) -> int | None:
    """The highest priority of the caller's requests: a tenant's is 0 unless somebody said more."""
    if caller.project is None or caller.max_priority is not None:
        return caller.max_priority
    most = grant_service.pool.quotas.max_priority(caller.project)
    return 0 if most is None else most


def _project(caller: Caller, wanted: str | None) -> str:
    if caller.project is None:
        if wanted not in (None, DEFAULT_PROJECT) and Role.OPERATOR not in caller.roles:
            raise Problem(
                403,
                ProblemType.PROJECT_OF_ANOTHER,
                f"project {wanted} is wanted, and {caller.id} is nobody's in particular; leave "
                "`project` (SLUICE_PROJECT) out, or show a token of that project",
            )
        return wanted or ""
    if wanted not in (None, caller.project):
        raise Problem(
            403,
            ProblemType.PROJECT_OF_ANOTHER,
            f"token {caller.id} is of project {caller.project}, not {wanted}; leave "
            "`project` (SLUICE_PROJECT) out",
        )
    return caller.project


async def _answer_or_hangup(
    grant_service: GrantService, wanted: GrantRequest, request: Request
) -> Granted:
    async def decided() -> Granted | Refused:
        async for answer in grant_service.request(wanted, HUNG_UP):
            if isinstance(answer, Granted | Refused):
                return answer
        raise AssertionError("the grant service ended without an answer")

    task = asyncio.create_task(decided())
    try:
        while True:
            done, _ = await asyncio.wait([task], timeout=HANGUP_POLL_SECONDS)
            if done:
                answer = task.result()
                if isinstance(answer, Refused) and answer.status is CudaStatus.UNKNOWN:
                    raise StoreError(answer.message)  # nothing is wrong with the request
                if isinstance(answer, Refused):
                    raise Problem(
                        409, ProblemType.NOT_GRANTED, answer.message, cuda_error=int(answer.status)
                    )
                return answer
            if await request.is_disconnected():
                raise _hung_up()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
