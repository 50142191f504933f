# SPDX-License-Identifier: Apache-2.0
"""Carries out what the controller orders, and answers each order that is a call with one report.

Used by controller.link, which reads the orders off its stream; what they change belongs to the
ServerSide, which is service. Orders about one grant keep their turn: an end that overtakes what it
ends, or comes while sessions are made of it, takes effect all the same (GrantEnds).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Protocol

from sluice.config.log_ids import bound
from sluice.resources.ends import End, read_cause
from sluice.rpc import pool_pb2 as rpc

log = logging.getLogger("sluice.server")

MOST_ENDED_EARLY = 256  # orders to end something that was not here are remembered


class OrderRefused(Exception):
    """This server does not do what it is told; the text says why. All is as it was."""


class ServerSide(Protocol):
    """What the controller may ask of this server; implemented by node_side."""

    def inventory(self) -> rpc.Inventory:
        """Everything that is here and runs here, now."""
        ...

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        """Expects a TCP client. Raises OrderRefused."""
        ...

    def end_grant(self, grant_id: str, why: End) -> None:
        """Ends what runs for a grant."""
        ...

    def end_session(self, session_id: str, why: End) -> None:
        """Ends one session. Raises OrderRefused."""
        ...

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """Changes the limits of what runs for a grant. Raises OrderRefused."""
        ...

    def suspend_grant(self, order: rpc.SuspendGrant) -> None:
        """Suspends what runs for a grant, or resumes it; a report says what came of it."""
        ...

    async def hand_over(self, order: rpc.HandOver) -> None:
        """Lets a GPU go, or takes it back. Raises OrderRefused."""
        ...

    def read_log(self, session_id: str, tail_bytes: int) -> str:
        """The end of a session's log. Raises OSError."""
        ...

    def read_figures(self, session_id: str) -> Sequence[rpc.SessionStep]:
        """What a session used in the last hour. Raises OrderRefused."""
        ...

    async def read_view(
        self, session_ids: Sequence[str], idle: Sequence[rpc.Vgpu]
    ) -> Sequence[rpc.SessionView]:
        """What sessions here have, and what such vGPUs would be. Raises OrderRefused."""
        ...

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        """Gives a whole GPU up, to a VM, or back."""
        ...

    async def change_request(self, order: rpc.ChangeRequest) -> rpc.RequestChanged:
        """Changes what a VM of this host asks for."""
        ...

    def report_holdings(self) -> None:
        """Reports what VMs have of this host's GPUs, as soon as that is known."""
        ...

    def order_gpu(self, uuid: str, *, clear: bool) -> None:
        """Clears a GPU's fault, or has it checked. Raises OrderRefused."""
        ...


class GrantEnds:
    """Orders to end grants, beside the grants and assignments that they may overtake."""

    def __init__(self, end: Callable[[str, End], None]) -> None:
        self._end = end
        self._making: Counter[str] = Counter()  # grants whose sessions are being made
        self._later: dict[str, End] = {}  # such a grant, and why it ends once they are made
        self._early: dict[str, End] = {}  # grants that were ended before they came, and why

    def end(self, grant_id: str, why: End) -> None:
        """Has it ended, now or when it is here: the controller gives its room away after that."""
        if grant_id in self._making:
            self._later[grant_id] = why
            return
        # its answer or assignment may be on its way, and this order has overtaken it
        self._early[grant_id] = why
        while len(self._early) > MOST_ENDED_EARLY:
            del self._early[next(iter(self._early))]
        self._end(grant_id, why)

    def take_early(self, grant_id: str) -> End | None:
        """Why a grant was ended before it came; None where it was not. It is told once."""
        return self._early.pop(grant_id, None)

    def is_making(self, grant_id: str) -> bool:
        """Whether sessions are being made of it."""
        return grant_id in self._making

    @contextlib.contextmanager
    def making(self, grant_id: str) -> Iterator[None]:
        """While the block makes a session of the grant, an order to end it waits."""
        self._making[grant_id] += 1
        try:
            yield
        finally:
            self._making[grant_id] -= 1
            if not self._making[grant_id]:
                del self._making[grant_id]
                if why := self._later.pop(grant_id, None):
                    self._end(grant_id, why)


