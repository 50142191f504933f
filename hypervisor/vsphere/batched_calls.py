# SPDX-License-Identifier: Apache-2.0
"""The controller's reservations, made, resized and ended: in as few calls as it takes.

Used by clients.py, for VMs that are worked on at a time and know nothing of each other. The first
that asks is sent at once, with whoever asks in the same turn of the event loop; who asks while a
call is under way is sent with the next. So one VM costs one call and no delay, a thousand cost four
calls. Room is given back before it is asked for. What is refused is the error of whoever asked
for it, and of nobody else; where a call is not answered, those that wait behind it fail with it,
unsent, rather than one long wait after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.errors import ControllerRefused, Unreachable, VsphereError
from sluice.pool_client.errors import Refused
from sluice.resources.problem_types import type_in

MOST_ITEMS = 250  # that the controller takes in one call
ORDER = ("withdraw", "end", "resize", "create")

Record = dict[str, Any]
Asked = tuple[dict[str, Any], asyncio.Future[Record]]


class BatchedCalls:
    """Of one kind, such as reservation; every method raises ControllerRefused or Unreachable."""

    def __init__(self, line: ControllerLine, kind: str) -> None:
        self._line = line
        self._kind = kind
        self._waiting: list[Asked] = []
        self._sending: asyncio.Task[None] | None = None

    async def ask(self, do: str, **item: Any) -> Record:
        """Has one made or changed; the record as it is then."""
        answer: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waiting.append(({"do": do, **item}, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_waiting())
        return await answer

    async def remove(self, do: str, name: str) -> bool:
        """Has one ended; False if there was no such thing, or it had ended already."""
        try:
            await self.ask(do, id=name)
        except ControllerRefused as refused:
            if refused.is_over:
                return False
            raise
        return True

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                self._waiting.sort(key=lambda asked: ORDER.index(asked[0]["do"]))
                part = self._waiting[:MOST_ITEMS]
                del self._waiting[:MOST_ITEMS]
                try:
                    answer = await self._line.post(
                        f"/{self._kind}s:batch", {"items": [item for item, _ in part]}
                    )
                    self._settle(part, answer["outcomes"])
                except ControllerRefused as refused:
                    _fail(part, refused if refused.status < 500 else Unreachable(str(refused)))
                except VsphereError as error:
                    self._fail_all(part, error)
                except BaseException as error:
                    self._fail_all(part, Unreachable(f"the call ended early ({error!r})"))
                    raise
        finally:
            self._sending = None

    def _settle(self, part: Sequence[Asked], outcomes: Sequence[Mapping[str, Any]]) -> None:
        for (_, answer), outcome in zip(part, outcomes, strict=True):
            if answer.done():
                continue  # whoever asked has been cancelled
            if problem := outcome["problem"]:
                refused = Refused(problem["detail"], outcome["status"], type_in(problem))
                answer.set_exception(_refusal(refused))
            else:
                answer.set_result(outcome[self._kind])

    def _fail_all(self, part: Sequence[Asked], error: VsphereError) -> None:
        _fail([*part, *self._waiting], error)
        self._waiting.clear()


def _fail(part: Sequence[Asked], error: VsphereError) -> None:
    for _, answer in part:
        if not answer.done():
            answer.set_exception(error)


def _refusal(refused: Refused) -> VsphereError:
    # of an error of the controller's own nobody knows what was done: the lists will say
    return ControllerRefused(refused) if refused.status < 500 else Unreachable(str(refused))
