# SPDX-License-Identifier: Apache-2.0
"""What the controller is told of this host's VMs: what each asks for, and what is wrong with that.

Fed by the hypervisor part after each of its looks (hypervisor.ports.MachineWatcher), read by
controller.link when it connects. It promises that nothing is said before libvirt has been looked
through once, since a report is the whole truth of this host, and then every change, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluice.hypervisor.ports import SeenMachine
from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.records import Requester


class GuestMachines:
    """This host's VMs."""

    def __init__(self, accounts: Accounts, send: Callable[[rpc.NodeReport], None]) -> None:
        self._accounts = accounts
        self._send = send
        self._seen: tuple[SeenMachine, ...] | None = None

    def machines_seen(self, machines: Sequence[SeenMachine]) -> None:
        """All VMs that ask for something or have a problem, as they are now."""
        seen = tuple(sorted(machines, key=lambda machine: machine.uuid))
        if seen != self._seen:
            self._seen = seen
            self.report()

    def report(self) -> None:
        """Tells the controller, as soon as libvirt has been looked through."""
        if self._seen is not None:
            machines = [self._message(machine) for machine in self._seen]
            report = rpc.NodeReport(guest_machines=rpc.GuestMachines(machines=machines))
            self._send(report)

    def _message(self, machine: SeenMachine) -> rpc.GuestMachine:
        message = rpc.GuestMachine(
            domain_uuid=machine.uuid, domain_name=machine.name, problems=machine.problems
        )
        if request := machine.request:
            requester = Requester(
                channel="ivshmem",
                host=machine.name,
                program="",
                domain_uuid=machine.uuid,
                domain_name=machine.name,
            )
            message.project = self._accounts.of(requester).projects[0]
            message.vgpu_count = request.count
            message.memory_mib = request.memory_mib
            message.compute_percent = request.compute_percent
            message.priority = request.priority
            message.mode = request.mode
        return message
