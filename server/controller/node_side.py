# SPDX-License-Identifier: Apache-2.0
"""What the controller may ask of this server: the inventory, and what an order does here.

Made by service; implements orders.ServerSide for controller.link. It decides nothing: sessions,
keys, GPUs and VMs are asked and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.config.server import ServerConfig
from sluice.config.version import own_version
from sluice.resources.ends import End
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, GrantedVgpu
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.host_gpus import HostGpus
from sluice.server.gpus.native import NativeGpus
from sluice.server.gpus.sharing import GpuSharing
from sluice.server.guests.machines import GuestMachines
from sluice.server.guests.requests import GuestRequests
from sluice.server.guests.standing import GuestStandings
from sluice.server.listeners.data_port import DataPort
from sluice.server.sessions.given_orders import GivenOrder
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.logs import read_session_log
from sluice.server.sessions.open_session import RefusalError
from sluice.server.workers.warm import WarmWorkers

MOST_SWAP_MIB = (1 << 32) - 1  # of the message's field


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a server that the controller's questions and orders are about."""

    controller: ControllerLink
    lifecycle: SessionLifecycle
    workers: WarmWorkers
    gpus: HostGpus
    native: NativeGpus
    machines: GuestMachines
    standings: GuestStandings
    requests: GuestRequests
    sharing: GpuSharing
    data_port: DataPort
    advertised: str  # the address that TCP clients are told


