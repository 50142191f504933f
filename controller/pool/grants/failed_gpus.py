# SPDX-License-Identifier: Apache-2.0
"""What a GPU that fails means for a grant that is on it: it ends, unless nothing of it is there."""

from __future__ import annotations

from sluice.controller.pool.decisions import Decisions, EndOrder
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import Gpu, Grant
from sluice.resources.ends import End, EndCause
from sluice.resources.suspended_contexts import ContextPlace

#: Nobody knows yet: its server finds it out, says so, and then it is decided.
MAY_BE_OFF = (ContextPlace.OFF, ContextPlace.UNKNOWN)


def cause_of(gpu: Gpu) -> str:
    """What is wrong; what to do then is for operators."""
    cause, _, _ = gpu.fault.partition(";")
    return cause


def is_elsewhere(grant: Grant) -> bool:
    """Whether all of a grant is in the host's memory, contexts included, as far as is known.

    So is one that is to come back: its server does not bring it back on a GPU that has failed. What
    other processes have open of it stays, and is lost.
    """
    if grant.contexts is None or grant.contexts.place not in MAY_BE_OFF:
        return False
    if grant.suspension is SuspensionState.SUSPENDED:
        return not any(vgpu.memory_mib for vgpu in grant.vgpus)
    return grant.suspension is SuspensionState.RESUMING


def end_on(gpu: Gpu, grant: Grant, jobs: Jobs, decisions: Decisions) -> None:
    """It loses what it had there; of several nodes, the others' parts go on."""
    why = End(EndCause.GPU_FAILED, f"GPU {gpu.uuid} has failed: {cause_of(gpu)}")
    if not grant.spans_nodes:
        jobs.end_soon(grant.id, why)
    decisions.ends.append(EndOrder(gpu.node, grant.id, why))


def why_it_stays(gpu: Gpu, grant: Grant, never: str) -> str:
    """In words, of one that is suspended and cannot come back elsewhere now.

    `never`: why it does not move, as far as the controller knows.
    """
    contexts = grant.contexts
    why = never or (contexts.moves_not if contexts else "") or "no other GPU has room for it"
    return f"its GPU {gpu.uuid} has failed ({cause_of(gpu)}), and {why}"
