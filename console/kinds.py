# SPDX-License-Identifier: Apache-2.0
"""Every kind of part: what it shows of the pool, and who may see it.

Used by board.Board by name. A function here raises Hidden for what the rights do not show, as for
what there is not: nobody learns which ids there are.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sluice.console.drawing import hue_of
from sluice.console.lists import grants, nodes, queue, reservations, sessions, vms
from sluice.console.parts import Arguments, Hidden, Kind
from sluice.console.rights import Rights
from sluice.console.switch_steps import steps_of
from sluice.console.views import gpu_card, limits_of
from sluice.controller.api.schemas import grant_view, node_view, session_view
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.tallies import LOST
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Gpu,
    GpuKey,
    GrantState,
    NodeState,
    OwnerKind,
    ReservationState,
    SessionState,
)
from sluice.controller.pool.pool import Pool
from sluice.controller.store.store import EventQuery

MOST_EVENTS = 12
MOST_GRANTS, MOST_SUBJECTS = 25, 100  # of a project, whose events its page has
MOST_SLICES = 100  # of a GPU, in its table
MOST_SESSIONS = 50  # of a grant
MOST_RESERVATIONS = 50  # of a project


def gpu_of(pool: Pool, rights: Rights, name: str) -> Gpu:
    """A GPU by node:uuid; raises Hidden."""
    node, _, uuid = name.rpartition(":")
    gpu = pool.gpus.get(GpuKey(node, uuid))
    if gpu is None or not rights.sees_pool:
        raise Hidden
    return gpu


def _node(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    node = pool.nodes.get(of["name"])
    if node is None or not rights.sees_pool:
        raise Hidden
    return {"node": node_view(pool, node)}


def _gpu_card(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    return {"card": gpu_card(pool, gpu_of(pool, rights, of["id"]))}


def _gpu(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    gpu = gpu_of(pool, rights, of["id"])
    card, switch = gpu_card(pool, gpu), pool.switches.get(gpu.key)
    return {
        "card": card,
        "switch": switch,
        "steps": steps_of(switch, pool.attachments.get(gpu.key)) if switch else [],
        "held": gpu.key in pool.attachments,
        "slices": card.slices[:MOST_SLICES],
        "more": max(0, len(card.slices) - MOST_SLICES),
        "reservations": pool.reservations_on(gpu.key),
    }


def _grant(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    grant = pool.grants.get(of["id"])
    if grant is None or not rights.sees_grant(grant):
        raise Hidden
    live = grant.state is GrantState.LIVE
    ordered = sorted(
        pool.sessions_of(grant.id), key=lambda s: (s.state is SessionState.ENDED, -s.started)
    )
    times = [pool.vgpu_time(grant.id, number) for number in range(len(grant.vgpus))]
    return {
        "grant": grant_view(grant, ()),
        "live": live,
        "ends": live and rights.ends(grant),
        "project": grant.project or DEFAULT_PROJECT,
        "hue": hue_of(grant.project or DEFAULT_PROJECT),
        "memory": pool.grant_memory(grant.id),
        "vgpus": list(zip((key for key, _ in grant.placed()), grant.vgpus, times, strict=True)),
        "sessions": [session_view(s) for s in ordered[:MOST_SESSIONS]],
        "more": max(0, len(ordered) - MOST_SESSIONS),
    }


def _session(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    session = pool.sessions.get(of["id"])
    if session is None or not rights.sees_session(pool, session):
        raise Hidden
    grant = pool.grants.get(session.grant_id)
    return {
        "session": session_view(session),
        "project": (grant.project or DEFAULT_PROJECT) if grant else "",
        "grant_lives": grant is not None and grant.state is GrantState.LIVE,
        "ends": grant is not None and grant.state is GrantState.LIVE and rights.ends(grant),
        "ends_it": session.state is not SessionState.ENDED,
    }


def _project(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    name = of["name"]
    if not rights.sees_project(name):
        raise Hidden
    shown: dict[str, Any] = {"project": name, "hue": hue_of(name), "limits": None}
    if rights.sees_pool:  # as REST: quotas and reservations are not a tenant's to see
        limits, quota = limits_of(pool, name)
        owned = pool.reservations_of(OwnerKind.PROJECT, name)
        shown |= {
            "limits": limits,
            "quota": quota,
            "reservations": owned[:MOST_RESERVATIONS],
            "more": max(0, len(owned) - MOST_RESERVATIONS),
        }
    return shown


def _reservation(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    reservation = pool.reservations.get(of["id"])
    if reservation is None or not rights.sees_pool:
        raise Hidden
    return {
        "reservation": reservation,
        "grants": pool.grants_of_reservation(reservation),
        "live": reservation.state is not ReservationState.ENDED,
    }


def kinds(grant_service: GrantService) -> dict[str, Kind]:
    """All of them, of one pool."""
    pool = grant_service.pool

    def summary(_: Pool, rights: Rights, __: Arguments) -> dict[str, Any]:
        if not rights.sees_pool:
            raise Hidden
        tallies = grant_service.tallies
        return {
            "nodes": len(pool.nodes),
            "nodes_up": tallies.nodes[NodeState.UP],
            "gpus": sum(n for (_, health), n in tallies.gpus.items() if health != LOST),
            "faulty": sum(n for (_, health), n in tallies.gpus.items() if health == "faulty"),
            "memory_mib": tallies.memory_mib,
            "granted_mib": tallies.granted.memory_mib,
            "grants": tallies.grants,
            "sessions": tallies.sessions.total(),
            "waiting": len(pool.queue),
            "fragmentation": asdict(pool.fragmentation()),
            "trouble": str(grant_service.trouble or ""),
        }

    async def events(_: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
        subject = of["subject"]
        if not _sees_subject(pool, rights, subject):
            raise Hidden
        query = EventQuery(MOST_EVENTS, (subject,), without_kind="audit.")
        found = await grant_service.store.find_events(query)
        return {"events": [each.event for each in found]}

    async def project_events(_: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
        if not rights.sees_project(of["name"]):
            raise Hidden
        ended = [g for g in pool.ended_grants() if (g.project or DEFAULT_PROJECT) == of["name"]]
        newest = [*pool.grants_live_of(of["name"])[-MOST_GRANTS:], *ended[-MOST_GRANTS:]]
        sessions = [s.id for grant in reversed(newest) for s in pool.sessions_of(grant.id)]
        subjects = (*(grant.id for grant in newest), *sessions[:MOST_SUBJECTS])
        if not subjects:
            return {"events": []}
        query = EventQuery(MOST_EVENTS, subjects, without_kind="audit.")
        found = await grant_service.store.find_events(query)
        return {"events": [each.event for each in found]}

    def of_pool(_: Arguments) -> tuple[str, ...]:
        return ("pool",)

    def about(topic: str, argument: str) -> Any:
        return lambda of: (f"{topic}:{of[argument]}",)

    return {
        "summary": Kind("parts/summary.html", summary, of_pool, every=1.0),
        "queue": Kind("parts/queue.html", queue, lambda _: ("queue",), every=1.0, large=True),
        "gpu-card": Kind("parts/gpu_card.html", _gpu_card, about("gpu", "id"), every=3.0),
        "gpu": Kind("parts/gpu.html", _gpu, about("gpu", "id"), every=2.0, large=True),
        "node": Kind("parts/node.html", _node, about("node", "name")),
        "nodes": Kind("parts/nodes.html", nodes, lambda _: ("nodes",), apart=3.0, large=True),
        "grant": Kind("parts/grant.html", _grant, about("grant", "id"), every=2.0, large=True),
        "grants": Kind("parts/grants.html", grants, lambda _: ("grants",), apart=2.0, large=True),
        "session": Kind("parts/session.html", _session, about("session", "id"), every=5.0),
        "sessions": Kind(
            "parts/sessions.html", sessions, lambda _: ("sessions",), apart=2.0, large=True
        ),
        "project": Kind("parts/project.html", _project, about("project", "name")),
        "reservation": Kind("parts/reservation.html", _reservation, about("reservation", "id")),
        "reservations": Kind(
            "parts/reservations.html",
            reservations,
            lambda _: ("reservations",),
            apart=2.0,
            large=True,
        ),
        "vms": Kind("parts/vms.html", vms, lambda _: ("vms",), every=10.0, large=True),
        "events": Kind("parts/events.html", events, about("events", "subject")),
        "project-events": Kind(
            "parts/events.html", project_events, about("project", "name"), apart=3.0
        ),
    }


def _sees_subject(pool: Pool, rights: Rights, subject: str) -> bool:
    """A tenant sees the events of its project's grants and sessions, and no others."""
    if rights.sees_pool:
        return True
    session = pool.sessions.get(subject)
    return rights.sees_session(pool, session) or rights.sees_grant(pool.grants.get(subject))
