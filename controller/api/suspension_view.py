# SPDX-License-Identifier: Apache-2.0
"""How a grant stands that does not simply run, as JSON; part of schemas.GrantView."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, Field

from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import Grant, GrantState
from sluice.resources.suspended_contexts import ContextPlace, Stays, words


class RunningSize(BaseModel):
    """A vGPU as it is when its grant runs."""

    memory_mib: int
    compute_percent: int


class SuspensionView(BaseModel):
    """A grant that is suspended, or on its way there or back."""

    state: Literal["suspending", "suspended", "resuming"]
    since: datetime | None = Field(description="since when it has been suspended")
    resumes: bool = Field(description="it goes on as soon as there is room for it")
    note: str = Field(description="why it was suspended, or could not be resumed, in words")
    context: ContextPlace | None = Field(
        description="where its CUDA contexts are: on its GPUs (stays, leaving, unknown) or off; "
        "none: its node does not say"
    )
    context_stays: Stays = Field(description='why they stay; "": nothing is in the way')
    context_note: str = Field(description="the same in words")
    moves_to: list[str] = Field(
        description="the GPUs of its node that it may come back on beside its own"
    )
    moves_not: str = Field(description="why there are none, in words, where its node says so")
    moving_to: str = Field(description='the GPU that it is to go on on; "": any that will do')
    runs_with: list[RunningSize] = Field(
        description="its vGPUs when it runs; `vgpus` are what stays of them meanwhile"
    )


def suspension_view(grant: Grant) -> SuspensionView | None:
    """None: it runs, or has ended."""
    if grant.state is not GrantState.LIVE or grant.suspension is SuspensionState.NONE:
        return None
    since, contexts = grant.suspended_since, grant.contexts
    return SuspensionView(
        state=grant.suspension.value,
        since=None if since is None else datetime.fromtimestamp(since, UTC),
        resumes=grant.resumes,
        note=grant.suspension_note,
        context=contexts.place if contexts else None,
        context_stays=contexts.why if contexts else Stays.NONE,
        context_note=words(contexts.why, contexts.note) if contexts else "",
        moves_to=list(contexts.moves_to) if contexts else [],
        moves_not=contexts.moves_not if contexts else "",
        moving_to=grant.moving_to,
        runs_with=[
            RunningSize(memory_mib=v.memory_mib, compute_percent=v.compute_percent)
            for v in grant.running_vgpus or grant.vgpus
        ],
    )
