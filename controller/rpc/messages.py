# SPDX-License-Identifier: Apache-2.0
"""Turns gRPC messages into the pool's records and back.

Called by what speaks to servers: node_service, server_link, announcing, attaching.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sluice.config.log_ids import request_id
from sluice.controller.pool import decisions, model
from sluice.controller.pool.gpus.attachment import AttachOrder, DetachOrder, ReportedHolding
from sluice.controller.pool.grants.grant_memory import GrantMemory
from sluice.controller.pool.grants.jobs import JobKey
from sluice.controller.pool.grants.node_parts import numbered_by_node
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspensionState,
)
from sluice.controller.pool.grants.vgpu_times import VgpuReport
from sluice.controller.pool.pool import ReportedSession
from sluice.controller.pool.reservations.machines import Machine
from sluice.resources.container import Container
from sluice.resources.memory_factor import MOST_MEMORY_FACTOR
from sluice.resources.suspended_contexts import read_place, read_why
from sluice.resources.vgpu_request import COUNT, Sharing
from sluice.rpc import pool_pb2 as rpc

MOST_PERSON = 100
MOST_WHY = 500
MOST_NOTE = 500
MOST_SERIAL = 1 << 53
MODES = {mode.value for mode in model.Mode}
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


def gpu_of(node: str, message: rpc.Gpu) -> model.Gpu:
    """A GPU as its node reports it; a factor that makes no sense has its memory promised once."""
    return model.Gpu(
        node=node,
        uuid=message.uuid,
        model=message.model,
        memory_mib=message.memory_mib,
        software=message.software,
        context_overhead_mib=message.context_overhead_mib,
        reserved_mib=message.reserved_mib,
        architecture=message.architecture,
        numa_node=message.numa_node if message.HasField("numa_node") else -1,
        nvlink_group=message.nvlink_group,
        fault=message.fault,
        pci_address=message.pci_address if PCI_ADDRESS.fullmatch(message.pci_address) else "",
        native_problem=message.native_problem,
        held=message.held,
        note=message.note,
        memory_oversubscription=_factor(message.memory_oversubscription),
    )


def holding_of(message: rpc.NativeHolding) -> ReportedHolding:
    """What a node's libvirt says that a VM has."""
    return ReportedHolding(
        message.pci_address,
        message.domain_uuid,
        message.domain_name,
        message.live,
        message.config,
    )


def factor_of(inventory: rpc.Inventory) -> float:
    """How often a node says that its memory may be promised; 0: as the pool says.

    One that cannot move it, or says nonsense, has each promised once.
    """
    return _factor(inventory.memory_oversubscription) if inventory.moves_memory else 1.0


def _factor(said: float) -> float:
    return said if said == 0.0 or 1.0 <= said <= MOST_MEMORY_FACTOR else 1.0


def memory_of(message: rpc.GrantMemory) -> GrantMemory:
    """Where a grant's memory is, as its node reports it."""
    return GrantMemory(
        grant_id=message.grant_id,
        resident_mib=message.resident_mib,
        swapped_mib=message.swapped_mib,
        moves=message.moves,
        waited=message.waited_us / 1e6,
        why=message.why[:MOST_WHY],
    )


def vgpu_report_of(message: rpc.VgpuTime) -> VgpuReport:
    """What a node says that a vGPU has had."""
    return VgpuReport(
        message.grant_id,
        message.number,
        used=message.used_us / 1e6,
        waited=message.waited_us / 1e6 if message.HasField("waited_us") else None,
        share_1s=_ratio(message.share_1s),
        share_60s=_ratio(message.share_60s),
        counted_used=message.counted_used_us / 1e6,
        counted_waited=message.counted_waited_us / 1e6,
    )


def _ratio(value: float) -> float:
    # written so that what is no number is nothing
    return round(min(value, 1.0), 4) if value > 0 else 0.0


def machine_of(node: str, message: rpc.GuestMachine) -> Machine:
    """What a node says of one of its VMs."""
    return Machine(
        uuid=message.domain_uuid,
        name=message.domain_name,
        node=node,
        project=message.project or model.DEFAULT_PROJECT,
        count=message.vgpu_count,
        memory_mib=message.memory_mib,
        compute_percent=message.compute_percent,
        priority=message.priority,
        mode=model.Mode(message.mode) if message.mode in MODES else model.Mode.AUTO,
        problems=tuple(message.problems),
    )


