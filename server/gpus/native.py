# SPDX-License-Identifier: Apache-2.0
"""This host's GPUs that are given whole to VMs: carries out the controller's orders about them.

Called by controller.link (orders) and by hypervisor.service, which tells what domains have; started
by service. It owns no state that outlives it: the controller records who holds what, libvirt says
what is, sysfs says which driver has a card. It promises that one order runs at a time, that no
worker of ours is on a card that leaves, that a card which returns is bound to the host's driver and
seen by CUDA, and that what libvirt has is reported after every order and every change.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.server import ServerConfig
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.passthrough import PROC, Card, card_at, check_unused
from sluice.hypervisor.pci_devices import DISPLAY_CLASS, HostAddress, SysfsPci
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.workers.warm import WarmWorkers
from sluice.server.workers.worker import WorkerError

log = logging.getLogger("sluice.server")

NO_VMS = (
    "its server serves no VMs: set [server] enable_kvm = true and install the extra "
    "`sluice-gpu[libvirt]`"
)


@dataclass(frozen=True, slots=True)
class DomainDevices:
    """What a domain has of the host's PCI devices."""

    name: str
    live: frozenset[HostAddress]
    config: frozenset[HostAddress]


@contextlib.contextmanager
def _told(uuid: str) -> Iterator[None]:
    """What goes wrong with a GPU within the block is logged, and raised as OrderRefused."""
    try:
        yield
    except (OrderRefused, HypervisorError, WorkerError) as error:
        log.warning("GPU %s: %s", uuid, error)
        raise OrderRefused(str(error)) from error
    except Exception as error:
        log.exception("GPU %s: what was ordered failed", uuid)
        raise OrderRefused(f"its server failed: {error}") from error