class NodeSide:
    """The ServerSide of a ControllerLink; has its parts before that link runs."""

    _parts: NodeParts

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        #: What the server found out about its host; [node] labels overrule it.
        self.found_labels: dict[str, str] = {}

    def speak_for(self, parts: NodeParts) -> None:
        """These are the server's, from now on."""
        self._parts = parts

    def inventory(self) -> rpc.Inventory:
        """Everything that is here and runs here, now."""
        parts = self._parts
        sessions = [session.report() for session in parts.lifecycle.sessions.values()]
        return rpc.Inventory(
            node=self._config.server.node_name,
            data_address=parts.advertised,
            data_port=parts.data_port.port,
            data_tls=self._config.tls.data_plane,
            takes_parts=True,
            swap_mib=min(self._config.suspend.swap_mib, MOST_SWAP_MIB),
            memory_oversubscription=self._config.memory_factor,
            moves_memory=True,
            moves_sessions=self._config.suspend.movable == "on",
            suspensions=parts.lifecycle.suspensions.messages(),
            ends_sessions=True,
            tells_views=True,
            changes_requests=self._parts.requests.can,
            version=own_version(),
            vgpu_count=self._config.server.vgpu_count,
            gpus=[
                rpc.Gpu(
                    uuid=gpu.uuid,
                    model=gpu.name,
                    memory_mib=gpu.memory_mib,
                    software=gpu.software,
                    context_overhead_mib=gpu.context_overhead_mib,
                    reserved_mib=gpu.reserved_mib,
                    architecture=gpu.architecture,
                    numa_node=gpu.numa_node if gpu.numa_node >= 0 else None,
                    nvlink_group=gpu.nvlink_group,
                    let_go=parts.workers.has_let_go(gpu.uuid),
                    pci_address=parts.native.address_of(gpu),
                    native_problem=parts.native.problem_of(gpu),
                    fault=condition.fault,
                    held=condition.held,
                    note=condition.note,
                    memory_oversubscription=self._config.memory_factor_of(gpu.uuid),
                )
                for gpu in parts.gpus.gpus
                for condition in (parts.gpus.health.condition(gpu.uuid),)
            ],
            hands_over=True,
            sharing=parts.sharing.message,
            sessions=sessions + parts.data_port.expected_reports(),
            holds=parts.lifecycle.holds.reports(),
            labels=[
                rpc.Label(name=name, value=value)
                for name, value in sorted((self.found_labels | self._config.node.labels).items())
            ],
        )

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        """Expects a TCP client. Raises OrderRefused."""
        known = {gpu.uuid for gpu in self._parts.gpus.gpus}
        missing = [v.gpu_uuid for v in assignment.vgpus if v.gpu_uuid not in known]
        if missing:
            raise OrderRefused(f"it has no GPU {', '.join(missing)}")
        self._parts.data_port.expect(assignment)

    def end_grant(self, grant_id: str, why: End) -> None:
        """Ends what runs for a grant."""
        # of a job some may run while others have a key and have not come
        running = self._parts.lifecycle.end_grant(grant_id, why)
        expected = self._parts.data_port.forget_grant(grant_id, why)
        if not running and not expected:
            # nothing of it is here: the controller only needs to hear that
            self._parts.controller.report_end("", grant_id, why)

    def end_session(self, session_id: str, why: End) -> None:
        """Ends one session. Raises OrderRefused."""
        if session := self._parts.lifecycle.sessions.get(session_id):
            self._parts.lifecycle.end(session, why)
        elif not self._parts.data_port.forget_session(session_id, why):
            raise OrderRefused(f"no session {session_id} is open here; it may be opening, or over")

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """Changes the limits of what runs for a grant. Raises OrderRefused."""
        if self._parts.data_port.resize_grant(grant_id, vgpus):
            return
        if not any(
            session.grant_id == grant_id for session in self._parts.lifecycle.sessions.values()
        ):
            raise OrderRefused(f"no session of grant {grant_id} is open here yet; try again")
        await self._parts.lifecycle.resize_grant(grant_id, vgpus)

    def suspend_grant(self, order: rpc.SuspendGrant) -> None:
        """Suspends what runs for a grant, or resumes it; a report says what came of it."""
        given = GivenOrder.read(order)
        self._parts.lifecycle.suspensions.begin(order.grant_id, given)

    async def hand_over(self, order: rpc.HandOver) -> None:
        """Lets a GPU go, or takes it back. Raises OrderRefused."""
        if order.back:
            await self._parts.native.take_back(order)
            self._parts.gpus.health.take_back(order.gpu_uuid)
        await self._parts.lifecycle.hand_over(
            order.gpu_uuid, back=order.back, whole=order.to_native
        )
        if order.to_native:
            await self._parts.gpus.health.give_away(order.gpu_uuid)
            await self._parts.native.leave(order)

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        """Gives a whole GPU up, to a VM, or back."""
        return await self._parts.native.carry_out(order)

    async def change_request(self, order: rpc.ChangeRequest) -> rpc.RequestChanged:
        """Changes what a VM of this host asks for."""
        return await self._parts.requests.change(order)

    def report_holdings(self) -> None:
        """Reports what VMs ask for, what they and vGPUs have of this host's GPUs, when known."""
        self._parts.lifecycle.times.tell_again()
        self._parts.native.report()
        self._parts.machines.report()
        self._parts.standings.tell_again()

    def read_log(self, session_id: str, tail_bytes: int) -> str:
        """The end of a session's log."""
        return read_session_log(self._config.log.log_dir, session_id, tail_bytes)

    def read_figures(self, session_id: str) -> list[rpc.SessionStep]:
        """What a session used in the last hour. Raises OrderRefused."""
        if session_id not in self._parts.lifecycle.sessions:
            raise OrderRefused(f"session {session_id} does not run here any more")
        return [
            rpc.SessionStep(
                time=step.time,
                gpus=step.gpus,
                memory_mib=step.memory_mib,
                commands=step.commands,
                round_trips=step.round_trips,
                received_bytes=step.received,
                sent_bytes=step.sent,
            )
            for step in self._parts.lifecycle.figures.history.of(session_id)
        ]

    async def read_view(
        self, session_ids: Sequence[str], idle: Sequence[rpc.Vgpu]
    ) -> list[rpc.SessionView]:
        """What sessions here have, and what such vGPUs would be. Raises OrderRefused."""
        lifecycle = self._parts.lifecycle
        if lifecycle.views is None:
            raise OrderRefused("its sluice-server is starting; try again")
        known = [s for each in session_ids if (s := lifecycle.sessions.get(each))]
        try:
            found = await lifecycle.views.of_sessions(known)
            if idle:
                found.append(await lifecycle.views.of_idle([*map(GrantedVgpu.of, idle)]))
        except RefusalError as refusal:
            raise OrderRefused(refusal.message) from None
        return found

    def order_gpu(self, uuid: str, *, clear: bool) -> None:
        """Clears a GPU's fault, or has it checked. Raises OrderRefused."""
        if clear:
            self._parts.gpus.health.clear(uuid)
        else:
            self._parts.gpus.health.check(uuid)
