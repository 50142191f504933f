# SPDX-License-Identifier: Apache-2.0
"""The way of a GPU out of the pool and back, as steps: which are done, which is under way.

Used by console.kinds for a GPU's page. The pool's records say where a GPU is (controller.pool.gpus.
modes); this only puts that into order and words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sluice.controller.pool.gpus.attachment import Attachment, AttachmentState
from sluice.controller.pool.model import GpuMode, GpuSwitch, SwitchStep

State = Literal["done", "now", "stuck", "ahead"]


@dataclass(frozen=True, slots=True)
class Step:
    """One, with what it waits for or why it is stuck."""

    text: str
    state: State
    note: str = ""


def steps_of(switch: GpuSwitch, attachment: Attachment | None) -> list[Step]:
    """All steps, in order; none where the GPU is simply pooled."""
    if switch.mode is GpuMode.POOLED:
        return []
    if switch.mode is GpuMode.RETURNING:
        return _in_order(
            ["No VM has it any more", "Its node takes it back from the host's driver",
             "In the pool: it is granted again"],
            1, switch, stuck=switch.step is SwitchStep.STUCK,
        )  # fmt: skip
    texts = [
        "Nothing new is placed on it",
        "What is on it ends: grants and reservations",
        "Its node lets go of it",
    ]
    if switch.target is GpuMode.NATIVE:
        texts += ["Out of the pool, for one VM", "A VM has it"]
    else:
        texts.append("Out of the pool, for service")
    if switch.mode is GpuMode.DRAINING:
        at = 1 if switch.step is SwitchStep.WAITING else 2
        return _in_order(texts, at, switch, stuck=switch.step is SwitchStep.STUCK)
    if switch.mode is GpuMode.DRAINED or attachment is None:
        done = len(texts) - (1 if switch.target is GpuMode.NATIVE else 0)
        return [Step(text, "done" if i < done else "ahead") for i, text in enumerate(texts)]
    name = attachment.domain_name or attachment.domain_uuid
    last: State = "done" if attachment.state is AttachmentState.ATTACHED else "now"
    words = {
        AttachmentState.ATTACHING: f"VM {name} is being given it",
        AttachmentState.ATTACHED: f"VM {name} has it",
        AttachmentState.DETACHING: f"VM {name} gives it back",
    }[attachment.state]
    return [*(Step(text, "done") for text in texts[:-1]), Step(words, last, attachment.reason)]


def _in_order(texts: list[str], at: int, switch: GpuSwitch, *, stuck: bool) -> list[Step]:
    return [
        Step(text, "done" if i < at else "ahead")
        if i != at
        else Step(text, "stuck" if stuck else "now", switch.reason)
        for i, text in enumerate(texts)
    ]