def native_message(order: AttachOrder | DetachOrder) -> rpc.NativeOrder:
    """An operator's word about a native GPU, for its server."""
    message = rpc.NativeOrder(gpu_uuid=order.uuid, pci_address=order.pci_address)
    if isinstance(order, AttachOrder):
        message.attach.domain = order.domain
        message.attach.when = order.when.value
        message.attach.no_rom_bar = not order.rom_bar
    else:
        message.detach.domain = order.domain
    return message


def shared_as(node: model.Node, message: rpc.NodeSharing) -> model.Node:
    """The node, with what it says of how its GPUs can be shared."""
    node.sharing = Sharing.heard(message.preferred)
    node.concurrent = message.concurrent
    node.concurrent_problem = message.concurrent_problem
    known = {each.value: each for each in model.ShareKeeping}
    node.shares = known.get(message.shares, model.ShareKeeping.UNKNOWN)
    return node


def labels_of(messages: Iterable[rpc.Label]) -> model.Labels:
    """Labels in their order; of two with one name and value one."""
    return tuple(sorted({(label.name, label.value) for label in messages}))


def vgpus_of(messages: Iterable[rpc.Vgpu]) -> tuple[model.Vgpu, ...]:
    """The slices of a session, without the overhead that only the pool knows."""
    return tuple(
        model.Vgpu(m.gpu_uuid, m.memory_mib, m.compute_percent, sharing=Sharing.heard(m.sharing))
        for m in messages
    )


def vgpu_messages(vgpus: Iterable[model.Vgpu]) -> list[rpc.Vgpu]:
    """A grant's slices for the server that runs them."""
    return [
        rpc.Vgpu(
            gpu_uuid=v.gpu_uuid,
            memory_mib=v.memory_mib,
            compute_percent=v.compute_percent,
            sharing=v.sharing.said,
        )
        for v in vgpus
    ]


def other_node_message(
    granted: decisions.Granted, session: model.Session, node: model.Node, key: str
) -> rpc.OtherNode:
    """One of a process's sessions, for another's node: where its worker is reached, and how."""
    return rpc.OtherNode(
        first_vgpu=granted.first_vgpu(session),
        session_id=session.id,
        address=node.address,
        port=node.port,
        tls_name=node.name if node.data_tls else "",
        key=key,
    )


def assignment_message(
    granted: decisions.Granted,
    session: model.Session,
    key: str,
    key_seconds: int,
    others: Sequence[rpc.OtherNode] = (),
) -> rpc.Assignment:
    """A session for the server that is to expect it of whoever shows the key."""
    grant = granted.grant
    vgpus, chosen = grant.vgpus, session.chosen
    if grant.spans_nodes:
        vgpus = tuple(grant.vgpus[place] for place in grant.places_on(session.node))
        chosen = numbered_by_node(grant, session.node, chosen)
    return rpc.Assignment(
        session_id=session.id,
        grant_id=grant.id,
        key=key,
        key_seconds=key_seconds,
        vgpus=vgpu_messages(vgpus),
        priority=grant.priority,
        job=grant.job,
        job_domain=grant.job_domain,
        job_processes=grant.job_processes,
        chosen=chosen,
        request_id=request_id(),
        project=grant.project,
        relay=session.relay,
        all_vgpus=granted.vgpu_count,
        first_vgpu=granted.first_vgpu(session),
        others=others,
        container=container_message(session.container),
        grant_vgpus=len(grant.vgpus) if grant.spans_nodes else 0,
        grant_places=grant.places_on(session.node) if grant.spans_nodes else (),
        **_client_fields(session),
    )


def _client_fields(known: rpc.SessionReport | rpc.GrantRequest | model.Session) -> dict[str, Any]:
    """Whose a session is, by the names that messages and records have in common."""
    return {
        "host": known.host,
        "program": known.program,
        "client_pid": known.client_pid,
        "client_uid": known.client_uid,
        "domain_uuid": known.domain_uuid,
        "domain_name": known.domain_name,
    }


def container_of(message: rpc.Container) -> Container:
    """The container that a server names."""
    return Container(
        message.id, message.engine, message.pod, message.owner_uid, device=message.device
    )


def container_message(container: Container) -> rpc.Container | None:
    """The same for a server; None where there is none."""
    return rpc.Container(**asdict(container)) if container else None


