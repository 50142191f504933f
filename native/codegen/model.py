# SPDX-License-Identifier: Apache-2.0
"""The API registry in memory: imported signatures joined with the annotations of native/api.

Generators call load_registry() and get Functions whose parameters have a resolved kind; anything
wrong or ambiguous in native/api is a RegistryError that names file, function, parameter and fix.
The format is described in docs/api-registry.md. Nothing here writes files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from commands import EFFECTS
from imported import ImportedFunction, ImportedLibrary, ImportedParam, RegistryError, load_library
from kinds import Kind, Param, TypeTable, resolve_params
from variants import PerThreadVariant, per_thread_variants

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "native" / "api"
CUDA_VERSION_FOLDER = "cuda13"

FIRST_ID = 64
"""Ids below are control frames (native/wire/frame.h)."""
LAST_ID = 0xFFFF
"""The frame header has 16 bits for the function."""


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
    """May take GPU memory on the node: the worker reads the driver's books afterwards."""
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
    ids: dict[str, int]
    runtime_left_out: tuple[str, ...]
    """Prefixes of names that NVIDIA's libcudart exports and ours does not."""
    error_strings: dict[int, str]

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

    def unsupported_driver(self) -> list[ImportedFunction]:
        """Return the driver functions that only refuse."""
        return [f for n, f in self.driver.functions.items() if not self.supported(n)]

    def unsupported_runtime(self) -> list[ImportedFunction]:
        """Return the runtime functions that only refuse."""
        known = self.runtime_hand | self.runtime_variants.keys()
        return [f for n, f in self.runtime.functions.items() if n not in known]


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one file of annotations."""
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except FileNotFoundError as error:
        raise RegistryError(f"{path.name}: missing from {path.parent}") from error
    except yaml.YAMLError as error:
        raise RegistryError(f"{path.name}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise RegistryError(f"{path.name}: the top level must be a mapping")
    return data


def choice(enum: type[StrEnum], value: Any, where: str, key: str) -> Any:
    """Return the member of `enum` with that value, or say which there are."""
    try:
        return enum(value)
    except ValueError as error:
        allowed = ", ".join(sorted(e.value for e in enum))
        raise RegistryError(f"{where}: {key} is {value!r}; use one of {allowed}") from error


BOOLEAN_KEYS = ("may_block", "allocates")
ENUM_KEYS: dict[str, type[StrEnum]] = {"hand": Hand, "state": State, "cache": Cache}


def read_annotation(entry: Any, where: str) -> Annotation:
    """Read one entry; a bare word is its class."""
    if isinstance(entry, str):
        entry = {"class": entry}
    if not isinstance(entry, dict) or "class" not in entry:
        raise RegistryError(f"{where}: needs a class; write e.g. {{class: answered}}")
    known = {"class", "note", "answers", "params", "reach", "require", "signature"}
    known |= {*BOOLEAN_KEYS, *ENUM_KEYS}
    for key in entry:
        if key not in known:
            raise RegistryError(
                f"{where}: key {key!r} is unknown; use one of {', '.join(sorted(known))}"
            )
    values: dict[str, Any] = {"error_class": choice(ErrorClass, entry["class"], where, "class")}
    for key in BOOLEAN_KEYS:
        if not isinstance(entry.get(key, False), bool):
            raise RegistryError(f"{where}: {key} is {entry[key]!r}; use true or false")
        values[key] = entry.get(key, False)
    for key, enum in ENUM_KEYS.items():
        values[key] = choice(enum, entry.get(key, "none"), where, key)
    params = entry.get("params", {})
    if not isinstance(params, dict):
        raise RegistryError(f"{where}: params must map parameter names to kinds")
    reach = entry.get("reach", {})
    if not isinstance(reach, dict) or not all(isinstance(n, int) and n > 0 for n in reach.values()):
        raise RegistryError(f"{where}: reach must map device addresses to numbers of bytes")
    values["reach"] = reach
    require = entry.get("require", [])
    values["require"] = tuple([require] if isinstance(require, str) else require)
    for key in ("note", "answers"):
        values[key] = str(entry.get(key, ""))
    annotation = Annotation(**values, params=params)
    check_annotation(annotation, where)
    return annotation


def check_annotation(annotation: Annotation, where: str) -> None:
    """Refuse entries that contradict themselves."""
    error_class = annotation.error_class
    if error_class == ErrorClass.LOCAL and annotation.hand not in (Hand.CLIENT, Hand.ALL):
        raise RegistryError(
            f"{where}: class local is decided by the client's own code; add hand: client"
        )
    if error_class == ErrorClass.UNSUPPORTED and not annotation.note:
        raise RegistryError(f"{where}: class unsupported needs a note that says why")
    refused = error_class == ErrorClass.REFUSED
    if refused and not (annotation.note and annotation.answers.startswith("CUDA_ERROR_")):
        raise RegistryError(
            f"{where}: class refused needs answers, a CUresult's name, and a note that says "
            "which device attribute agrees"
        )
    if annotation.answers and not refused:
        raise RegistryError(f"{where}: answers is for class refused; drop it")
    if annotation.cache != Cache.NONE and error_class != ErrorClass.ANSWERED:
        raise RegistryError(f"{where}: cache needs class answered, the class is {error_class}")
    if error_class == ErrorClass.EITHER and annotation.hand != Hand.WORKER:
        raise RegistryError(f"{where}: class either is for commands of our own, with hand: worker")
    if annotation.may_block and error_class == ErrorClass.ASYNC:
        raise RegistryError(f"{where}: an async command has nobody who waits; drop may_block")


def check_function(function: Function, where: str) -> None:
    """Refuse entries that contradict the function's parameters."""
    if not function.frame_generated:
        return
    addresses = {p.name for p in function.of_kind(Kind.DEVICE_ADDRESS)}
    for name in function.annotation.reach.keys() - addresses:
        raise RegistryError(f"{where}: reach: {name} is no parameter of kind device_address")
    outputs = function.of_kind(
        Kind.OUT, Kind.OUT_HANDLE, Kind.IN_OUT, Kind.OUT_ARRAY, Kind.OUT_BYTES, Kind.OUT_STRING
    )
    if function.error_class != ErrorClass.ANSWERED and outputs:
        raise RegistryError(
            f"{where}: parameter {outputs[0].name}: an {function.error_class} function cannot "
            f"return a value (kind {outputs[0].kind}); use class answered, or mint for a handle"
        )
    state = function.annotation.state
    if state == State.DESTROYS and not function.of_kind(Kind.HANDLE):
        raise RegistryError(f"{where}: state destroys needs a handle parameter")
    if state == State.CREATES and not function.of_kind(Kind.MINT, Kind.OUT_HANDLE):
        raise RegistryError(f"{where}: state creates needs a parameter of kind mint")


