# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a worker whose session's memory is moved by orders, as a test has it answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from sluice.server.workers.packets import Message


class FakeWorker:
    """Answers orders with what is next, and remembers them."""

    def __init__(self, *answers: dict[str, str]) -> None:
        self.answers = deque(answers)
        self.told: list[Message] = []
        self.last: dict[str, str] = {}
        self.on_suspension: Callable[[Message], None] = lambda _: None

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """As a Worker's: nobody takes the descriptors."""
        self.told.append(message)
        if message.verb == "delist":  # nothing of how it stands changes
            self.answers.appendleft(self.last)
        if message.verb != "memory" and self.answers:
            self.last = self.answers.popleft()
            answer = Message("suspension", self.last)
            asyncio.get_running_loop().call_soon(self.on_suspension, answer)

    async def wait_read(self, seconds: float) -> bool:
        """It reads at once."""
        return True

    @property
    def verbs(self) -> list[str]:
        """The orders, in their order."""
        return [message.verb for message in self.told]
