# SPDX-License-Identifier: Apache-2.0
"""What a caller may ask for, and which job's grant it may join.

Called by requests.Requests before a request waits, and by scheduling.Scheduler before a session
joins, since the grant may have been made, or rights may have been changed, while it waited. The
rule: nobody gets by joining what it could not ask for itself. That the caller is of the job's trust
domain is judged by jobs.Jobs; here it is asked of whose account the grant is, with which priority
it holds its GPUs, and whose reservation it uses.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.controller.pool.admission import refusals
from sluice.controller.pool.decisions import GrantRequest, Refused
from sluice.controller.pool.model import DEFAULT_PROJECT, Grant, Mode
from sluice.controller.pool.projects.quotas import Quotas
from sluice.controller.pool.reservations.reservations import Reservations


def not_to_ask(request: GrantRequest, quotas: Quotas) -> Refused | None:
    """Why its project or its token does not allow what it asks for."""
    if request.preempt and not quotas.may_preempt(request):
        return refusals.may_not_preempt(request)
    if (most := quotas.too_high(request)) is not None:
        return refusals.too_high(request, most)
    return None


def not_to_join(
    request: GrantRequest, grant: Grant, quotas: Quotas, reservations: Reservations
) -> Refused | None:
    """Why it may not have a session of its job's grant.

    The right to preempt is not asked for: it ends others' work, and that has been done. Neither are
    quotas: a session more is no vGPU more.
    """
    if (request.project or DEFAULT_PROJECT) != (grant.project or DEFAULT_PROJECT):
        return refusals.anothers_project(request, grant)
    if (most := quotas.too_high(replace(request, priority=grant.priority))) is not None:
        return refusals.job_too_high(request, grant, most)
    if grant.reservation:
        # sizes and mode are the first process's, the right to the reservation is each one's own
        own = reservations.of(replace(request, mode=Mode.AUTO))
        if all(reservation.id != grant.reservation for reservation in own):
            return refusals.anothers_reservation(request, grant)
    return None