def load_functions(
    section: dict[str, Any],
    library: ImportedLibrary,
    types: TypeTable,
    ids: dict[str, int],
    file: str,
) -> dict[str, Function]:
    """Load the section `functions`."""
    functions: dict[str, Function] = {}
    for name, entry in section.items():
        where = f"{file}: {name}"
        imported = library.functions.get(name)
        if imported is None:
            raise RegistryError(
                f"{where}: no header declares it; the key must be the exported name "
                f"(with its _v2), see native/api/imported/{CUDA_VERSION_FOLDER}"
            )
        function = build(
            name, "driver", imported.returns, imported.params, entry, types, ids, where
        )
        if imported.stream and function.frame_generated:
            plain = imported.name.rsplit("_", 1)[0]
            raise RegistryError(f"{where}: annotate {plain}; this variant follows from it")
        functions[name] = function
    return functions


def load_commands(
    section: dict[str, Any], types: TypeTable, ids: dict[str, int], file: str
) -> dict[str, Function]:
    """Load the section `commands`."""
    commands: dict[str, Function] = {}
    for name, entry in section.items():
        where = f"{file}: commands: {name}"
        if not name.startswith("sluice"):
            raise RegistryError(f"{where}: a command of our own must begin with 'sluice'")
        signature = entry.get("signature") if isinstance(entry, dict) else None
        if not isinstance(signature, dict):
            raise RegistryError(
                f"{where}: needs a signature, e.g. {{address: CUdeviceptr, bytes: size_t}}"
            )
        params = tuple(
            ImportedParam(p, str(t), types.canonical(str(t))) for p, t in signature.items()
        )
        rules = {key: value for key, value in entry.items() if key not in EFFECTS}
        commands[name] = build(name, "sluice", "CUresult", params, rules, types, ids, where)
    return commands


def build(
    name: str,
    library: str,
    returns: str,
    imported: tuple[ImportedParam, ...],
    entry: Any,
    types: TypeTable,
    ids: dict[str, int],
    where: str,
) -> Function:
    """Join a signature with its entry."""
    annotation = read_annotation(entry, where)
    generated = annotation.error_class in ON_WIRE and annotation.hand != Hand.ALL
    creates = annotation.state == State.CREATES
    params = resolve_params(imported, annotation.params, types, creates, generated, where)
    function = Function(name, library, returns, params, annotation, ids.get(name))
    check_function(function, where)
    return function


