# SPDX-License-Identifier: Apache-2.0
"""Why a session or a grant is over, or is to end: a cause to decide and count by, words for people.

Used by controller and server. The causes are native/api/protocol.yaml's, as workers name them too.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.protocol.frames import EndCause

__all__ = ["End", "EndCause", "cause_name", "read_cause"]


@dataclass(frozen=True, slots=True)
class End:
    """One end; the text names what the cause does not: which request, GPU, signal."""

    cause: EndCause
    text: str

    def __str__(self) -> str:
        return self.text


def read_cause(number: int) -> EndCause:
    """The cause that somebody else names; one that this release does not know is UNKNOWN."""
    try:
        return EndCause(number)
    except ValueError:
        return EndCause.UNKNOWN


def cause_name(cause: EndCause) -> str:
    """As REST, the event log and metrics have it, such as client-ended."""
    return cause.name.lower().replace("_", "-")
