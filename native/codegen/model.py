# SPDX-License-Identifier: Apache-2.0
"""The API registry in memory: functions with their annotations and the kinds of their parameters.

Made by registry.load_registry(), read by the generators. The format of what it is made from is
described in docs/api-registry.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from imported import ImportedFunction, ImportedLibrary, ProcAddress
from kinds import Kind, Param
from major_model import Major
from variants import PerThreadVariant

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "native" / "api"
CUDA_VERSION_FOLDER = "cuda13"


class ErrorClass(StrEnum):
    """When the caller learns of an error, and so who must answer."""

    LOCAL = "local"
    """The client decides; nothing crosses the wire in the caller's time."""
    ANSWERED = "answered"
    """A round trip; the caller waits for the worker's result."""
    ASYNC = "async"
    """Fire and forget; only errors that CUDA itself reports asynchronously."""
    EITHER = "either"
    """As the frame says; for commands of our own."""
    REFUSED = "refused"
    """Answered as a device without the feature would: with the status in `answers`, by the client
    alone. `note` names the device attribute, or the fact, that agrees with it."""
    UNSUPPORTED = "unsupported"
    """Said explicitly, with a reason in `note`; the same as no entry."""


ON_WIRE = (ErrorClass.ANSWERED, ErrorClass.ASYNC, ErrorClass.EITHER)


class Hand(StrEnum):
    """What is written by hand; the rest is generated."""

    NONE = "none"
    CLIENT = "client"
    WORKER = "worker"
    BOTH = "both"
    """Client's function and worker's handler; the frame between them is generated."""
    ALL = "all"
    """The frame too: it is one of native/wire/frame.h, or there is none."""


class State(StrEnum):
    """What the worker's journal of live state must remember (suspend and migrate)."""

    NONE = "none"
    CREATES = "creates"
    MUTATES = "mutates"
    DESTROYS = "destroys"


class Cache(StrEnum):
    """For how long an answer holds, once the client has it."""

    NONE = "none"
    PURE = "pure"
    """A function of its arguments, GPU model and driver version: for ever."""
    OBJECT = "object"
    """Until the object given by the first handle dies or is mutated."""


@dataclass(frozen=True)
class Annotation:
    """One entry of driver.yaml."""

    error_class: ErrorClass
    hand: Hand = Hand.NONE
    state: State = State.NONE
    cache: Cache = Cache.NONE
    may_block: bool = False
    """The answer may take as long as the GPU's work: it runs on the calling thread's lane."""
    allocates: bool = False
    """May take GPU memory on the node: the worker asks the driver afterwards."""
    require: tuple[str, ...] = ()
    """C conditions on the arguments; the client refuses the call at once when one is false."""
    reach: dict[str, int] = field(default_factory=dict)
    """How many bytes the GPU touches behind each device address."""
    note: str = ""
    answers: str = ""
    """The status of class refused."""
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A driver function or a command of our own, with its parameters resolved."""

    name: str
    library: str
    """"driver", or "sluice" for commands of our own."""
    return_type: str
    params: tuple[Param, ...]
    annotation: Annotation
    id: int | None = None

    @property
    def error_class(self) -> ErrorClass:
        """When the caller learns of an error."""
        return self.annotation.error_class

    @property
    def frame_generated(self) -> bool:
        """It crosses the wire in a frame of its own, under an id of ids.lock."""
        return self.error_class in ON_WIRE and self.annotation.hand != Hand.ALL

    @property
    def client_generated(self) -> bool:
        """The exported function's body comes from the generator."""
        hand_client = self.annotation.hand in (Hand.CLIENT, Hand.BOTH)
        return self.library == "driver" and self.frame_generated and not hand_client

    @property
    def client_by_hand(self) -> bool:
        """Somebody must define the exported function under native/client."""
        supported = self.error_class != ErrorClass.UNSUPPORTED
        generated = self.client_generated or self.refusal_generated
        return self.library == "driver" and supported and not generated

    @property
    def refusal_generated(self) -> bool:
        """The exported function does nothing but answer its status."""
        return self.error_class == ErrorClass.REFUSED and self.annotation.hand == Hand.NONE

    @property
    def worker_generated(self) -> bool:
        """The worker's handler comes from the generator."""
        return self.frame_generated and self.annotation.hand not in (Hand.WORKER, Hand.BOTH)

    def param(self, name: str) -> Param:
        """Return the parameter of that name."""
        return next(p for p in self.params if p.name == name)

    def of_kind(self, *kinds: Kind) -> tuple[Param, ...]:
        """Return the parameters of these kinds, in order."""
        return tuple(p for p in self.params if p.kind in kinds)

    @property
    def destroyed(self) -> Param:
        """The handle whose object ends; only for state destroys."""
        return self.of_kind(Kind.HANDLE)[0]


@dataclass(frozen=True)
class Registry:
    """Everything under native/api, checked."""

    driver: ImportedLibrary
    runtime: ImportedLibrary
    functions: dict[str, Function]
    """Annotated driver functions by exported name, those with class unsupported included."""
    commands: dict[str, Function]
    """Sluice's own commands, which no application calls."""
    aliases: dict[str, str]
    """Old exported name -> exported name with the same signature and meaning."""
    variants: dict[str, PerThreadVariant]
    """Names with _ptsz or _ptds that follow from a supported function."""
    runtime_hand: frozenset[str]
    runtime_variants: dict[str, PerThreadVariant]
    runtime_undeclared: dict[str, str]
    """Exported by NVIDIA's libcudart, declared in no header: name -> what it is."""
    driver_undeclared: tuple[ProcAddress, ...]
    """Exported by NVIDIA's libcuda, declared where those of a graphics system are needed."""
    ids: dict[str, int]
    runtime_left_out: tuple[str, ...]
    """Prefixes of names that NVIDIA's libcudart exports and ours does not."""
    error_strings: dict[int, str]
    majors: tuple[Major, ...]
    """Older major versions of libcudart that programs may want, too."""

    def wire_functions(self) -> list[Function]:
        """Everything with an id, in the order of ids."""
        every = [*self.functions.values(), *self.commands.values()]
        return sorted((f for f in every if f.frame_generated), key=lambda f: f.id or 0)

    def supported(self, name: str) -> bool:
        """Tell whether a driver function does more than refuse."""
        annotated = self.functions.get(name)
        if annotated:
            return annotated.error_class != ErrorClass.UNSUPPORTED
        return name in self.aliases or name in self.variants

    def driver_exports(self) -> list[str]:
        """Every name of NVIDIA's that our libcuda exports."""
        return sorted({*self.driver.functions, *(row.exported for row in self.driver_undeclared)})

    def unsupported_driver(self) -> list[ImportedFunction]:
        """Return the driver functions that only refuse."""
        return [f for n, f in self.driver.functions.items() if not self.supported(n)]

    def unsupported_runtime(self) -> list[ImportedFunction]:
        """Return the runtime functions that only refuse."""
        known = self.runtime_hand | self.runtime_variants.keys()
        return [f for n, f in self.runtime.functions.items() if n not in known]
