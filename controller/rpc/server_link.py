# SPDX-License-Identifier: Apache-2.0
"""One server's open stream, as the controller uses it: orders, and calls that the server answers.

Made by node_service; used by grant_service, announcing, attaching and the REST handlers. A call has
an id, one answer, and one place here while it is under way, whatever it asks for. It ends in its
answer, in OrderRefused (the server says that it does not, and nothing has changed), or in
ServerSilent (no answer in time, or the stream ended: whether it was done is not known).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.config.log_ids import request_id
from sluice.controller.pool.decisions import EndOrder, Handover, ResizeOrder, SessionEndOrder
from sluice.controller.pool.grants.suspension import SuspendOrder
from sluice.controller.rpc.messages import vgpu_messages
from sluice.resources.ends import End
from sluice.rpc import pool_pb2 as rpc

Answer = Any
"""A field of rpc.NodeReport; protobuf's classes have no common type with a `call`."""


class OrderRefused(Exception):
    """The server does not do it, for the reason that is the text. Nothing has changed."""


class NotConnected(OrderRefused):
    """The server has no stream here."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node} is not connected")


class ServerSilent(Exception):
    """The server did not answer: whether it did what it was told is not known."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """A pair of an order and its answer, by their fields in rpc.Order and rpc.NodeReport."""

    order: str
    answer: str
    #: The field of both by which a server that knows no `call` for them names what it answers.
    name: str = "call"


ASSIGN = CallKind("assignment", "assignment_taken", name="session_id")
RESIZE = CallKind("resize_grant", "grant_resized", name="grant_id")
READ_LOG = CallKind("read_log", "log_text")
NATIVE = CallKind("native", "native_done")
GPU = CallKind("gpu_order", "gpu_order_taken")
END_SESSION = CallKind("end_session", "session_end_taken")
READ_FIGURES = CallKind("read_figures", "session_figures")
READ_VIEW = CallKind("read_view", "node_view")
CHANGE_REQUEST = CallKind("change_request", "request_changed")
ANSWERS = {
    kind.answer: kind
    for kind in (
        ASSIGN,
        RESIZE,
        READ_LOG,
        NATIVE,
        GPU,
        END_SESSION,
        READ_FIGURES,
        READ_VIEW,
        CHANGE_REQUEST,
    )
}


@dataclass(slots=True)
class Call:
    """One that is under way."""

    kind: CallKind
    name: object  # what `kind.name` names
    answer: asyncio.Future[Answer]


class ServerLink:
    """One server's open stream."""

    def __init__(self) -> None:
        self.hands_over = False  # an older server does not
        self.ends_sessions = False  # nor this, nor does it tell a session's figures
        self.tells_views = False
        self.changes_requests = False
        self.orders: asyncio.Queue[rpc.Order | None] = asyncio.Queue()
        # no call of an earlier stream is answered on this one by mistake
        self._ids = itertools.count(secrets.randbits(62))
        self._calls: dict[int, Call] = {}

    # orders, which the server's reports answer in time

    def end_grant(self, order: EndOrder) -> None:
        """Tells the server to end what it runs for a grant."""
        self.orders.put_nowait(
            rpc.Order(
                end_grant=rpc.EndGrant(
                    grant_id=order.grant_id,
                    reason=order.why.text,
                    cause=order.why.cause,
                    request_id=request_id(),
                )
            )
        )

    def withdraw_session(self, order: SessionEndOrder) -> None:
        """Tells the server to end a session whose client has not come: nobody waits for it.

        An older one does not know how; there its key expires.
        """
        if self.ends_sessions:
            ended = _end_session(order.session_id, order.why)
            ended.call = next(self._ids)
            self.orders.put_nowait(rpc.Order(end_session=ended))

    def suspend_grant(self, order: SuspendOrder) -> None:
        """Tells the server to suspend what it runs for a grant, or to resume it."""
        self.orders.put_nowait(
            rpc.Order(
                suspend_grant=rpc.SuspendGrant(
                    grant_id=order.grant_id,
                    resume=order.resume,
                    request_id=request_id(),
                    promised=order.promised,
                    gpu_uuid=order.gpu_uuid,
                    serial=order.serial,
                    moving_to=order.moving_to,
                )
            )
        )

    def hand_over(self, order: Handover) -> bool:
        """Tells the server to let a GPU go, or that it is back; False if it does not know how."""
        if self.hands_over:
            self.orders.put_nowait(
                rpc.Order(
                    hand_over=rpc.HandOver(
                        gpu_uuid=order.uuid,
                        generation=order.generation,
                        back=order.back,
                        to_native=order.to_native,
                        pci_address=order.pci_address,
                    )
                )
            )
        return self.hands_over

    # calls

    async def assign(self, assignment: rpc.Assignment, timeout: float) -> None:
        """Gives the server a session to expect. Raises OrderRefused, ServerSilent."""
        await self._call(ASSIGN, assignment, timeout)

    async def read_log(self, session_id: str, tail_bytes: int, timeout: float) -> str:
        """The end of a session's log. Raises OrderRefused, ServerSilent."""
        asked = rpc.ReadLog(session_id=session_id, tail_bytes=tail_bytes)
        return str((await self._call(READ_LOG, asked, timeout)).text)

    async def end_session(self, session_id: str, why: End, timeout: float) -> None:
        """Has the server end one session. Raises OrderRefused, ServerSilent."""
        if not self.ends_sessions:
            raise OrderRefused(
                "its sluice-server is of an older release, which ends whole grants only: upgrade "
                "it, or end the grant"
            )
        await self._call(END_SESSION, _end_session(session_id, why), timeout)

    async def read_figures(self, session_id: str, timeout: float) -> Sequence[rpc.SessionStep]:
        """What a session used in the last hour. Raises OrderRefused, ServerSilent."""
        if not self.ends_sessions:
            raise OrderRefused("its sluice-server is of an older release, which keeps no figures")
        asked = rpc.ReadFigures(session_id=session_id)
        steps: Sequence[rpc.SessionStep] = (await self._call(READ_FIGURES, asked, timeout)).steps
        return steps

    async def read_view(self, asked: rpc.ReadView, timeout: float) -> Sequence[rpc.SessionView]:
        """What sessions there have, and idle vGPUs would be. Raises OrderRefused, ServerSilent."""
        sessions: Sequence[rpc.SessionView] = (await self._call(READ_VIEW, asked, timeout)).sessions
        return sessions

    async def resize(self, order: ResizeOrder, timeout: float) -> None:
        """Has the server change what runs. Raises OrderRefused, ServerSilent."""
        asked = rpc.ResizeGrant(grant_id=order.grant_id, vgpus=vgpu_messages(order.vgpus))
        await self._call(RESIZE, asked, timeout)

    async def native(self, order: rpc.NativeOrder, timeout: float) -> rpc.NativeDone:
        """Has the server put a GPU into a VM or take it out; the answer tells of an error, too.

        Raises ServerSilent.
        """
        done: rpc.NativeDone = await self._answer_to(NATIVE, order, timeout)
        return done

    async def change_request(self, asked: rpc.ChangeRequest, timeout: float) -> Sequence[str]:
        """Has the server change what a VM asks for; notes for the operator.

        Raises OrderRefused, ServerSilent.
        """
        if not self.changes_requests:
            raise OrderRefused(
                "its sluice-server serves no VMs, or is of an older release: change the request on "
                "its host (sluice vm resize)"
            )
        notes: Sequence[str] = (await self._call(CHANGE_REQUEST, asked, timeout)).notes
        return notes

    async def order_gpu(self, uuid: str, *, clear: bool, timeout: float) -> None:
        """Has the server clear a GPU's fault, or check it. Raises OrderRefused, ServerSilent."""
        await self._call(GPU, rpc.GpuOrder(uuid=uuid, clear=clear), timeout)

    def answered(self, kind: CallKind, answer: Answer) -> None:
        """The server's answer to a call; one that nobody waits for any more is dropped."""
        if kind.name == "call" or answer.call:
            call = self._calls.get(answer.call)
        else:  # of a server of 0.1
            name = getattr(answer, kind.name)
            under_way = (c for c in self._calls.values() if c.kind is kind and c.name == name)
            call = next(under_way, None)
        if call and call.kind is kind and not call.answer.done():
            call.answer.set_result(answer)

    def close(self) -> None:
        """Ends the stream and whoever waits for the server."""
        self.orders.put_nowait(None)
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(ServerSilent("the stream of its server ended"))

    async def _call(self, kind: CallKind, order: Any, timeout: float) -> Answer:
        answer = await self._answer_to(kind, order, timeout)
        if answer.error:
            raise OrderRefused(answer.error)
        return answer

    async def _answer_to(self, kind: CallKind, order: Any, timeout: float) -> Answer:
        order.call = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._calls[order.call] = Call(kind, getattr(order, kind.name), answer)
        self.orders.put_nowait(rpc.Order(**{kind.order: order}))
        try:
            return await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise ServerSilent(f"its server did not answer within {timeout:g} s") from None
        finally:
            del self._calls[order.call]


def _end_session(session_id: str, why: End) -> rpc.EndSession:
    return rpc.EndSession(
        session_id=session_id, reason=why.text, cause=why.cause, request_id=request_id()
    )