def load_aliases(section: dict[str, Any], library: ImportedLibrary, file: str) -> dict[str, str]:
    """Load the section `aliases`; parameters must be the same."""
    for old, target in section.items():
        where = f"{file}: aliases: {old}"
        for name in (old, target):
            if name not in library.functions:
                raise RegistryError(f"{where}: no header declares {name}")
        a, b = library.functions[old], library.functions[target]
        if [p.canonical for p in a.params] != [p.canonical for p in b.params]:
            raise RegistryError(
                f"{where}: its parameters differ from those of {target}; it is no alias"
            )
    return dict(section)


def load_ids(path: Path) -> dict[str, int]:
    """`64 cuStreamCreate` a line: consecutive, unique, appended to and never edited."""
    ids: dict[str, int] = {}
    expected = FIRST_ID
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path.name}:{number}"
        parts = line.split()
        if len(parts) not in (2, 3) or not parts[0].isdigit() or parts[2:] not in ([], ["retired"]):
            raise RegistryError(f"{where}: {line!r} is not 'ID NAME' or 'ID NAME retired'")
        if int(parts[0]) != expected:
            raise RegistryError(
                f"{where}: id {parts[0]} where {expected} must stand; ids are never changed, "
                "reused or removed (mark a line 'retired'); restore the file and run --update-ids"
            )
        if parts[1] in ids:
            raise RegistryError(f"{where}: {parts[1]} has an id already")
        ids[parts[1]] = expected
        expected += 1
    if expected > LAST_ID:
        raise RegistryError(f"{path.name}: more ids than the frame header's 16 bits hold")
    return ids


def missing_ids(registry: Registry) -> list[str]:
    """Return functions that need an id and have none."""
    return [f.name for f in registry.wire_functions() if f.id is None]


def load_runtime(
    api: Path, runtime: ImportedLibrary
) -> tuple[frozenset[str], dict[str, PerThreadVariant], dict[str, str]]:
    """Load runtime.yaml: functions by hand, their variants, undeclared names."""
    data = read_yaml(api / "runtime.yaml")
    hand = data.get("hand") or []
    if len(set(hand)) != len(hand):
        twice = sorted({n for n in hand if hand.count(n) > 1})
        raise RegistryError(f"runtime.yaml: hand: listed twice: {', '.join(twice)}")
    undeclared: dict[str, str] = data.get("undeclared") or {}
    for name in hand:
        if name not in runtime.functions and name not in undeclared:
            raise RegistryError(f"runtime.yaml: hand: {name}: libcudart exports no such function")
    for name in undeclared:
        if name in runtime.functions:
            raise RegistryError(
                f"runtime.yaml: undeclared: {name}: the headers declare it; drop the line"
            )
    supported = frozenset(hand)
    return supported, per_thread_variants(runtime, supported, "cudaStreamPerThread"), undeclared


def load_error_strings(path: Path, library: ImportedLibrary) -> dict[int, str]:
    """Return error texts by value."""
    names = dict(library.enum("cudaError"))
    strings: dict[int, str] = {}
    for name, text in (read_yaml(path).get("strings") or {}).items():
        if name not in names:
            raise RegistryError(f"{path.name}: {name} is no enumerator of cudaError")
        strings[names[name]] = str(text)
    return strings


def load_registry(api: Path = API) -> Registry:
    """Load and check everything under native/api."""
    folder = api / "imported" / CUDA_VERSION_FOLDER
    driver, runtime = load_library(folder, "driver"), load_library(folder, "runtime")
    types = TypeTable(driver)
    data = read_yaml(api / "driver.yaml")
    for key in data:
        if key not in ("functions", "aliases", "commands"):
            raise RegistryError(
                f"driver.yaml: section {key!r} is unknown; use functions, aliases or commands"
            )
    ids = load_ids(api / "ids.lock")
    functions = load_functions(data.get("functions") or {}, driver, types, ids, "driver.yaml")
    commands = load_commands(data.get("commands") or {}, types, ids, "driver.yaml")
    aliases = load_aliases(data.get("aliases") or {}, driver, "driver.yaml")
    supported = {n for n, f in functions.items() if f.error_class != ErrorClass.UNSUPPORTED}
    for old, target in aliases.items():
        if old in functions or target not in supported:
            raise RegistryError(
                f"driver.yaml: aliases: {old}: {target} must be supported and {old} not annotated"
            )
    hand, runtime_variants, undeclared = load_runtime(api, runtime)
    return Registry(
        driver=driver,
        runtime=runtime,
        functions=functions,
        commands=commands,
        aliases=aliases,
        variants=per_thread_variants(
            driver, frozenset(supported | aliases.keys()), "CU_STREAM_PER_THREAD"
        ),
        runtime_hand=hand,
        runtime_variants=runtime_variants,
        runtime_undeclared=undeclared,
        runtime_left_out=tuple(read_yaml(api / "runtime.yaml").get("left_out") or []),
        ids=ids,
        error_strings=load_error_strings(api / "error_strings.yaml", runtime),
    )