class Orders:
    """What the controller orders, as it comes."""

    def __init__(
        self, side: ServerSide, ends: GrantEnds, report: Callable[[rpc.NodeReport], None]
    ) -> None:
        self._side = side
        self._ends = ends
        self._report = report
        self._hand_overs: asyncio.Queue[rpc.HandOver] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, order: rpc.Order) -> None:
        """Carries one out, or begins to."""
        match order.WhichOneof("order"):
            case "assignment":
                self._assign(order.assignment)
            case "end_grant":
                end = order.end_grant
                with bound(request_id=end.request_id, grant_id=end.grant_id):
                    self._ends.end(end.grant_id, End(read_cause(end.cause), end.reason))
            case "resize_grant":
                self._in_background(self._resize(order.resize_grant))
            case "suspend_grant":
                suspend = order.suspend_grant
                with bound(request_id=suspend.request_id, grant_id=suspend.grant_id):
                    self._side.suspend_grant(suspend)
            case "hand_over":
                handover = rpc.HandOver()
                handover.CopyFrom(order.hand_over)
                self._hand_overs.put_nowait(handover)
            case "native":
                self._in_background(self._native(order.native))
            case "change_request":
                change = rpc.ChangeRequest()
                change.CopyFrom(order.change_request)
                self._in_background(self._change_request(change))
            case "read_log":
                self._read_log(order.read_log)
            case "gpu_order":
                self._order_gpu(order.gpu_order)
            case "read_figures":
                self._read_figures(order.read_figures)
            case "read_view":
                view = rpc.ReadView()
                view.CopyFrom(order.read_view)
                self._in_background(self._read_view(view))
            case "end_session":
                self._end_session(order.end_session)

    async def serve_hand_overs(self) -> None:
        """One after another, for ever: a GPU that is taken back may still be on its way out."""
        while True:
            order = await self._hand_overs.get()
            done = rpc.HandedOver(gpu_uuid=order.gpu_uuid, generation=order.generation)
            try:
                await self._side.hand_over(order)
            except OrderRefused as refused:
                done.error = str(refused)
            except Exception as problem:
                log.exception("GPU %s was not handed over", order.gpu_uuid)
                done.error = f"its server failed: {problem}"
            self._report(rpc.NodeReport(handed_over=done))

    def close(self) -> None:
        """Nothing goes on."""
        for task in list(self._tasks):
            task.cancel()

    def _assign(self, order: rpc.Assignment) -> None:
        taken = rpc.AssignmentTaken(session_id=order.session_id, call=order.call)
        with bound(
            request_id=order.request_id, grant_id=order.grant_id, session_id=order.session_id
        ):
            try:
                if why := self._ends.take_early(order.grant_id):
                    raise OrderRefused(why.text)
                self._side.take_assignment(order)
            except OrderRefused as refused:
                taken.error = str(refused)
        self._report(rpc.NodeReport(assignment_taken=taken))

    async def _resize(self, order: rpc.ResizeGrant) -> None:
        resized = rpc.GrantResized(grant_id=order.grant_id, call=order.call)
        try:
            if self._ends.is_making(order.grant_id):
                raise OrderRefused(
                    f"a session of grant {order.grant_id} is being opened; try again"
                )
            await self._side.resize_grant(order.grant_id, order.vgpus)
        except OrderRefused as refused:
            resized.error = str(refused)
        self._report(rpc.NodeReport(grant_resized=resized))

    async def _native(self, order: rpc.NativeOrder) -> None:
        done = await self._side.native_order(order)
        self._report(rpc.NodeReport(native_done=done))
        self._side.report_holdings()

    async def _change_request(self, order: rpc.ChangeRequest) -> None:
        self._report(rpc.NodeReport(request_changed=await self._side.change_request(order)))

    def _read_log(self, order: rpc.ReadLog) -> None:
        answer = rpc.LogText(call=order.call)
        try:
            answer.text = self._side.read_log(order.session_id, order.tail_bytes)
        except OSError as error:
            answer.error = str(error)
        self._report(rpc.NodeReport(log_text=answer))

    def _order_gpu(self, order: rpc.GpuOrder) -> None:
        taken = rpc.GpuOrderTaken(call=order.call)
        try:
            self._side.order_gpu(order.uuid, clear=order.clear)
        except OrderRefused as refused:
            taken.error = str(refused)
        self._report(rpc.NodeReport(gpu_order_taken=taken))

    def _read_figures(self, order: rpc.ReadFigures) -> None:
        answer = rpc.SessionFigures(call=order.call)
        try:
            answer.steps.extend(self._side.read_figures(order.session_id))
        except OrderRefused as refused:
            answer.error = str(refused)
        self._report(rpc.NodeReport(session_figures=answer))

    async def _read_view(self, order: rpc.ReadView) -> None:
        answer = rpc.NodeView(call=order.call)
        try:
            answer.sessions.extend(await self._side.read_view(order.session_ids, order.idle))
        except OrderRefused as refused:
            answer.error = str(refused)
        self._report(rpc.NodeReport(node_view=answer))

    def _end_session(self, order: rpc.EndSession) -> None:
        taken = rpc.SessionEndTaken(call=order.call)
        with bound(request_id=order.request_id, session_id=order.session_id):
            try:
                self._side.end_session(order.session_id, End(read_cause(order.cause), order.reason))
            except OrderRefused as refused:
                taken.error = str(refused)
        self._report(rpc.NodeReport(session_end_taken=taken))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
