# SPDX-License-Identifier: Apache-2.0
"""Follows libvirt for sluice-server: which region is whose, and what became of the guest.

Started by the server's main as one task (`await HypervisorService(...).run()`), it never returns
until it is cancelled, and reconnects for ever. Events are hints that make it look at one domain
now; a periodic look at all of them is the truth. Owns the region files of this libvirt's domains:
it makes missing ones and deletes those of domains that are gone. A lost connection changes nothing:
guests go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import libvirt

from sluice.hypervisor import domain_life, following
from sluice.hypervisor.domain_document import DomainDocument
from sluice.hypervisor.domain_life import Known, Life, Observed, Step
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.event_loop import bind_running_loop
from sluice.hypervisor.guest_restarts import GuestRestarts
from sluice.hypervisor.libvirt_host import (
    DEFAULT_URI,
    libvirt_identity,
    live_document,
    persistent_document,
    qemu_account,
    silence_libvirt,
    words,
)
from sluice.hypervisor.ports import (
    ExpectedDomains,
    HostDeviceWatcher,
    MachineWatcher,
    RegionKeeper,
    RegionOwner,
    SeenMachine,
)
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.vsock_devices import BACKEND, VsockHost

log = logging.getLogger(__name__)

_WENT_OFF = {
    "SHUTDOWN": "the VM was shut down",
    "DESTROYED": "the VM was destroyed",
    "CRASHED": "the VM crashed",
    "MIGRATED": "the VM was migrated away",
    "SAVED": "the VM was saved",
    "FAILED": "the VM's emulator failed",
}
# as the event says it, and a look that comes before the event
_STOPPED, _OFF = (
    {getattr(libvirt, f"VIR_DOMAIN_{where}_{how}"): text for how, text in _WENT_OFF.items()}
    for where in ("EVENT_STOPPED", "SHUTOFF")
)
_PAUSED = (
    libvirt.VIR_DOMAIN_PAUSED,
    libvirt.VIR_DOMAIN_PMSUSPENDED,
)
_CRASHED = "the guest's kernel crashed"
_REVERTED = "the VM went back to a snapshot"
_RESTORED = "the VM was restored from what was saved"
# what else an event may say that ends every program of the guest, though QEMU may live on
_RESTARTED = {
    (libvirt.VIR_DOMAIN_EVENT_CRASHED, libvirt.VIR_DOMAIN_EVENT_CRASHED_PANICKED): _CRASHED,
    (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT): _REVERTED,
    (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STARTED_RESTORED): _RESTORED,
    (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STARTED_MIGRATED): _RESTORED,
    (libvirt.VIR_DOMAIN_EVENT_RESUMED, libvirt.VIR_DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT): _REVERTED,
    (
        libvirt.VIR_DOMAIN_EVENT_SUSPENDED,
        libvirt.VIR_DOMAIN_EVENT_SUSPENDED_FROM_SNAPSHOT,
    ): _REVERTED,
}
_BURST_SECONDS = 0.01
_LOOK_AGAIN_SECONDS = 0.25
_WHOLE_EVERY = 20  # reconciles; ten minutes


#: A domain as one call for all of them shows it: its name, number, state and why.
Glance = tuple[str, int, int, int]


class HypervisorService:
    """One libvirt, watched. All methods belong to the event loop that runs `run`."""

    def __init__(
        self,
        regions: RegionKeeper,
        *,
        uri: str = DEFAULT_URI,
        files: RegionFiles | None = None,
        host_devices: HostDeviceWatcher | None = None,
        machines: MachineWatcher | None = None,
        expected: ExpectedDomains | None = None,
        vsock_backend: str = BACKEND,
        reconcile_seconds: float = 30.0,
        reconnect_seconds: float = 2.0,
    ) -> None:
        self._regions = regions
        self._uri = uri
        self._host_devices = host_devices
        self._machines = machines
        self._expected = expected
        self._seen: dict[str, SeenMachine] = {}
        self._files = files or RegionFiles(libvirt_identity(uri))
        self._vsock_backend = vsock_backend
        self._reconcile_seconds = reconcile_seconds
        self._reconnect_seconds = reconnect_seconds
        self._known: dict[str, Known] = {}
        self._hints: set[str] = set()  # domains to look at
        self._restarts = GuestRestarts()
        self._changed = asyncio.Event()
        self._lost = False
        self._reported: dict[str, tuple[str, ...]] = {}
        self._glances: dict[str, Glance] = {}
        self._failed: set[str] = set()  # looked at again, whatever the glance says
        self._released: dict[str, float] = {}  # when a running guest last let a device go
        self._plugged: dict[str, int] = {}  # the run of a domain in which its device was seen
        #: Set while connected; for tests and for whoever waits for the first look.
        self.connected = asyncio.Event()

    @property
    def problems(self) -> list[str]:
        """What is wrong with domains' requests, a line each."""
        return [line for lines in self._reported.values() for line in lines]

    async def run(self) -> None:
        """Watches until cancelled."""
        silence_libvirt()
        bind_running_loop()
        told = False
        while True:
            try:
                async with self._connection() as connection:
                    told = False
                    await self._watch(connection)
                log.warning("libvirt at %s: connection lost, trying again", self._uri)
            except (libvirt.libvirtError, HypervisorError) as error:
                if not told:
                    text = words(error) if isinstance(error, libvirt.libvirtError) else str(error)
                    log.warning("libvirt at %s: %s; trying again for ever", self._uri, text)
                told = True
            self.connected.clear()
            await asyncio.sleep(self._reconnect_seconds)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[libvirt.virConnect]:
        connection = await asyncio.to_thread(libvirt.open, self._uri)
        self._lost = False
        callbacks: list[int] = []
        try:
            await asyncio.to_thread(connection.setKeepAlive, 5, 3)
            connection.registerCloseCallback(self._on_close, None)
            for event, handler in (
                (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle),
                (libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, self._on_reboot),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, self._on_change),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._on_removed),
                (libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, self._on_change),
            ):
                callbacks.append(
                    await asyncio.to_thread(
                        connection.domainEventRegisterAny, None, event, handler, None
                    )
                )
            yield connection
        finally:
            # A dead connection refuses all of this, and needs none of it.
            for callback in callbacks:
                with contextlib.suppress(libvirt.libvirtError):
                    await asyncio.to_thread(connection.domainEventDeregisterAny, callback)
            with contextlib.suppress(libvirt.libvirtError):
                connection.unregisterCloseCallback()
            with contextlib.suppress(libvirt.libvirtError):
                await asyncio.to_thread(connection.close)

    async def _watch(self, connection: libvirt.virConnect) -> None:
        await self._reconcile(connection, whole=True)
        self._tell_machines()
        log.info("libvirt at %s: watching, %d regions", self._uri, len(self._known))
        self.connected.set()
        loop = asyncio.get_running_loop()
        due = loop.time() + self._reconcile_seconds
        rounds = 0
        while not self._lost:
            # not wait_for: before Python 3.12 it loses a cancellation that meets an event
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._changed.wait()
            # A stop comes as several events; the one that says why is not the first.
            await asyncio.sleep(_BURST_SECONDS)
            self._changed.clear()
            hints, self._hints = self._hints, set()
            for uuid in sorted(hints):
                await self._look(connection, uuid)
            if loop.time() >= due:
                rounds += 1
                await self._reconcile(connection, whole=rounds % _WHOLE_EVERY == 0)
                due = loop.time() + self._reconcile_seconds
            self._tell_machines()

    async def _reconcile(self, connection: libvirt.virConnect, *, whole: bool) -> None:
        """Looks at what is not as it was, in one call for all domains; `whole`: at everything.

        That one call shows starts, stops, renames and what came and went. What it does not show, a
        device put into a definition by hand, has no event either, and waits for a whole look.
        """
        present = await asyncio.to_thread(glance, connection)
        recorded = await asyncio.to_thread(self._files.recorded)
        watched = self._host_devices.domains() if self._host_devices else set()
        regions = set(self._known) | recorded | watched
        due = set(present) | regions
        if not whole:
            due = {uuid for uuid, seen in present.items() if self._glances.get(uuid) != seen}
            due |= (regions - set(present)) | set(self._reported) | self._failed
        for uuid in sorted(due):
            await self._look(connection, uuid)
        self._glances = present
        if self._host_devices:
            self._host_devices.all_seen()
        for uuid in set(self._reported) - set(present):
            del self._reported[uuid]
        self._failed &= set(present) | regions

    async def _look(self, connection: libvirt.virConnect, uuid: str) -> None:
        """Brings one domain's region in line with libvirt; its failure disturbs no other."""
        moment = self._host_devices.moment() if self._host_devices else 0
        self._failed.add(uuid)
        told = self._restarts.take(uuid)
        restarted = told.why
        try:
            seen, refused = await asyncio.to_thread(self._observe, connection, uuid)
            self._tell_devices(moment, uuid, seen)
            if seen is not None:
                seen = replace(seen, problems=(*seen.problems, *refused))
                self._report(seen)
                if seen.boot == -1 or (seen.request is None and not seen.unreadable):
                    self._plugged.pop(uuid, None)
                elif seen.life is not Life.OFF:
                    self._plugged[uuid] = seen.boot
            known = self._known.get(uuid)
            seen = domain_life.served(known, seen)
            if seen is not None:
                self._note(seen)
                if known is None and self._files.ended_since(uuid, seen.boot):
                    restarted = restarted or "the VM ended while no server ran"
            steps = domain_life.steps(known, seen, guest_restarted=restarted is not None)
            for step in steps:
                await self._take(step, uuid, seen, restarted)
                if step is Step.STOP:
                    restarted = None  # whatever fails now, it is told once
            if Step.ADD in steps and seen is not None and seen.out_of_line:
                self.look_soon(uuid)  # what runs may have waited for the server to listen
            if seen is None:
                self._seen.pop(uuid, None)
                self._released.pop(uuid, None)
            if seen is not None and seen.has_device:
                if self._expected:
                    self._expected.defined(uuid)
            elif not (self._expected and self._expected.expects(uuid)):
                await asyncio.to_thread(self._remove_file, connection, uuid)
            if seen is not None and seen.request is not None:
                self._known[uuid] = Known(seen.name, seen.request, seen.life, seen.boot, seen.vsock)
                if known is None or known.boot != seen.boot:
                    await asyncio.to_thread(self._files.note_run, uuid, seen.boot)
            if seen is None or seen.life is Life.OFF:
                self._restarts.seen_off(uuid)
            self._failed.discard(uuid)
        except libvirt.libvirtError as error:
            if not connection.isAlive():
                raise
            log.error("domain %s: %s", uuid, words(error))
        except (HypervisorError, OSError) as error:
            log.error("domain %s: %s", uuid, error)
        except Exception:
            # The server's side failed: the next look repeats the step.
            log.exception("domain %s: its region could not be brought in line", uuid)
        finally:
            if uuid in self._failed:
                self._restarts.give_back(uuid, restarted, started=told.started)

    def _observe(
        self, connection: libvirt.virConnect, uuid: str
    ) -> tuple[Observed | None, list[str]]:
        """Blocking: a domain in line with its metadata, and what could not be done about it."""
        seen = observe_domain(connection, uuid)
        if seen is None or not seen.out_of_line:
            return seen, []
        refused = self._follow(connection, uuid)
        return observe_domain(connection, uuid), refused

    def _follow(self, connection: libvirt.virConnect, uuid: str) -> list[str]:
        try:
            domain = connection.lookupByUUIDString(uuid)
            unplugged = self._plugged.get(uuid) == domain.ID()
            settled = self._released.get(uuid, 0.0) + following.SETTLE_SECONDS
            time.sleep(max(0.0, settled - time.monotonic()))
            others = (known.vsock for key, known in self._known.items() if key != uuid)
            return following.follow(
                domain,
                self._files,
                may_plug=not unplugged,
                vsock=VsockHost.found(self._vsock_backend),
                taken=frozenset(place.cid for place in others if place and place.cid is not None),
            )
        except (libvirt.libvirtError, HypervisorError) as error:
            if is_gone(error):
                return []
            raise

    async def _take(
        self, step: Step, uuid: str, seen: Observed | None, restarted: str | None
    ) -> None:
        if step is Step.REMOVE or seen is None or seen.request is None:
            reason = "the domain was undefined" if seen is None else "the vGPU was detached"
            log.info("channel %s: removed, %s", uuid, reason)
            await self._regions.remove_region(uuid, reason)
            self._known.pop(uuid, None)
        elif step is Step.ADD:
            if seen.request.has_region:
                await asyncio.to_thread(self._ensure_file, seen, seen.request.region_bytes)
            log.info("channel %s: of domain %s, %s", uuid, seen.name, seen.request)
            owner = RegionOwner(uuid, seen.name, seen.vsock, seen.account)
            await self._regions.add_region(uuid, self._files.path(uuid), owner, seen.request)
        elif step is Step.STOP:
            reason = (
                restarted
                or seen.went_off
                or ("the channel was unplugged" if seen.boot != -1 else "the VM is off")
            )
            log.info("channel %s: every session ends, %s", uuid, reason)
            await self._regions.domain_stopped(uuid, reason)
        elif step is Step.PAUSE:
            await self._regions.domain_paused(uuid)
        elif step is Step.RESUME:
            await self._regions.domain_resumed(uuid)

    def _tell_devices(self, moment: int, uuid: str, seen: Observed | None) -> None:
        watcher = self._host_devices
        if watcher is None:
            return
        if seen is None:
            taken = watcher.domain_gone(moment, uuid)
        else:
            taken = watcher.domain_seen(
                moment, uuid, seen.name, seen.live_devices, seen.config_devices
            )
        if not taken:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_SECONDS, self.look_soon, uuid)

    def look_soon(self, uuid: str) -> None:
        """Looks at a domain now: something about it may have changed."""
        self._hints.add(uuid)
        self._changed.set()

    def _report(self, seen: Observed) -> None:
        """Logs what is wrong with a domain, once."""
        if self._reported.get(seen.uuid, ()) != seen.problems:
            for line in seen.problems:
                log.warning("%s", line)
        if seen.problems:
            self._reported[seen.uuid] = seen.problems
        else:
            self._reported.pop(seen.uuid, None)

    def _note(self, seen: Observed) -> None:
        if seen.request is not None or seen.problems:
            self._seen[seen.uuid] = SeenMachine(seen.uuid, seen.name, seen.request, seen.problems)
        else:
            self._seen.pop(seen.uuid, None)

    def _tell_machines(self) -> None:
        if self._machines is not None:
            self._machines.machines_seen(list(self._seen.values()))

    def _ensure_file(self, seen: Observed, size: int) -> None:
        """Blocking, for as long as a new file's memory takes to clear."""
        with self._files.locked():
            self._files.ensure(seen.uuid, size, seen.account, in_use=seen.boot != -1)

    def _remove_file(self, connection: libvirt.virConnect, uuid: str) -> None:
        """Deletes the file unless an attach has put the device in meanwhile."""
        if uuid not in self._files.recorded():
            return
        with self._files.locked():
            seen = observe_domain(connection, uuid)
            if (seen is None or not seen.has_device) and self._files.remove(uuid):
                log.info("region %s: file deleted", uuid)

    # Events: called by libvirt on the loop's thread.

    def _on_lifecycle(
        self, _: libvirt.virConnect, domain: libvirt.virDomain, event: int, detail: int, __: Any
    ) -> None:
        uuid, why = domain.UUIDString(), _RESTARTED.get((event, detail))
        if event == libvirt.VIR_DOMAIN_EVENT_STARTED:
            self._restarts.started(uuid, why)
        elif event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
            known = self._known.get(uuid)
            off = known is not None and known.life is Life.OFF
            self._restarts.stopped(uuid, _STOPPED.get(detail, "the VM stopped"), known_off=off)
        elif why:
            self._restarts.restarted(uuid, why)
        self.look_soon(uuid)

    def _on_reboot(self, _: libvirt.virConnect, domain: libvirt.virDomain, __: Any) -> None:
        uuid = domain.UUIDString()
        self._restarts.reset(uuid, "the VM rebooted")
        self.look_soon(uuid)

    def _on_change(self, _: libvirt.virConnect, domain: libvirt.virDomain, *__: Any) -> None:
        self.look_soon(domain.UUIDString())

    def _on_removed(self, _: libvirt.virConnect, domain: libvirt.virDomain, *__: Any) -> None:
        self._released[domain.UUIDString()] = time.monotonic()
        self.look_soon(domain.UUIDString())

    def _on_close(self, _: libvirt.virConnect, reason: int, __: Any) -> None:
        self._lost = True
        self._changed.set()


