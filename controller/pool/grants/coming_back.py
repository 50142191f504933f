# SPDX-License-Identifier: Apache-2.0
"""What keeps a suspended grant from coming back beside room, in words: pure, for suspending."""

from __future__ import annotations

from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.model import Grant, Vgpu
from sluice.controller.pool.projects.quotas import Excess, Held, Quotas

WAITS = "it waits: "


def over_quota(quotas: Quotas, grant: Grant, sized: tuple[Vgpu, ...]) -> Excess | None:
    """By what it would be too much for its project; None: it would not be.

    What draws on a reservation is counted with that already.
    """
    if grant.reservation:
        return None
    return quotas.exceeded(grant.project, Held.of(sized), Held.of(grant.vgpus))


def why_waiting(grant: Grant, over: Excess | None, fleet: Fleet) -> str:
    """What keeps it; "": room alone, which the queue shows."""
    if over:
        return f"project {over.project} has a quota {over.figure} of {over.most}, and holds others"
    gpus = [(key, fleet.gpus.get(key)) for key, _ in grant.placed()]
    faults = [f"GPU {key} is at fault: {gpu.fault}" for key, gpu in gpus if gpu and gpu.fault]
    return faults[0] if faults else ""


def note_of(grant: Grant, why: str) -> str:
    """Its note from now on: an earlier one stays where nothing but room keeps it."""
    if why:
        return WAITS + why
    return "" if grant.suspension_note.startswith(WAITS) else grant.suspension_note