def session_of(node: str, message: rpc.SessionReport) -> ReportedSession:
    """A session that a server reports."""
    session = model.Session(
        id=message.session_id,
        grant_id=message.grant_id,
        node=node,
        channel=message.channel,
        started=message.started,
        state=model.SessionState.OPENING if message.opening else model.SessionState.RUNNING,
        request_id=message.request_id,
        chosen=tuple(message.chosen),
        relay=message.relay,
        disconnected_since=message.disconnected_since or None,
        **container_of(message.container).fields,
        **_client_fields(message),
    )
    return ReportedSession(
        session,
        vgpus_of(message.vgpus),
        message.request_id,
        message.priority,
        message.job,
        message.job_domain,
        message.job_processes,
        message.project,
        *_places_of(message),
    )


def _places_of(message: rpc.SessionReport) -> tuple[int, tuple[int, ...]]:
    """How many vGPUs its grant has, and which its `vgpus` are; nothing of what makes no sense."""
    count, places = message.grant_vgpus, tuple(message.grant_places)
    makes_sense = (
        len(message.vgpus) == len(set(places)) == len(places) < count <= COUNT.high
        and max(places, default=count) < count
    )
    return (count, places) if makes_sense else (0, ())


def suspension_of(message: rpc.GrantSuspension) -> ReportedSuspension:
    """How what a server runs for a grant stands."""
    return ReportedSuspension(
        message.grant_id,
        suspended=message.state == SuspensionState.SUSPENDED,
        error=message.error,
        staying_mib=tuple(message.staying_mib),
        busy=message.busy,
        contexts=_contexts_of(message),
        gpu_uuids=tuple(message.gpu_uuids),
        serial=min(message.serial, MOST_SERIAL) if message.HasField("serial") else None,
        moving_to=message.moving_to,
    )


def _contexts_of(message: rpc.GrantSuspension) -> SuspendedContexts | None:
    place = read_place(message.context)
    if place is None:
        return None
    why = read_why(message.context_why)
    note = message.context_note[:MOST_NOTE]
    return SuspendedContexts(
        place,
        why,
        note,
        tuple(message.context_mib),
        tuple(message.moves_to),
        message.moves_not[:MOST_NOTE],
    )


def job_key(message: rpc.JobHold) -> JobKey:
    """The job that is held."""
    return JobKey(message.job, message.domain)


def request_of(message: rpc.GrantRequest) -> decisions.GrantRequest:
    """A client's request as its server passes it on."""
    return decisions.GrantRequest(
        request_id=message.request_id,
        count=message.vgpu_count or 1,
        memory_mib=message.memory_mib,
        compute_percent=message.compute_percent,
        priority=message.priority,
        wait_seconds=message.wait_seconds,
        node=message.node,
        local_only=message.local_only,
        channel=message.channel,
        job=message.job,
        job_domain=message.job_domain,
        job_processes=message.job_processes,
        chosen=tuple(message.chosen),
        cross_node=message.cross_node,
        same_gpu=message.same_gpu_allowed,
        gpu_model=message.gpu_model,
        gpu_architecture=message.gpu_architecture,
        labels=labels_of(message.labels),
        preempt=message.preempt,
        waited_seconds=max(0.0, message.waited_seconds),
        owner_label=message.owner_label,
        person="".join(c for c in message.person[:MOST_PERSON] if c.isprintable()),
        project=message.project,
        mode=model.Mode(message.mode) if message.mode in MODES else model.Mode.AUTO,
        sharing=Sharing.heard(message.sharing),
        relay=message.relay,
        one_node=True,
        container=container_of(message.container),
        **_client_fields(message),
    )


def answer_message(
    answer: decisions.Waiting | decisions.Granted | decisions.Refused,
    relay: rpc.RelayTarget | None = None,
) -> rpc.GrantAnswer:
    """An answer on the wire; `relay`: where the granted session is, if not at the requester."""
    if isinstance(answer, decisions.Waiting):
        return rpc.GrantAnswer(waiting=rpc.Waiting(position=answer.position, line=answer.line))
    if isinstance(answer, decisions.Refused):
        return rpc.GrantAnswer(
            refused=rpc.Refused(status=int(answer.status), message=answer.message)
        )
    return rpc.GrantAnswer(
        granted=rpc.Granted(
            grant_id=answer.grant.id,
            session_id=answer.session.id,
            vgpus=vgpu_messages(answer.grant.vgpus),
            relay=relay,
        )
    )