def glance(connection: libvirt.virConnect) -> dict[str, Glance]:
    """Every domain by UUID, in one call; blocking."""
    found = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, 0)
    return {
        domain.UUIDString(): (
            domain.name(),
            domain.ID(),
            state.get("state.state", -1),
            state.get("state.reason", -1),
        )
        for domain, state in found
    }


def observe_domain(connection: libvirt.virConnect, uuid: str) -> Observed | None:
    """One domain now, or None where there is none of that UUID; blocking."""
    try:
        domain = connection.lookupByUUIDString(uuid)
        live = live_document(domain)
        persistent = persistent_document(domain)
        state, why = domain.state()  # last: of a domain that has just gone off it says how
        defined = bool(domain.isPersistent())
        seen = domain_life.observe(
            persistent,
            live,
            paused=state in _PAUSED,
            crashed=state == libvirt.VIR_DOMAIN_CRASHED,
            boot=live.number if live else -1,
            defined=defined,
            account=qemu_account(domain) if _has_channel(persistent, live) else None,
            went_off=(
                _OFF.get(why, "")
                if state == libvirt.VIR_DOMAIN_SHUTOFF
                else _CRASHED * (state == libvirt.VIR_DOMAIN_CRASHED)
            ),
        )
        plan = following.plan_of(persistent if defined else None, live)
        return replace(seen, out_of_line=plan.any)
    except (libvirt.libvirtError, HypervisorError) as error:
        if is_gone(error):
            return None
        raise


def _has_channel(*sides: DomainDocument | None) -> bool:
    """Whether there is something that only this host's QEMU account may open."""
    return any(side and (side.region or (side.vsock and side.vsock.user)) for side in sides)


def is_gone(error: Exception) -> bool:
    """Whether there is no such domain, or it went while it was looked at."""
    cause = error.__cause__ if isinstance(error, HypervisorError) else error
    return (
        isinstance(cause, libvirt.libvirtError)
        and cause.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
    )
