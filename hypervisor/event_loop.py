# SPDX-License-Identifier: Apache-2.0
"""libvirt's events on asyncio's loop, also when libvirt is called from worker threads.

Called by service.py. libvirtaio assumes that every call comes from the loop's thread; ours run in
`asyncio.to_thread`, so its timers are handed over to the loop here. libvirt accepts one event loop
implementation per process: this module owns it and binds it to the loop that asks last.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import libvirtaio


class _Task:
    """What libvirtaio keeps of a timer: something to cancel, from any thread."""

    def __init__(self, loop: _Loop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        loop.soon(lambda: self._begin(work))

    def cancel(self) -> None:
        self._cancelled = True
        self._loop.soon(self._cancel_now)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._cancelled or self._loop.real.is_closed():
            work.close()
        else:
            self._task = self._loop.real.create_task(work)

    def _cancel_now(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _Loop:
    """The part of an event loop that libvirtaio uses.

    Watching descriptors is one epoll_ctl under the interpreter's lock and takes effect in a loop
    that is waiting; it has to happen at once, since libvirt closes a descriptor right after its
    removal.
    """

    def __init__(self, real: asyncio.AbstractEventLoop) -> None:
        self.real = real
        self._thread = threading.get_ident()

    def add_reader(self, descriptor: int, callback: Callable[..., Any], *arguments: Any) -> None:
        if not self.real.is_closed():
            self.real.add_reader(descriptor, callback, *arguments)

    def add_writer(self, descriptor: int, callback: Callable[..., Any], *arguments: Any) -> None:
        if not self.real.is_closed():
            self.real.add_writer(descriptor, callback, *arguments)

    def remove_reader(self, descriptor: int) -> bool:
        return not self.real.is_closed() and self.real.remove_reader(descriptor)

    def remove_writer(self, descriptor: int) -> bool:
        return not self.real.is_closed() and self.real.remove_writer(descriptor)

    def create_task(self, work: Coroutine[Any, Any, Any], **_: Any) -> _Task:
        return _Task(self, work)

    def soon(self, action: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread or self.real.is_closed():
            action()
        else:
            self.real.call_soon_threadsafe(action)


def bind_running_loop() -> None:
    """Delivers libvirt's events on the running loop; call it before opening a connection."""
    running = asyncio.get_running_loop()
    current = libvirtaio.getCurrentImpl()
    if current is None:
        current = libvirtaio.virEventRegisterAsyncIOImpl(running)
    elif isinstance(current.loop, _Loop) and current.loop.real is running:
        return
    current.loop = _Loop(running)
