# SPDX-License-Identifier: Apache-2.0
"""POST /v1/sessions: where a client without a server near it asks for a session.

Mounted by controller.api.app. The answer names a GPU node's data port and a one-time key, which
that node already holds when the client reads it. If the client hangs up while it waits, or the
node does not take the assignment, the grant is given back. While it waits, the client may ask
where it stands, by the Idempotency-Key of its request, which nobody else knows.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

from fastapi import APIRouter, Header, Request

from sluice.config.job_token import job_of
from sluice.config.places import Places
from sluice.controller.api.authorisation import Client
from sluice.controller.api.problems import Problem, ProblemDocument, no_place
from sluice.controller.api.schemas import HoldRequest, PlaceInQueue, SessionRequest, SessionTicket
from sluice.controller.auth.access import Caller
from sluice.controller.auth.tokens import Role
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Granted, GrantRequest, Refused
from sluice.controller.pool.grants.jobs import JobKey
from sluice.controller.pool.model import DEFAULT_PROJECT, Mode
from sluice.controller.rpc.announcing import NODE_TRIES, NotTaken, announce
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.store.store import StoreError
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.resources.problem_types import ProblemType

HANGUP_POLL_SECONDS = 1.0
HUNG_UP = "the client hung up"
#: Jobs that launchers hold over REST, each by a connection.
MOST_HOLDS = 2048
MOST_HOLDS_OF_CALLER = 512


def tcp_session_routes(
    grant_service: GrantService, service: PoolService, key_seconds: int
) -> APIRouter:
    """The handler, bound to one pool."""
    routes = APIRouter()
    holds = Places(MOST_HOLDS, MOST_HOLDS_OF_CALLER)
    waits: dict[tuple[str, str], GrantRequest] = {}  # by caller and Idempotency-Key

    @routes.post(
        "/sessions",
        tags=["sessions"],
        status_code=201,
        responses={
            409: {"model": ProblemDocument, "description": "cannot be granted"},
            503: {"model": ProblemDocument, "description": "no node took it, or nothing is stored"},
        },
    )
    async def open_session(body: SessionRequest, request: Request, caller: Client) -> SessionTicket:
        """Grants vGPUs on a GPU node and returns where to connect; waits up to wait_seconds."""
        peer = request.client.host if request.client else ""
        project = _project(caller, body.project)
        job = _job_name(body.job) if body.job else ""
        if len(set(body.chosen)) < len(body.chosen):
            raise Problem(422, ProblemType.INVALID_CHOICE, "`chosen` names a vGPU twice")
        trouble = ""
        for _ in range(NODE_TRIES):
            wanted = GrantRequest(
                request_id=secrets.token_hex(8),
                vgpu_count=body.vgpu_count or 1,
                memory_mib=body.gmem_mib,
                compute_percent=body.ratio_percent,
                cross_node=body.cross_node,
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
                job_domain=_domain(caller, peer) if job else "",
                job_processes=body.job_processes if job else 0,
                chosen=tuple(body.chosen) if job else (),
                project=project,
                preempt=body.preempt,
                same_gpu_allowed=body.same_gpu_allowed,
                mode=Mode(body.mode),
                owner_label=caller.label,
                domain_uuid=caller.vm,
                max_priority=_max_priority(grant_service, caller),
                may_preempt=caller.may_preempt,
            )
            if refusal := grant_service.pool.requests.not_allowed(wanted):
                raise Problem(
                    403, ProblemType.NOT_ALLOWED, refusal.message, cuda_error=int(refusal.status)
                )
            key = secrets.token_hex(16)
            asked = (caller.id, request.headers.get("idempotency-key", ""))
            service.under_way.add(wanted.request_id)
            waits[asked] = wanted
            try:
                answer = await _answer_or_hangup(grant_service, wanted, request)
                node = grant_service.pool.nodes[answer.grant.node]
                # a client that waited may be gone by now, and nobody else has the key
                gone = await request.is_disconnected()
                if not gone:
                    await announce(grant_service, service.links, answer, key, key_seconds)
                    gone = await request.is_disconnected()
            except NotTaken as not_taken:
                trouble = str(not_taken)
                gone = await request.is_disconnected()
            finally:
                service.under_way.discard(wanted.request_id)
                if waits.get(asked) is wanted:
                    del waits[asked]
            if not trouble and not gone:
                return SessionTicket(
                    session_id=answer.session.id,
                    grant_id=answer.grant.id,
                    address=node.address,
                    port=node.port,
                    tls=node.data_tls,
                    tls_name=node.name if node.data_tls else "",
                    key=key,
                    key_seconds=key_seconds,
                )
            why = End(EndCause.WITHDRAWN, HUNG_UP) if gone else End(EndCause.NOT_TAKEN, trouble)
            await grant_service.step(
                lambda answer=answer, why=why: grant_service.pool.lifecycle.session_ended(  # type: ignore[misc]
                    answer.session.id, answer.grant.id, why
                )
            )
            if gone:
                raise _hung_up()
        raise Problem(
            503,
            ProblemType.SESSION_NOT_TAKEN,
            f"{trouble}; look at `sluice node list` and try again",
            cuda_error=int(CudaStatus.SYSTEM_NOT_READY),
        )

    @routes.get("/queue/mine", tags=["queue"], responses={404: {"model": ProblemDocument}})
    async def show_my_place(
        caller: Client, idempotency_key: Annotated[str, Header(max_length=255)] = ""
    ) -> PlaceInQueue:
        """Where the caller's `POST /sessions` with this Idempotency-Key stands while it waits."""
        wanted = waits.get((caller.id, idempotency_key)) if idempotency_key else None
        if wanted is None or wanted.request_id not in grant_service.pool.queue:
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

    @routes.post(
        "/holds",
        tags=["sessions"],
        responses={
            422: {"model": ProblemDocument},
            429: {"model": ProblemDocument},
            503: {"model": ProblemDocument},
        },
    )
    async def hold_job(body: HoldRequest, request: Request, caller: Client) -> None:
        """Keeps a job's grant between its sessions until the client closes the connection.

        So it is never answered but by a refusal.
        """
        peer = request.client.host if request.client else ""
        key = JobKey(_job_name(body.job), _domain(caller, peer))
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

    return routes


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


def _domain(caller: Caller, peer: str) -> str:
    # who may join a job over the network: its project's clients, or else those of its address
    return f"project {caller.project}" if caller.project else f"net {peer}"


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
