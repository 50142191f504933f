# SPDX-License-Identifier: Apache-2.0
"""What is asked of the pool: the fields of a vGPU request, their bounds, and what is wrong.

The one definition. Each way to say it (a domain's metadata, a flavor, a VM's attribute, the
variables of a program, REST) is read by request_forms.py or by an adapter of its own with these
bounds. They are native/api/client_settings.yaml's, which the client library and `sluice run` have
too. What runs in Nova without the rest of Sluice (nova_driver/compute) has copies, which
tests/resources holds against this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sluice.guest_runtime import client_settings
from sluice.protocol import frames

SHOWN_CHARACTERS = 60
DEFAULT_PROJECT = "default"  # on whose account goes what is nobody's in particular


class RequestError(ValueError):
    """A field that cannot be right: which, what was found there, what is allowed."""

    def __init__(self, field: str, found: str | None, allowed: str) -> None:
        what = f"{field} is missing" if found is None else f"{field}={found}"
        super().__init__(f"{what}: {allowed}")
        self.field = field
        self.found = found
        self.allowed = allowed


class Mode(StrEnum):
    """RESERVED draws on a reservation or waits, ON_DEMAND on none; AUTO first on one, if any."""

    AUTO = "auto"
    RESERVED = "reserved"
    ON_DEMAND = "on-demand"


class Sharing(StrEnum):
    """How a share of a GPU is kept; AUTO leaves it to others.

    TURNS: of its time, and more of it while nobody else wants the GPU. CAPPED: never more.
    CONCURRENT: of its multiprocessors, at once with other sessions of the same project.
    """

    AUTO = "auto"
    TURNS = "turns"
    CAPPED = "capped"
    CONCURRENT = "concurrent"

    @property
    def said(self) -> str:
        """In a message of servers and controllers: AUTO is empty, as older ones say it."""
        return "" if self is Sharing.AUTO else self.value

    @classmethod
    def heard(cls, text: str) -> Sharing:
        """What such a text means; what a newer one says besides is AUTO here."""
        return cls(text) if text in SHARING.words else cls.AUTO


def turns_of(*said: Sharing) -> Sharing:
    """How turns are kept where request, pool and server each say something.

    CAPPED where one of them says so: nobody loosens another's. AUTO where none says anything.
    """
    of_turns = [each for each in said if each is not Sharing.CONCURRENT]
    return max(of_turns, key=list(Sharing).index, default=Sharing.AUTO)


def sharing_on(
    request: Sharing, pool: Sharing, node: Sharing, *, concurrent: bool
) -> Sharing | None:
    """What holds on a node where the three say something; `concurrent`: whether it can be there.

    The first that says anything chooses between turns and CONCURRENT; what only pool or node want
    gives way to turns where it cannot be. None: the request wants it, and it cannot be.
    """
    chosen = next((each for each in (request, pool, node) if each is not Sharing.AUTO), node)
    if chosen is Sharing.CONCURRENT:
        if concurrent:
            return chosen
        if request is Sharing.CONCURRENT:
            return None
    return turns_of(request, pool)


@dataclass(frozen=True, slots=True)
class Number:
    """The bounds of a whole number, both included."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """In words."""
        return f"{self.low} to {self.high}"

    def check(self, field: str, value: int) -> int:
        """The value; raises RequestError."""
        if not self.low <= value <= self.high:
            raise RequestError(field, str(value), f"give {self.allowed}")
        return value

    def read(self, field: str, text: str) -> int:
        """The value of a text, which may be a stranger's; raises RequestError."""
        if not re.fullmatch(r"-?[0-9]{1,10}", text):
            raise RequestError(field, shown(text), f"give a number, {self.allowed}")
        return self.check(field, int(text))


@dataclass(frozen=True, slots=True)
class Text:
    """What a text may be: a regular expression, and in words."""

    pattern: str
    allowed: str

    def read(self, field: str, text: str) -> str:
        """The text; raises RequestError."""
        if not re.fullmatch(self.pattern, text):
            raise RequestError(field, shown(text), f"give {self.allowed}")
        return text


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """In words."""
        return ", ".join(self.words)

    def read(self, field: str, text: str) -> str:
        """The word; raises RequestError."""
        if text not in self.words:
            raise RequestError(field, shown(text), f"give {self.allowed}")
        return text


def _bounds(setting: str) -> Number:
    accepts = client_settings.BY_NAME[setting].accepts
    assert isinstance(accepts, range)
    return Number(accepts[0], accepts[-1])


def _text(setting: str) -> Text:
    text = client_settings.BY_NAME[setting].text
    assert text
    return Text(*text)


COUNT = _bounds("vgpu_count")
MEMORY_MIB = _bounds("gmem")
#: Of a domain's metadata and of a flavor, which say what a VM has for good.
DEFINED_MEMORY_MIB = Number(1, frames.MAX_DEFINED_GMEM_MIB)
COMPUTE_PERCENT = _bounds("ratio")
PRIORITY = _bounds("priority")
WAIT_SECONDS = _bounds("wait")
JOB_PROCESSES = _bounds("job_processes")
#: What a message or a record of the store has room for; REST's numbers have no closer bound.
I32 = Number(-(2**31), 2**31 - 1)

MODE = Choice(tuple(Mode))
SHARING = Choice(tuple(Sharing))
PROJECT = _text("project")
GPU_MODEL = _text("gpu_model")
GPU_ARCHITECTURE = _text("gpu_architecture")
LABEL_WORD = client_settings.PATTERNS["label"]
LABEL = Text(f"{LABEL_WORD}={LABEL_WORD}", "NAME=VALUE, such as rack=r12")
MAX_LABELS = client_settings.MOST_LABELS


@dataclass(frozen=True, kw_only=True, slots=True)
class VgpuRequest:
    """`count` vGPUs of one size, and on what terms; zeros and "" leave it to the pool.

    `memory_mib` and `compute_percent` (of a GPU's time) are of each vGPU. `wait_seconds` -1 waits
    for ever, 0 not at all. `preempt` says that lower-priority work may be ended for it, `same_gpu`
    that two of its vGPUs may be on one card where there are too few, `cross_node` that they may be
    on several nodes.
    """

    count: int = 1
    memory_mib: int = 0
    compute_percent: int = 0
    mode: Mode = Mode.AUTO
    sharing: Sharing = Sharing.AUTO
    priority: int = 0
    wait_seconds: int = 0
    preempt: bool = False
    same_gpu: bool = False
    cross_node: bool = False
    gpu_model: str = ""
    gpu_architecture: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    project: str = ""


def shown(text: str) -> str:
    """A stranger's text, safe and short enough for a line of a log."""
    quoted = ascii(text[:SHOWN_CHARACTERS])
    whole = len(text) <= SHOWN_CHARACTERS and len(quoted) <= SHOWN_CHARACTERS + 2
    return quoted if whole else quoted[: SHOWN_CHARACTERS - 2] + "...'"
