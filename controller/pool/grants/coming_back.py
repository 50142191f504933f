# SPDX-License-Identifier: Apache-2.0
"""What keeps a suspended grant from coming back beside room, in words: pure, for suspending."""

from __future__ import annotations

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


def note_of(grant: Grant, over: Excess | None, failed: str = "") -> str:
    """Its note from now on: the one before where nothing but room keeps it.

    `failed`: what is said of its GPU, where that has failed.
    """
    if over:
        most = f"project {over.project} has a quota {over.figure} of {over.most}"
        return f"{WAITS}{most}, and holds others"
    if failed:
        return f"{WAITS}{failed}"
    return "" if grant.suspension_note.startswith(WAITS) else grant.suspension_note