class NativeGpus:
    """Cards that go to VMs and come back; it is the HostDeviceWatcher of the hypervisor part."""

    def __init__(
        self,
        config: ServerConfig,
        workers: WarmWorkers,
        gpus: Callable[[], list[LocalGpu]],
        look_anew: Callable[[], Awaitable[None]],
        send: Callable[[rpc.NodeReport], None],
        proc: Path = PROC,
    ) -> None:
        self._uri = config.server.libvirt_uri
        self._addresses = config.native.addresses
        self._serves_vms = config.server.enable_kvm
        self._sysfs = SysfsPci(config.native.sysfs_dir)
        self._proc = proc
        self._workers = workers
        self._gpus = gpus
        self._look_anew = look_anew
        self._send = send
        self._left: set[str] = set()  # GPUs that were given up for a VM
        self._order = asyncio.Lock()
        self._domains: dict[str, DomainDevices] = {}
        self._moment = 0
        self._changing = 0  # orders that change a domain, waiting or under way
        self._looked = False  # every domain, once
        self._look_again: set[str] = set()  # domains that were looked at too early
        self._reported: list[tuple[Any, ...]] | None = None
        self._owed = False  # a report was asked for that could not be made yet

    # what the pool is told of a GPU

    def address_of(self, gpu: LocalGpu) -> str:
        """Where it is on PCI; empty if that is unknown."""
        return self._addresses.get(gpu.uuid, gpu.pci_address)

    def problem_of(self, gpu: LocalGpu) -> str:
        """Why it cannot be given to a VM; empty: it can."""
        address = self.address_of(gpu)
        if gpu.software and not address:
            return ""  # no VM can have it, but the switch can be tried out with it
        if not self._serves_vms or importlib.util.find_spec("libvirt") is None:
            return NO_VMS
        if not address:
            return "NVML does not tell its PCI address: name it in [native] addresses"
        try:
            card_at(self._sysfs, HostAddress.parse(address))
        except HypervisorError as error:
            return str(error)
        return ""

    # what the controller orders

    async def leave(self, order: rpc.HandOver) -> None:
        """Sees that nothing of this host keeps a card from a VM. Raises OrderRefused."""

        def check() -> None:
            if address := self._address(order.gpu_uuid, order.pci_address):
                check_unused(card_at(self._sysfs, address), self._proc)

        async with self._order:
            self._left.add(order.gpu_uuid)
            with _told(order.gpu_uuid):
                await asyncio.to_thread(check)

    async def take_back(self, order: rpc.HandOver) -> None:
        """Has the host's driver take a card again, and CUDA see it. Raises OrderRefused."""
        uuid = order.gpu_uuid
        if uuid not in self._left and self._sees(uuid):
            return  # it was only drained, or is back already
        async with self._order:
            with _told(uuid):
                await self._reclaim(uuid, order.pci_address)
            self._left.discard(uuid)

    async def carry_out(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        """Puts a card into a VM or takes it out, and says what became of it."""
        done = rpc.NativeDone(call=order.call)
        self._changing += 1  # from the moment that it is ordered, nothing is reported without it
        try:
            async with self._order:
                with _told(order.gpu_uuid):
                    await self._change_domain(order, done)
        except OrderRefused as refused:
            done.error = str(refused)
        finally:
            self._changing -= 1
            self._moment += 1  # what was seen before is out of date
        return done

    def report(self, *, anew: bool = True) -> None:
        """Reports what VMs have; unless `anew`, only if it has changed."""
        self._owed = self._owed or anew
        if not self._looked or self._changing or self._look_again:
            return
        holdings = sorted(
            (str(address), uuid, devices.name, address in devices.live, address in devices.config)
            for uuid, devices in self._domains.items()
            for address in devices.live | devices.config
            if self._may_be_gpu(address)
        )
        if holdings == self._reported and not self._owed:
            return
        self._reported, self._owed = holdings, False
        self._send(
            rpc.NodeReport(
                native_holdings=rpc.NativeHoldings(
                    holdings=[_holding(*holding) for holding in holdings]
                )
            )
        )

    async def _reclaim(self, uuid: str, reported: str) -> None:
        if address := self._address(uuid, reported):
            await asyncio.to_thread(self._reclaim_now, address)
        await self._look_anew()
        if not self._sees(uuid):
            raise HypervisorError(
                "the host's driver has it, but CUDA does not show it: see `nvidia-smi` and `dmesg`"
            )

    def _reclaim_now(self, address: HostAddress) -> None:
        """Blocking."""
        from sluice.hypervisor import native_gpu
        from sluice.hypervisor.libvirt_host import connected

        card = card_at(self._sysfs, address)
        if not self._serves_vms:
            native_gpu.await_driver(self._sysfs, address, 0)
            return
        with connected(self._uri) as connection:
            native_gpu.take_back(connection, card.addresses, self._sysfs)

    async def _change_domain(self, order: rpc.NativeOrder, done: rpc.NativeDone) -> None:
        address = self._address(order.gpu_uuid, order.pci_address)
        if address is None:
            raise HypervisorError("its PCI address is unknown: name it in [native] addresses")
        if not self._serves_vms:
            raise HypervisorError(NO_VMS)
        self._left.add(order.gpu_uuid)
        await self._workers.let_go(order.gpu_uuid)
        await asyncio.to_thread(self._change_now, order, address, done)

    def _change_now(
        self, order: rpc.NativeOrder, address: HostAddress, done: rpc.NativeDone
    ) -> None:
        """Blocking. Says in `done` what the domain has afterwards, also where it fails."""
        from sluice.hypervisor import native_gpu
        from sluice.hypervisor.libvirt_host import connected, find_domain

        card = card_at(self._sysfs, address)
        name = order.attach.domain or order.detach.domain
        with connected(self._uri) as connection:
            domain = find_domain(connection, name)
            uuid = domain.UUIDString()
            try:
                if order.HasField("detach"):
                    native_gpu.detach(domain, card.addresses, self._sysfs)
                else:
                    if not native_gpu.holding_of(domain, card.addresses).live:
                        check_unused(card, self._proc)
                    when = native_gpu.When(order.attach.when or "both")
                    given = native_gpu.attach(
                        domain, card, when, rom_bar=not order.attach.no_rom_bar
                    )
                    done.notes.extend(given.notes)
            finally:
                self._see_again(connection, uuid, card, done)

    def _see_again(self, connection: Any, uuid: str, card: Card, done: rpc.NativeDone) -> None:
        from sluice.hypervisor.service import observe_domain

        seen = observe_domain(connection, uuid)
        if seen is None:
            self._domains.pop(uuid, None)
            return
        self._remember(uuid, seen.name, seen.live_devices, seen.config_devices)
        gpu = card.gpu.address
        live, config = gpu in seen.live_devices, gpu in seen.config_devices
        if live or config:
            done.holding.CopyFrom(_holding(str(gpu), uuid, seen.name, live, config))

    def _address(self, uuid: str, reported: str) -> HostAddress | None:
        """By this host's own knowledge where it sees the card, else as it reported it before."""
        seen = [gpu.pci_address for gpu in self._gpus() if gpu.uuid == uuid]
        text = self._addresses.get(uuid) or (seen[0] if seen else "") or reported
        return HostAddress.parse(text) if text else None

    def _sees(self, uuid: str) -> bool:
        return uuid in {gpu.uuid for gpu in self._gpus()}

    # what the hypervisor part sees (HostDeviceWatcher)

    def moment(self) -> int:
        """Taken before a look at a domain."""
        return self._moment

    def domain_seen(
        self,
        moment: int,
        uuid: str,
        name: str,
        live: frozenset[HostAddress],
        config: frozenset[HostAddress],
    ) -> bool:
        """What a domain has; False if an order was or is about to change it meanwhile."""
        if not self._in_time(moment, uuid):
            return False
        self._remember(uuid, name, live, config)
        self.report(anew=False)
        return True

    def domain_gone(self, moment: int, uuid: str) -> bool:
        """There is no such domain."""
        if not self._in_time(moment, uuid):
            return False
        self._domains.pop(uuid, None)
        self.report(anew=False)
        return True

    def all_seen(self) -> None:
        """Every domain has been looked at; one that was looked at too early is waited for."""
        self._looked = True
        self.report(anew=False)

    def domains(self) -> set[str]:
        """The domains that are known to have devices."""
        return set(self._domains)

    def _in_time(self, moment: int, uuid: str) -> bool:
        if self._changing or moment != self._moment:
            self._look_again.add(uuid)
            return False
        self._look_again.discard(uuid)
        return True

    def _remember(
        self, uuid: str, name: str, live: frozenset[HostAddress], config: frozenset[HostAddress]
    ) -> None:
        if live or config:
            self._domains[uuid] = DomainDevices(name, live, config)
        else:
            self._domains.pop(uuid, None)

    def _may_be_gpu(self, address: HostAddress) -> bool:
        device = self._sysfs.device(address)
        return device is None or device.base_class == DISPLAY_CLASS


def _holding(address: str, uuid: str, name: str, live: bool, config: bool) -> rpc.NativeHolding:
    return rpc.NativeHolding(
        pci_address=address, domain_uuid=uuid, domain_name=name, live=live, config=config
    )
