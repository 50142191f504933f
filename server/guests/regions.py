# SPDX-License-Identifier: Apache-2.0
"""The guests' regions: who they belong to, what their slots run, and when that ends.

Called by guests.channels with what libvirt says, and serves what the doorbell reports. Identity
comes from the host alone: a request that came through a region is its domain's, bounded by what the
domain's metadata grants. It promises that a slot becomes free only after its worker has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from sluice.config.peer_lines import SERVER as PEERS
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.region_file import open_region
from sluice.hypervisor.request import DomainRequest
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.server.guests.bounds import bounded
from sluice.server.guests.doorbell import Doorbell
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.open_session import RefusalError, parse_open_session
from sluice.server.sessions.opening import SessionRequest
from sluice.server.sessions.records import JobPart, Requester, Session
from sluice.server.workers.packets import Message
from sluice.server.workers.session_start import SharedRegion
from sluice.server.workers.standing_process import NoAnswerError

log = logging.getLogger("sluice.server")

_MARK_BYTES = 8  # a region's first word (native/channel/slot.h)


@dataclass(slots=True)
class Region:
    """One domain's region. `paused` suspends every judgement by silence."""

    id: str
    path: Path
    owner: RegionOwner
    request: DomainRequest
    paused: bool = False
    resumed: float = 0.0  # monotonic; silence before it was the pause's
    watched: bool = False
    #: The guest is gone and the doorbell has not heard of it: told as soon as it watches again.
    stale: bool = False
    #: What the guest's device rings, a descriptor of ours: told to each doorbell again.
    device_bell: int = -1
    opening: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class Regions:
    """Every region of this host."""

    def __init__(self, lifecycle: SessionLifecycle, silent_seconds: float) -> None:
        self._lifecycle = lifecycle
        self._silent_seconds = silent_seconds
        self._regions: dict[str, Region] = {}
        self._doorbell: Doorbell | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        lifecycle.on_end.append(self._session_ended)

    def use_doorbell(self, doorbell: Doorbell) -> None:
        """Names the doorbell that watches the regions."""
        self._doorbell = doorbell

    # what the hypervisor part tells

    async def add_region(
        self, region_id: str, path: Path, owner: RegionOwner, request: DomainRequest
    ) -> None:
        """Formats (if blank) and watches the region; called again when name or request changed."""
        region = self._regions.get(region_id)
        if region is None:
            region = Region(region_id, path, owner, request)
            self._regions[region_id] = region
            log.info("region %s of domain %s joins", path, owner.name)
        else:
            if (region.path, region.request.slots) != (path, request.slots):
                region.watched = False
            region.path, region.owner, region.request = path, owner, request
        if not region.watched:
            await self._watch(region)

    async def remove_region(self, region_id: str, reason: str) -> None:
        """Ends every session of the region and stops watching it."""
        region = self._regions.pop(region_id, None)
        if region is None:
            return
        await self._end_all(region, End(EndCause.CHANNEL_REMOVED, reason))
        if self._doorbell:
            self._doorbell.tell(Message("forget", {"id": region_id}))
        _close(region)
        log.info("region %s of domain %s leaves: %s", region.path, region.owner.name, reason)

    async def domain_paused(self, region_id: str) -> None:
        """Silence is no sign of death until the guest is resumed."""
        if region := self._regions.get(region_id):
            region.paused = True

    async def domain_resumed(self, region_id: str) -> None:
        """The guest runs again."""
        if region := self._regions.get(region_id):
            region.paused = False
            region.resumed = time.monotonic()

    async def domain_stopped(self, region_id: str, reason: str) -> None:
        """Every process of the guest is gone: its sessions end, its slots become free."""
        if region := self._regions.get(region_id):
            _begin_anew(region)
            self._free_slots(region)
            await self._end_all(region, End(EndCause.GUEST_STOPPED, reason))

    def _free_slots(self, region: Region) -> None:
        """Whatever the guest left in a slot, by dying or on purpose, is nobody's now."""
        region.stale = self._doorbell is None or not self._doorbell.is_connected
        if region.stale:
            return
        for slot in range(region.request.slots):
            if slot not in region.opening and not self._session_of(region.id, slot):
                self._tell(region, "release", slot)

    def programs(self, region_id: str) -> list[str]:
        """Who has a session through the region or waits for one, a line each."""
        sessions = {
            s.requester.slot: f"{s.requester.describe()} has a session"
            for s in self._lifecycle.sessions.values()
            if s.requester.region_id == region_id
        }
        region = self._regions.get(region_id)
        waiting = region.opening if region else {}
        lines = {slot: f"a program in slot {slot} waits for a session" for slot in waiting}
        return [line for _, line in sorted({**lines, **sessions}.items())]

    def add_bell(self, region_id: str, connected: socket.socket) -> None:
        """What a guest says on this connection makes the doorbell look at its region at once."""
        region = self._regions.get(region_id)
        if region and self._doorbell:
            self._doorbell.tell(Message("bell", {"id": region_id}), [connected.fileno()])

    def set_device_bell(self, region_id: str, descriptor: int) -> None:
        """The same for the eventfd of the guest's device, of which there is one."""
        if region := self._regions.get(region_id):
            _close(region)
            region.device_bell = os.dup(descriptor)
            self._tell_device_bell(region)

    def _tell_device_bell(self, region: Region) -> None:
        if self._doorbell and region.device_bell >= 0:
            told = Message("bell", {"id": region.id, "device": "yes"})
            self._doorbell.tell(told, [region.device_bell])

    # what the doorbell tells

    def doorbell_connected(self) -> None:
        """A new doorbell, or a new connection: it is told of every region again."""
        for region in self._regions.values():
            region.watched = False
            self._in_background(self._watch(region))

    def doorbell_said(self, message: Message) -> None:
        """Serves `open`, `closed` and `silent`."""
        region = self._regions.get(message.get("id"))
        if region is None:
            log.debug("the doorbell spoke of region %s, which nobody owns", message.get("id"))
            return
        slot = message.number("slot", -1)
        if not 0 <= slot < region.request.slots:
            text = "the doorbell spoke of slot %d of region %s"
            PEERS.warning("region: no such slot", region.owner.name, text, slot, region.id)
        elif message.verb == "open":
            self._open(region, slot, message.get("request"))
        elif message.verb == "closed":
            reason = message.get("reason") or "the client closed its slot"
            self._close(region, slot, End(EndCause.CLIENT_ENDED, reason))
        elif message.verb == "silent" and not region.paused:
            seconds = min(message.number("seconds"), int(time.monotonic() - region.resumed))
            if seconds >= self._silent_seconds:
                why = End(EndCause.CLIENT_LOST, f"the guest was silent for {seconds} s")
                self._close(region, slot, why)

    # within

    def _session_of(self, region_id: str, slot: int) -> Session | None:
        for session in self._lifecycle.served:
            if session.requester.region_id == region_id and session.requester.slot == slot:
                return session
        return None

    def _open(self, region: Region, slot: int, request: str) -> None:
        if slot in region.opening:
            return  # the doorbell repeats what has no answer yet
        if older := self._session_of(region.id, slot):
            # the slot was claimed again, so its former client is gone; the worker still holds it
            why = End(EndCause.CLIENT_ENDED, "its slot was claimed by another client")
            self._lifecycle.end(older, why)
        task = asyncio.create_task(self._open_slot(region, slot, request))
        region.opening[slot] = task
        task.add_done_callback(lambda _: self._opened(region, slot, task))

    def _opened(self, region: Region, slot: int, task: asyncio.Task[None]) -> None:
        region.opening.pop(slot, None)
        # a task that was cancelled before it ran never saw it; a session's end releases by itself
        if task.cancelled() and not self._session_of(region.id, slot):
            self._tell(region, "release", slot)

    async def _open_slot(self, region: Region, slot: int, request: str) -> None:
        while older := self._session_of(region.id, slot):
            await older.gone.wait()

        def tell(line: str) -> None:
            self._tell(region, "wait", slot, message=line)

        try:
            asked = parse_open_session(_bytes(request))
            asked = bounded(region.owner.name, region.request, asked)
            requester = Requester(
                channel="ivshmem",
                host=region.owner.name,
                program=asked.program,
                region_id=region.id,
                slot=slot,
                domain_uuid=region.owner.uuid,
                domain_name=region.owner.name,
                own_pid=asked.pid,
            )
            if asked.looks:
                text = await self._lifecycle.view(asked, requester)
                self._tell(region, "show", slot, text=text)
                return
            if part := self._lifecycle.part_of(asked, requester) if asked.holds_job else None:
                await self._hold(part, tell)
            try:
                descriptor = open_region(region.path, region.owner.account)
            except (OSError, HypervisorError) as error:
                raise RefusalError(
                    CudaStatus.OPERATING_SYSTEM,
                    f"the region of domain {region.owner.name} cannot be opened: {error}; attach "
                    "it again with `sluice vm attach`",
                ) from error
            try:
                channel = SharedRegion(
                    descriptor,
                    os.fstat(descriptor).st_size,
                    slot=slot,
                    slots=region.request.slots,
                    region_id=region.id,
                )
                await self._lifecycle.open(SessionRequest(asked, requester, channel), tell)
            finally:
                os.close(descriptor)
        except RefusalError as refusal:
            text = "refused slot %d of domain %s: %s"
            name = region.owner.name
            PEERS.warning("region: refused", name, text, slot, name, refusal.message)
            self._tell(region, "refuse", slot, status=refusal.status, message=refusal.message)

    async def _hold(self, part: JobPart, tell: Callable[[str], None]) -> None:
        """Until the slot is closed, which cancels this."""
        self._lifecycle.holds.begin(part)
        tell("the job is held")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._lifecycle.holds.end(part)

    def _close(self, region: Region, slot: int, why: End) -> None:
        if task := region.opening.get(slot):
            task.cancel()
        if session := self._session_of(region.id, slot):
            self._lifecycle.end(session, why)
        elif slot not in region.opening:
            self._tell(region, "release", slot)

    def _session_ended(self, session: Session, why: End) -> None:
        region = self._regions.get(session.requester.region_id)
        if region:
            self._tell(region, "release", session.requester.slot)

    async def _end_all(self, region: Region, why: End) -> None:
        for task in list(region.opening.values()):
            task.cancel()
        ending = [s for s in self._lifecycle.served if s.requester.region_id == region.id]
        for session in ending:
            self._lifecycle.end(session, why)
        for session in ending:
            await session.gone.wait()

    async def _watch(self, region: Region) -> None:
        if self._doorbell is None or not self._doorbell.is_connected:
            return  # it is told of every region when it connects
        fields = {
            "id": region.id,
            "path": str(region.path),
            "slots": str(region.request.slots),
            "region_bytes": str(region.request.region_bytes),
        }
        try:
            await self._doorbell.ask(Message("watch", fields), "watching")
            region.watched = True
            self._tell_device_bell(region)
            if region.stale:
                self._free_slots(region)
        except NoAnswerError as error:
            # told again when the doorbell connects, and at the hypervisor part's next look
            log.error("region %s is not watched: %s", region.path, error)

    def _tell(self, region: Region, verb: str, slot: int, **fields: object) -> None:
        if self._doorbell:
            values = {key: str(value) for key, value in fields.items()}
            self._doorbell.tell(Message(verb, {"id": region.id, "slot": str(slot), **values}))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _close(region: Region) -> None:
    if region.device_bell >= 0:
        os.close(region.device_bell)
        region.device_bell = -1


def _begin_anew(region: Region) -> None:
    """Takes the region's mark away: with the next release the doorbell writes the header anew.

    Its generation is another one then, and who came back from a snapshot sees that.
    """
    # without its file there is nothing to begin anew
    with contextlib.suppress(OSError, HypervisorError):
        descriptor = open_region(region.path, region.owner.account, os.O_WRONLY)
        try:
            os.pwrite(descriptor, bytes(_MARK_BYTES), 0)
        finally:
            os.close(descriptor)


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
