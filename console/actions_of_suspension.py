# SPDX-License-Identifier: Apache-2.0
"""Suspending and resuming grants. Part of console.actions."""

from __future__ import annotations

from sluice.console.inner_rest import RestCall
from sluice.console.parts import Hidden
from sluice.console.plans import Action, Plan, operators, several
from sluice.console.rendering import link, mib
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import DEFAULT_PROJECT, Grant, GrantState
from sluice.controller.pool.pool import Pool


def _grant_of(pool: Pool, grant_id: str) -> Grant:
    if (grant := pool.grants.get(grant_id)) is None:
        raise Hidden
    return grant


def _suspend(pool: Pool, grant_id: str) -> Plan:
    grant = _grant_of(pool, grant_id)
    runs = grant.suspension is SuspensionState.NONE
    return Plan(
        title=f"Suspend grant {grant.id}",
        button="Suspend the grant",
        will=[
            (
                f"Its programs, of project {grant.project or DEFAULT_PROJECT}, stand still until "
                "it is resumed; they notice time only."
            ),
            f"Their memory goes to the memory of node {grant.node}, their place is others'.",
            "What does not come to a stop in time goes on, and the event log says why.",
        ],
        back=link("grant", id=grant.id),
        generation=grant.generation,
        obsolete=_over(grant) or ("" if runs else f"It is {grant.suspension.value} already."),
    )


def _resume(pool: Pool, grant_id: str) -> Plan:
    grant = _grant_of(pool, grant_id)
    wanted = grant.running_vgpus or grant.vgpus
    sizes = ", ".join(f"{mib(v.memory_mib)} and {v.compute_percent} %" for v in wanted[:4])
    return Plan(
        title=f"Resume grant {grant.id}",
        button="Resume the grant",
        will=[
            (
                f"It goes on as soon as there is room on its GPUs for "
                f"{several(len(wanted), 'vGPU')} with {sizes}."
            ),
            "Until then it stands in the queue with its priority.",
        ],
        back=link("grant", id=grant.id),
        generation=grant.generation,
        obsolete=_over(grant) or ("It runs." if grant.suspension is SuspensionState.NONE else ""),
    )


def _over(grant: Grant) -> str:
    return "" if grant.state is GrantState.LIVE else "It has ended already."


SUSPENSION: dict[str, Action] = {
    "grant.suspend": Action(
        "The grant is being suspended.", operators, _suspend,
        lambda grant, _: RestCall("POST", ("grants", grant, "suspend")),
    ),
    "grant.resume": Action(
        "The grant goes on when there is room.", operators, _resume,
        lambda grant, _: RestCall("POST", ("grants", grant, "resume")),
    ),
}  # fmt: skip
