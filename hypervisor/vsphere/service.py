# SPDX-License-Identifier: Apache-2.0
"""sluice-vsphere: follows one vCenter for ever, and keeps the controller true to it.

Started by __main__.py. One session and one wait for changes at a time; whatever changed is looked
at again, VM by VM, against what the controller is known to have. What fails is tried again, and
what the controller refuses, since pools change; what happened while either side was away is caught
up by comparing everything once. It promises that when nothing changes and every request is met
there are no calls but that one wait (and the resync of `[controller] resync_seconds`), and that VMs
which seem to vanish all at once are believed to be gone only if an operator says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from pyVmomi import vmodl

from sluice.config.vsphere import Credentials, VsphereConfig
from sluice.hypervisor.vsphere.clients import Clients, Step
from sluice.hypervisor.vsphere.connection import Vcenter
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.errors import (
    BadLogin,
    ControllerRefused,
    SessionLost,
    Unreachable,
    VsphereError,
)
from sluice.hypervisor.vsphere.guestinfo import GuestInfo
from sluice.hypervisor.vsphere.inventory import Inventory
from sluice.hypervisor.vsphere.model import Vm
from sluice.hypervisor.vsphere.pool_vms import PoolVms
from sluice.hypervisor.vsphere.tags import TagReader

log = logging.getLogger("sluice.vsphere")

Result = TypeVar("Result")

AT_ONCE = 8  # VMs that vCenter reconfigures for us at a time
TOLD_AT_ONCE = 64  # VMs whose secrets are made in one go, and then wait for vCenter
RETRY_SECONDS = 5
REFUSED_SECONDS = 30.0  # a request that the pool cannot meet now
CANCEL_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 30.0
LOGIN_DELAY_SECONDS = 300.0  # a wrong password that is tried often locks the account
FEW, MOST_PERCENT = 10, 50  # of known VMs that may vanish at once


class VsphereService:
    """One vCenter and one controller."""

    def __init__(
        self,
        config: VsphereConfig,
        credentials: Credentials,
        line: ControllerLine,
        *,
        accept_removals: bool = False,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._line = line
        self._accept_removals = accept_removals
        self._info = GuestInfo()
        self.clients = Clients(config, line, self._write)
        self.pool = PoolVms(config, line, self._write)
        self._stop = asyncio.Event()
        self._writes = asyncio.Semaphore(AT_ONCE)
        self._vcenter: Vcenter | None = None
        self._inventory: Inventory | None = None
        self._uuids: dict[str, str] = {}  # of VMs by their ids, the gone ones' too until seen to
        self._pending: set[str] = set()
        self._resync_at = 0.0
        self._ask_again_at = 0.0
        self.passes = 0

    async def run(self) -> None:
        """Runs until stop()."""
        delay = 1.0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                await self._session()
            except SessionLost as error:
                log.warning("%s; logging in anew", error)
                delay = 0.1 if time.monotonic() - began > LONGEST_DELAY_SECONDS else delay
            except vmodl.fault.ManagedObjectNotFound as error:
                # the session's own objects go with it, in the midst of whatever is asked of them
                log.warning("the session with vCenter is over; logging in anew (no %s)", error.obj)
            except VsphereError as error:
                log.error("%s", error)
                if isinstance(error, BadLogin):
                    delay = LOGIN_DELAY_SECONDS
            except Exception:
                log.exception("an error of this service's own; it begins anew")
            finally:
                await self._close()
            if time.monotonic() - began > LONGEST_DELAY_SECONDS:
                delay = min(delay, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):  # wait_for may lose a cancellation (3.11)
                    await self._stop.wait()
            delay = min(LONGEST_DELAY_SECONDS, delay * 2)

    async def stop(self) -> None:
        """Ends run(), and the wait that it may be in."""
        self._stop.set()
        # until the session is over: a wait may be on its way to vCenter, which knows none to end
        while inventory := self._inventory:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(inventory.cancel)
            await asyncio.sleep(CANCEL_SECONDS)

    # a session

    async def _session(self) -> None:
        section = self._config.vcenter
        vcenter = self._vcenter = await asyncio.to_thread(Vcenter, section, self._credentials)
        inventory = self._inventory = await asyncio.to_thread(Inventory, vcenter)
        changed = await asyncio.to_thread(inventory.wait, section.poll_seconds)
        log.info(
            "connected to vCenter %s: %d VM(s) on %d host(s)",
            vcenter.address,
            len(inventory.vm_ids),
            len(inventory.host_ids),
        )
        tags: TagReader | None = None
        if self._config.clients.category:
            category = self._config.clients.category
            tags = TagReader(vcenter, self._credentials, category)
        self._resync_at = 0.0
        tags_at = 0.0
        try:
            while not self._stop.is_set():
                if tags and time.monotonic() >= tags_at:
                    changed |= await self._read_tags(inventory, tags, first=not tags_at)
                    tags_at = time.monotonic() + section.tag_seconds
                await self._look_at(inventory, changed)
                changed = await self._wait(inventory, tags_at if tags else None)
        finally:
            if tags:
                await asyncio.to_thread(tags.close)

    async def _read_tags(self, inventory: Inventory, tags: TagReader, *, first: bool) -> set[str]:
        try:
            return inventory.set_tags(await asyncio.to_thread(tags.read))
        except VsphereError as error:
            if first:
                raise  # without tags, VMs that have one would look as if they asked for nothing
            log.warning("%s; tags stay as they were read last", error)
            return set()

    async def _wait(self, inventory: Inventory, tags_at: float | None) -> set[str]:
        if self._stop.is_set():
            return set()
        until = time.monotonic() + self._config.vcenter.poll_seconds
        until = min(until, self._resync_at, *(() if tags_at is None else (tags_at,)))
        if self.clients.refused:
            until = min(until, self._ask_again_at)
        seconds = max(1, round(until - time.monotonic()))
        if self._pending:
            seconds = min(seconds, RETRY_SECONDS)
        try:
            return await asyncio.to_thread(inventory.wait, seconds)
        except VsphereError:
            raise
        except Exception:
            if self._stop.is_set():
                return set()  # its wait was ended
            raise

    async def _close(self) -> None:
        vcenter, self._vcenter, self._inventory = self._vcenter, None, None
        if vcenter:
            await asyncio.to_thread(vcenter.close)

    # what changed

    async def _look_at(self, inventory: Inventory, changed: set[str]) -> None:
        """Sees to whatever changed, what failed before, and at times to everything."""
        try:
            if time.monotonic() >= self._resync_at:
                await self._resync(inventory)
                changed = changed | inventory.vm_ids
        except (ControllerRefused, Unreachable) as error:
            log.error("%s", error)
            self._pending |= changed
            return
        hosts = changed & inventory.host_ids
        if hosts:
            changed |= {vm.id for vm in inventory.vms() if vm.host in hosts}
        self.passes += 1
        await self._reconcile(inventory, changed | self._pending | self._refused())

    def _refused(self) -> set[str]:
        """The VMs whose requests were refused, when it is time to ask again."""
        refused, now = self.clients.refused, time.monotonic()
        if refused and now < self._ask_again_at:
            return set()
        self._ask_again_at = now + REFUSED_SECONDS
        return {vm_id for vm_id, uuid in self._uuids.items() if uuid in refused}

    async def _resync(self, inventory: Inventory) -> None:
        """Reads the controller's lists; what belongs to no VM that is there goes."""
        listed = await self._line.every("/enrolments", "enrolments")
        await self.clients.load(listed)
        await self.pool.load(listed)
        self._resync_at = time.monotonic() + self._config.controller.resync_seconds
        for vm in inventory.vms():
            self._uuids[vm.id] = vm.instance_uuid
        # one whose files cannot be reached now has no identity in the inventory, but is not gone
        if any(vm_id not in self._uuids for vm_id in inventory.vm_ids):
            log.warning("VMs are there that vCenter cannot identify now: none is taken for gone")
            return
        there = {self._uuids[vm_id] for vm_id in inventory.vm_ids}
        known = self.clients.known | self.pool.enrolments.by_vm.keys()
        gone = known - there
        if self._too_many(len(gone), len(known), "are not in vCenter's inventory"):
            return
        ended = await asyncio.gather(*(self._gone(uuid) for uuid in gone), return_exceptions=True)
        for failed in ended:
            if failed is not None:
                raise failed

    async def _reconcile(self, inventory: Inventory, ids: Iterable[str]) -> None:
        failed: set[str] = set()
        told: set[str] = set()  # a controller that does not answer fails a thousand VMs alike
        lost: list[SessionLost] = []

        async def attempt(vm_id: str, step: Awaitable[Result]) -> Result | None:
            try:
                return await step
            except SessionLost as error:
                lost.append(error)
                failed.add(vm_id)
            except VsphereError as error:
                failed.add(vm_id)
                if str(error) not in told:
                    told.add(str(error))
                    log.warning("%s", error)
                if isinstance(error, Unreachable):
                    self._resync_at = time.monotonic() + RETRY_SECONDS
            return None

        work = sorted(vm_id for vm_id in ids if self._needs(inventory, vm_id))
        ended = {vm_id for vm_id in work if self._asks_no_more(inventory.vm(vm_id))}
        if self._too_many(len(ended), len(self.clients.known), "ask for nothing any more"):
            work = [vm_id for vm_id in work if vm_id not in ended]
        # all at a time, so that what they ask of the controller is put together there
        rest = await asyncio.gather(*(attempt(i, self._one(inventory, i)) for i in work))
        later = [(vm_id, step) for vm_id, step in zip(work, rest, strict=True) if step]
        while later:
            part, later = later[:TOLD_AT_ONCE], later[TOLD_AT_ONCE:]
            await asyncio.gather(*(attempt(vm_id, step()) for vm_id, step in part))
        self._pending = failed
        if lost:
            raise lost[0]

    def _needs(self, inventory: Inventory, vm_id: str) -> bool:
        """Whether a VM is, or was, any business of ours."""
        vm = inventory.vm(vm_id)
        if vm is None:
            return vm_id in self._uuids and vm_id not in inventory.vm_ids
        self._uuids[vm_id] = vm.instance_uuid
        return (
            self.clients.is_client(vm)
            or self.pool.is_pool_vm(vm)
            or vm.instance_uuid in self.clients.known
            or any(key.startswith("guestinfo.sluice.") and v for key, v in vm.extra.items())
        )

    def _asks_no_more(self, vm: Vm | None) -> bool:
        return (
            vm is not None
            and vm.instance_uuid in self.clients.known
            and not self.clients.is_client(vm)
        )

    def _too_many(self, count: int, known: int, what: str) -> bool:
        """Whether so many at once are rather a right that the user has lost."""
        if self._accept_removals or count <= max(FEW, known * MOST_PERCENT // 100):
            return False
        log.error(
            "%d of %d VMs that the controller knows %s, all at once: nothing of them is removed. "
            "See whether the user still has the right to see them and their attributes; start "
            "sluice-vsphere --accept-removals once if it is meant",
            count,
            known,
            what,
        )
        return True

    async def _one(self, inventory: Inventory, vm_id: str) -> Step | None:
        """Sees to a VM; returns what is then to be done in its guestinfo, if anything."""
        vm = inventory.vm(vm_id)
        if vm is None:
            uuid = self._uuids.pop(vm_id)
            self._info.forget(vm_id)
            if uuid not in self._uuids.values():  # else it was registered anew, as another id
                await self._gone(uuid)
            return None
        if not self.pool.is_pool_vm(vm):
            return await self.clients.reconcile(vm)
        if vm.instance_uuid in self.clients.known:
            await self.clients.remove(vm.instance_uuid, None)
        host = inventory.host(vm.host)
        return lambda: self.pool.reconcile(vm, host)

    async def _gone(self, uuid: str) -> None:
        await self.clients.remove(uuid, None)
        await self.pool.remove(uuid)

    async def _write(self, vm: Vm, values: dict[str, str]) -> None:
        async with self._writes:
            vcenter, inventory = self._vcenter, self._inventory
            if vcenter is None or inventory is None:
                raise SessionLost("there is no session with vCenter now")
            target = inventory.object(vm.id)
            await asyncio.to_thread(self._info.write, vcenter, vm, target, values)
