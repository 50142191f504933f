# SPDX-License-Identifier: Apache-2.0
"""What can be done in the console: what each action will do, what it asks for, by which request.

Used by console.acting. Everything is a request of REST; an action adds words to it and decides
nothing. What a plan says will happen is read from the pool at that moment; the generation that it
was read at goes with the request, so that what has changed meanwhile is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.console.actions_of_reservations import RESERVATIONS
from sluice.console.actions_of_suspension import SUSPENSION
from sluice.console.actions_of_vms import VMS
from sluice.console.inner_rest import RestCall
from sluice.console.kinds import gpu_of
from sluice.console.parts import Hidden
from sluice.console.plans import Action, Field, Plan, number, operators, several
from sluice.console.rendering import link, mib
from sluice.console.rights import Rights
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Gpu,
    GpuMode,
    Grant,
    GrantState,
    Node,
    Quota,
    Session,
    SessionState,
)
from sluice.controller.pool.pool import Pool

SEEING_ALL = Rights(sees_pool=True, operates=True)
PREEMPT = Field(
    "preempt",
    "End what runs on it now, rather than wait until it ends",
    kind="checkbox",
)


def _node_of(pool: Pool, name: str) -> Node:
    if (node := pool.nodes.get(name)) is None:
        raise Hidden
    return node


def _running_on_node(pool: Pool, name: str) -> str:
    grants = len(pool.grants_live_on(name))
    return f"{several(grants, 'grant')} and {several(pool.live_sessions_on(name), 'session')}"


def _drain_node(pool: Pool, name: str) -> Plan:
    node = _node_of(pool, name)
    return Plan(
        title=f"Drain node {name}",
        button="Drain the node",
        will=[
            f"Nothing new is placed on its {several(len(pool.gpus_of(name)), 'GPU')}.",
            f"What runs there goes on until it ends: {_running_on_node(pool, name)}.",
            "Requests that fit nowhere else wait in the queue.",
        ],
        back=link("node", name=name),
        generation=node.generation,
        obsolete="It is drained already." if node.drained else "",
    )


def _return_node(pool: Pool, name: str) -> Plan:
    node = _node_of(pool, name)
    return Plan(
        title=f"Return node {name} to the pool",
        button="Return the node",
        will=[
            f"Its {several(len(pool.gpus_of(name)), 'GPU')} may be granted again.",
            "What waits in the queue and fits there is granted at once.",
        ],
        back=link("node", name=name),
        generation=node.generation,
        obsolete="" if node.drained else "It is not drained.",
    )


def _switch_generation(pool: Pool, gpu: Gpu) -> int:
    switch = pool.switches.get(gpu.key)
    return switch.generation if switch else 0


def _on_gpu(pool: Pool, gpu: Gpu) -> list[str]:
    grants = pool.grants_live_on_gpu(gpu.key)
    held = pool.reservations_on(gpu.key)
    projects = sorted({grant.project or DEFAULT_PROJECT for grant in grants})
    whose = f", of {', '.join(projects[:5])}" if projects else ""
    lines = [f"On it now: {several(len(grants), 'grant')}{whose}."]
    if held:
        lines.append(
            f"It waits for {several(len(held), 'reservation')} to be ended or made smaller."
        )
    return lines


def _drain_gpu(pool: Pool, target: str) -> Plan:
    gpu = gpu_of(pool, SEEING_ALL, target)
    mode = pool.mode(gpu.key)
    return Plan(
        title=f"Drain GPU {gpu.uuid}",
        button="Drain the GPU",
        will=[
            "Nothing new is placed on it. Once it is empty its node lets go of it, for service.",
            *_on_gpu(pool, gpu),
        ],
        fields=[PREEMPT],
        back=link("gpu", id=target),
        generation=_switch_generation(pool, gpu),
        obsolete="" if mode is GpuMode.POOLED else f"It is {mode.value} already.",
    )


def _native_gpu(pool: Pool, target: str) -> Plan:
    gpu = gpu_of(pool, SEEING_ALL, target)
    mode = pool.mode(gpu.key)
    obsolete = gpu.native_problem and f"It cannot be given to a VM: {gpu.native_problem}."
    if mode is not GpuMode.POOLED:
        obsolete = f"It is {mode.value} already."
    return Plan(
        title=f"Take GPU {gpu.uuid} out of the pool for a VM",
        button="Take it out of the pool",
        will=[
            (
                "Nothing new is placed on it. Once it is empty it can be given whole to one VM "
                "(sluice gpu attach)."
            ),
            *_on_gpu(pool, gpu),
        ],
        fields=[PREEMPT],
        back=link("gpu", id=target),
        generation=_switch_generation(pool, gpu),
        obsolete=obsolete,
    )


def _return_gpu(pool: Pool, target: str) -> Plan:
    gpu = gpu_of(pool, SEEING_ALL, target)
    mode = pool.mode(gpu.key)
    return Plan(
        title=f"Return GPU {gpu.uuid} to the pool",
        button="Return the GPU",
        will=[
            "It may be granted again; its node takes it back first where it had let it go.",
            "What waits in the queue and fits there is granted then.",
        ],
        back=link("gpu", id=target),
        generation=_switch_generation(pool, gpu),
        obsolete="It is in the pool." if mode is GpuMode.POOLED else "",
    )


def _check_gpu(pool: Pool, target: str) -> Plan:
    gpu = gpu_of(pool, SEEING_ALL, target)
    busy = len(pool.grants_live_on_gpu(gpu.key))
    return Plan(
        title=f"Check GPU {gpu.uuid}",
        button="Check the GPU",
        will=["Its node computes on it and compares the results. It takes nothing new meanwhile."],
        back=link("gpu", id=target),
        obsolete=f"Somebody uses it: {several(busy, 'grant')}." if busy else "",
    )


def _clear_gpu(pool: Pool, target: str) -> Plan:
    gpu = gpu_of(pool, SEEING_ALL, target)
    return Plan(
        title=f"Clear the fault of GPU {gpu.uuid}",
        button="Clear the fault",
        will=[
            f"It was taken out for this: {gpu.fault or gpu.held or 'nothing'}.",
            "Its node checks it, and it is given out again if it passes.",
        ],
        back=link("gpu", id=target),
        obsolete="" if gpu.fault or gpu.held else "It has no fault.",
    )


def _grant_of(pool: Pool, grant_id: str) -> Grant:
    if (grant := pool.grants.get(grant_id)) is None:
        raise Hidden
    return grant


def _end_grant(pool: Pool, grant_id: str) -> Plan:
    grant = _grant_of(pool, grant_id)
    alive = [s for s in pool.sessions_of(grant.id) if s.state is not SessionState.ENDED]
    programs = sorted({s.program for s in alive if s.program})
    which = f" ({', '.join(programs[:5])})" if programs else ""
    return Plan(
        title=f"End grant {grant.id}",
        button="End the grant",
        will=[
            (
                f"Ended at once: {several(len(alive), 'session')} of project "
                f"{grant.project or DEFAULT_PROJECT}{which}. Programs get a CUDA error and lose "
                "what they had on the GPU."
            ),
            f"Back in the pool within seconds: {several(len(grant.vgpus), 'vGPU')}.",
            "This cannot be undone.",
        ],
        back=link("grant", id=grant.id),
        generation=grant.generation,
        danger=True,
        obsolete="" if grant.state is GrantState.LIVE else "It has ended already.",
    )


def _resize_grant(pool: Pool, grant_id: str) -> Plan:
    grant = _grant_of(pool, grant_id)
    sizes = ", ".join(f"{mib(v.memory_mib)} and {v.compute_percent} %" for v in grant.vgpus[:4])
    return Plan(
        title=f"Resize grant {grant.id}",
        button="Resize the grant",
        will=[
            (
                f"Now: {several(len(grant.vgpus), 'vGPU')} with {sizes}. Each gets the limits "
                "below while its programs run."
            ),
            "It is refused where they do not fit, or where programs hold more memory already.",
        ],
        fields=[
            Field("memory_mib", "Memory of each vGPU, MiB (empty: as it is)", "number", least=1),
            Field(
                "compute_percent",
                "Compute of each vGPU, percent (empty: as it is)",
                "number",
                least=1,
                most=100,
            ),
        ],
        back=link("grant", id=grant.id),
        generation=grant.generation,
        obsolete="" if grant.state is GrantState.LIVE else "It has ended already.",
    )


def _session_of(pool: Pool, session_id: str) -> Session:
    if (session := pool.sessions.get(session_id)) is None:
        raise Hidden
    return session


def _end_session(pool: Pool, session_id: str) -> Plan:
    session = _session_of(pool, session_id)
    alive = [s for s in pool.sessions_of(session.grant_id) if s.state is not SessionState.ENDED]
    others = len(alive) - 1
    return Plan(
        title=f"End session {session.id}",
        button="End the session",
        will=[
            (
                f"{session.program or 'Its program'} on {session.host or session.node} gets a CUDA "
                "error and loses what it had on the GPU."
            ),
            (
                f"{several(others, 'other session')} of grant {session.grant_id} "
                f"{'goes' if others == 1 else 'go'} on, and keep its vGPUs."
                if others > 0
                else f"It is the only one of grant {session.grant_id}, which ends with it unless "
                "its job is held by a launcher."
            ),
            "This cannot be undone.",
        ],
        back=link("session", id=session.id),
        danger=True,
        obsolete="" if session.state is not SessionState.ENDED else "It has ended already.",
    )


def _ends_session(rights: Rights, pool: Pool, session_id: str) -> bool:
    session = pool.sessions.get(session_id)
    return session is not None and _ends(rights, pool, session.grant_id)


def _move(pool: Pool, request_id: str) -> Plan:
    entry, position = pool.queue.get(request_id), pool.queue.position(request_id)
    if entry is None:
        raise Hidden
    request = entry.request
    return Plan(
        title=f"Move request {request_id} in the queue",
        button="Move it",
        will=[
            (
                f"It is at place {position} of {len(pool.queue)}: {request.program or 'a program'} "
                f"of project {request.project or DEFAULT_PROJECT}, priority {request.priority}."
            ),
            "Those that it passes wait longer; their priorities and limits stay as they are.",
            "Who comes later is put in by priority and age as ever.",
            "A controller that takes over knows the order of priority and age only.",
        ],
        fields=[
            Field("position", "Its new place (1: the next)", "number", "1", least=1, required=True)
        ],
        back=link("queue"),
        generation=pool.queue.generation,
    )


def _place(fields: Mapping[str, str]) -> dict[str, object]:
    return {"position": number(fields, "position") or 1}


def _set_quota(pool: Pool, project: str) -> Plan:
    quota = pool.quotas.limits.get(project) or Quota(project, generation=0)
    held = pool.quotas.held(project)
    return Plan(
        title=f"Quota of project {project}",
        button="Set the quota",
        will=[
            (
                f"It holds {several(held.vgpus, 'vGPU')}, {mib(held.memory_mib)} and "
                f"{held.compute_percent} % of compute now, and keeps that."
            ),
            "From now on it gets nothing that would take it beyond these limits.",
        ],
        fields=[
            Field("vgpus", "vGPUs (0: no limit)", "number", str(quota.vgpus), least=0),
            Field(
                "memory_mib", "Memory, MiB (0: no limit)", "number", str(quota.memory_mib), least=0
            ),
            Field(
                "compute_percent",
                "Compute, percent of a GPU (0: no limit)",
                "number",
                str(quota.compute_percent),
                least=0,
            ),
            Field(
                "max_priority",
                "Highest priority of its requests (empty: any)",
                "number",
                "" if quota.max_priority is None else str(quota.max_priority),
            ),
            Field(
                "may_preempt",
                "It may end work of lower priority",
                "checkbox",
                "1" if quota.may_preempt else "",
            ),
        ],
        back=link("project", name=project),
        generation=quota.generation,
    )


def _quota_body(fields: Mapping[str, str]) -> dict[str, object]:
    return {
        "vgpus": number(fields, "vgpus") or 0,
        "memory_mib": number(fields, "memory_mib") or 0,
        "compute_percent": number(fields, "compute_percent") or 0,
        "max_priority": number(fields, "max_priority"),
        "may_preempt": "may_preempt" in fields,
    }


def _remove_quota(pool: Pool, project: str) -> Plan:
    quota = pool.quotas.limits.get(project)
    return Plan(
        title=f"Remove the quota of project {project}",
        button="Remove the quota",
        will=[
            "It may then have as much as the pool has, and may not end work of lower priority.",
            "What waits for its quota and fits is granted at once.",
        ],
        back=link("project", name=project),
        generation=quota.generation if quota else None,
        danger=True,
        obsolete="" if quota else "It has none.",
    )


def _switch(to: str) -> Callable[[str, Mapping[str, str]], RestCall]:
    def call(target: str, fields: Mapping[str, str]) -> RestCall:
        body = {"to": to, "preempt": "preempt" in fields}
        return RestCall("PUT", ("gpus", target, "switch"), body=body)

    return call


def _ends(rights: Rights, pool: Pool, grant_id: str) -> bool:
    grant = pool.grants.get(grant_id)
    return grant is not None and rights.ends(grant)


def _sizes(fields: Mapping[str, str]) -> dict[str, object]:
    return {name: number(fields, name) or 0 for name in ("memory_mib", "compute_percent")}


def _sign_out_person(_: Pool, person: str) -> Plan:
    return Plan(
        title=f"Sign out {person}",
        button="End the sessions",
        will=[
            "Every session of this person ends at once, in whatever browser.",
            "Who may still sign in at the provider can come back; take the groups away there.",
        ],
        back=link("people"),
        danger=True,
    )


ACTIONS: dict[str, Action] = {
    "node.drain": Action(
        "The node takes nothing new.", operators, _drain_node,
        lambda name, _: RestCall("PUT", ("nodes", name, "drain")),
    ),
    "node.return": Action(
        "The node takes new grants again.", operators, _return_node,
        lambda name, _: RestCall("DELETE", ("nodes", name, "drain")),
    ),
    "gpu.drain": Action("The GPU drains.", operators, _drain_gpu, _switch("drained")),
    "gpu.native": Action("The GPU leaves the pool.", operators, _native_gpu, _switch("native")),
    "gpu.return": Action("The GPU returns.", operators, _return_gpu, _switch("pooled")),
    "gpu.check": Action(
        "The GPU is being checked.", operators, _check_gpu,
        lambda gpu, _: RestCall("POST", ("gpus", gpu, "check")),
    ),
    "gpu.clear": Action(
        "The GPU is being checked.", operators, _clear_gpu,
        lambda gpu, _: RestCall("DELETE", ("gpus", gpu, "fault")),
    ),
    "grant.end": Action(
        "The grant is being ended.", _ends, _end_grant,
        lambda grant, _: RestCall("DELETE", ("grants", grant)),
    ),
    "grant.resize": Action(
        "The grant has its new size.", operators, _resize_grant,
        lambda grant, fields: RestCall("PATCH", ("grants", grant), body=_sizes(fields)),
    ),
    "session.end": Action(
        "The session is being ended.", _ends_session, _end_session,
        lambda session, _: RestCall("DELETE", ("sessions", session)),
    ),
    "queue.move": Action(
        "The request has its new place.", operators, _move,
        lambda request, fields: RestCall("PATCH", ("queue", request), body=_place(fields)),
    ),
    "quota.set": Action(
        "The quota is set.", operators, _set_quota,
        lambda project, fields: RestCall("PUT", ("quotas", project), body=_quota_body(fields)),
    ),
    "quota.remove": Action(
        "The quota is removed.", operators, _remove_quota,
        lambda project, _: RestCall("DELETE", ("quotas", project)),
    ),
    "person.sign-out": Action(
        "The person is signed out everywhere.", lambda rights, *_: rights.audits, _sign_out_person,
        lambda person, _: RestCall("DELETE", ("people", person, "sessions")),
    ),
    **RESERVATIONS,
    **SUSPENSION,
    **VMS,
}  # fmt: skip
