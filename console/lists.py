# SPDX-License-Identifier: Apache-2.0
"""The lists of the console, in pages: as REST's, with fewer rows.

Used by console.kinds. A page's place is REST's marker, so nothing is shown twice or left out while
things come and go. What no filter says is looked at only as far as the page goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluice.console.drawing import hue_of
from sluice.console.parts import Arguments, Hidden
from sluice.console.rights import Rights
from sluice.console.views import waiting
from sluice.controller.api.pages import page, page_in_order
from sluice.controller.api.schemas import node_view
from sluice.controller.api.vm_routes import vm_view
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Gpu,
    Grant,
    GrantState,
    NodeState,
    ReservationState,
    Session,
    SessionState,
)
from sluice.controller.pool.pool import Pool

ROWS = 50
CARDS = 24
QUEUE_ROWS = 20
FEW = 2000


def gpus(
    pool: Pool, rights: Rights, node: str | None, marker: str | None
) -> tuple[list[Gpu], str | None]:
    """The GPUs of a page of cards, of one node or all."""
    if not rights.sees_pool:
        raise Hidden

    def place(gpu: Gpu) -> tuple[str, str]:
        return gpu.node, gpu.uuid

    if node is not None:
        return page(pool.gpus_of(node), place, CARDS, marker)
    return page_in_order(lambda last: pool.gpus_in_order.after(last), place, CARDS, marker)


def nodes(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    """Nodes by name."""
    if not rights.sees_pool:
        raise Hidden
    shown, marker = page_in_order(
        lambda last: iter(pool.nodes_in_order.after(last)),
        lambda node: (node.name,),
        ROWS,
        of.get("marker"),
    )
    up = sum(1 for node in shown if node.state is NodeState.UP)
    return {"nodes": [node_view(pool, node) for node in shown], "up": up, "next": marker, "of": of}


def grants(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    """Grants, oldest first: live ones, or all that are remembered; of a project or node."""
    state, node, project = of.get("state", "live"), of.get("node"), of.get("project")

    def is_wanted(grant: Grant) -> bool:
        return (
            rights.sees_grant(grant)
            and (state == "all" or grant.state is GrantState.LIVE)
            and (node is None or node in grant.nodes)
            and project in (None, grant.project or DEFAULT_PROJECT)
        )

    def age(grant: Grant) -> tuple[float, str]:
        return grant.created, grant.id

    if node is not None and not rights.sees_pool:
        raise Hidden
    few = None
    if (own := project or rights.project) is not None:
        few = _few_of(pool, own, ended=state == "all")
    elif node is not None and state != "all":
        few = pool.grants_live_on(node)
    if few is not None:
        shown, marker = page(filter(is_wanted, few), age, ROWS, of.get("marker"))
    else:
        shown, marker = page_in_order(
            lambda last: filter(is_wanted, pool.grants_in_order.after(last)),
            age,
            ROWS,
            of.get("marker"),
        )
    rows = [
        {
            "grant": grant,
            "project": grant.project or DEFAULT_PROJECT,
            "hue": hue_of(grant.project or DEFAULT_PROJECT),
            "memory_mib": sum(v.memory_mib for v in grant.vgpus),
            "compute_percent": sum(v.compute_percent for v in grant.vgpus),
            "sessions": _alive(pool, grant),
        }
        for grant in shown
    ]
    return {"rows": rows, "next": marker, "of": of, "state": state}


def _few_of(pool: Pool, project: str, *, ended: bool) -> list[Grant] | None:
    """A project's grants; None where there are so many that a walk through all finds them soon."""
    found = pool.grants_live_of(project)
    if len(found) > FEW:
        return None
    return found + (pool.ended_grants() if ended else [])


def _alive(pool: Pool, grant: Grant) -> int:
    return sum(s.state is not SessionState.ENDED for s in pool.sessions_of(grant.id))


def sessions(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    """Sessions, oldest first: those that have not ended, or all that are remembered."""
    state, project = of.get("state", "live"), of.get("project")

    def is_wanted(session: Session) -> bool:
        return (
            (state == "all" or session.state is not SessionState.ENDED)
            and rights.sees_session(pool, session)
            and project in (None, _project_of(pool, session))
        )

    def age(session: Session) -> tuple[float, str]:
        return session.started, session.id

    def after(last: tuple[Any, ...] | None) -> Iterator[Session]:
        return filter(is_wanted, pool.sessions_in_order.after(last))

    own = project or rights.project
    few = _few_of(pool, own, ended=state == "all") if own is not None else None
    if few is not None:
        theirs = (s for grant in few for s in pool.sessions_of(grant.id))
        shown, marker = page(filter(is_wanted, theirs), age, ROWS, of.get("marker"))
    else:
        shown, marker = page_in_order(after, age, ROWS, of.get("marker"))
    rows = [{"session": s, "project": _project_of(pool, s)} for s in shown]
    return {"rows": rows, "next": marker, "of": of, "state": state}


def _project_of(pool: Pool, session: Session) -> str:
    grant = pool.grants.get(session.grant_id)
    return (grant.project or DEFAULT_PROJECT) if grant else ""


def reservations(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    """Reservations, oldest first: those that have not ended, or all that are remembered."""
    if not rights.sees_pool:
        raise Hidden
    state = of.get("state", "live")
    wanted = (
        r
        for r in pool.reservations.values()
        if state == "all" or r.state is not ReservationState.ENDED
    )
    shown, marker = page(wanted, lambda r: (r.created, r.id), ROWS, of.get("marker"))
    return {"reservations": shown, "next": marker, "of": of, "state": state}


def vms(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    """VMs that ask for something, by name, and GPUs that VMs have whole."""
    if not rights.sees_pool:
        raise Hidden
    shown, marker = page(
        pool.machines.records.values(), lambda vm: (vm.name, vm.uuid), ROWS, of.get("marker")
    )
    held = sorted(pool.attachments.values(), key=lambda each: (each.node, each.uuid))
    return {
        "vms": [vm_view(machine) for machine in shown],
        "next": marker,
        "attachments": held[:ROWS],
        "more": max(0, len(held) - ROWS),
    }


def queue(pool: Pool, rights: Rights, of: Arguments) -> dict[str, Any]:
    """Who waits, the next first, from a position on."""
    if not rights.sees_pool:
        raise Hidden
    text = of.get("from", "1")
    first = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 1
    first = max(1, first)
    shown = waiting(pool, first, QUEUE_ROWS)
    rows = [{"entry": each, "hue": hue_of(each.project)} for each in shown]
    total = len(pool.queue)
    following = first + QUEUE_ROWS if first + QUEUE_ROWS <= total else None
    return {"rows": rows, "total": total, "first": first, "next": following}
