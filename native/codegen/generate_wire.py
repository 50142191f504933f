# SPDX-License-Identifier: Apache-2.0
"""Generate what carries the registry's functions: wire structs, both ends, and their tests.

Runs in every build (native/codegen/CMakeLists.txt) and by hand:

    python native/codegen/generate_wire.py --out build/generated

Only functions with a frame of their own (model.Function.frame_generated) appear; which of their
two ends are generated is the annotation's. Templates: templates/native/wire_*.j2.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import c_text
from bodies import load_bodies
from client_settings import load_client_settings
from commands import Command, check_bodies, load_own_commands, load_signed_commands
from control import load_control
from generate_abi import Writer
from imported import RegistryError
from kinds import Kind, Param
from libraries import read_ids
from model import API, Cache, ErrorClass, Function, Registry
from protocol import CTYPES, load_protocol
from registry import load_ids, load_registry
from wire_layout import HANDLE_TABLES, Layout, WireFunction, camel_case


@dataclass(frozen=True)
class Argument:
    """One parameter as the templates see it."""

    name: str
    kind: str
    element: str
    enum: str
    """`enum CUlimit_enum` for enumerations by value, else empty."""
    handle: str
    table: str
    nullable: bool
    reach: int


@dataclass(frozen=True)
class Entry:
    """One function as the templates see it."""

    name: str
    prototype: str
    pointer: str
    request: str
    reply: str
    arguments: list[Argument]
    require: tuple[str, ...]
    answered: bool
    may_block: bool
    cache: str
    context: str
    """The device whose context the command runs in, on the client; empty: the CUdevice's own."""
    work: str
    """The stream that the command gives work to, or nullptr."""
    client: bool
    worker: bool

    def of(self, *kinds: str) -> list[Argument]:
        """Return the arguments of these kinds."""
        return [a for a in self.arguments if a.kind in kinds]

    @property
    def pointers(self) -> list[Argument]:
        """Arguments that the application must not leave out."""
        return [a for a in self.of("out", "in", "in_out") if not a.nullable]

    @property
    def worker_context(self) -> bool:
        """Neither a stream nor a device of its own says which context the worker makes current."""
        return not self.of("device") and not any(a.table == "streams" for a in self.arguments)


def make_argument(param: Param, function: Function, layout: Layout) -> Argument:
    """Prepare one parameter."""
    by_value = param.kind == Kind.SCALAR
    return Argument(
        name=param.name,
        kind=param.kind.value,
        element=param.element,
        enum=(layout.enum(param.element) or "") if by_value else "",
        handle=param.handle or "",
        table=HANDLE_TABLES.get(param.handle or "", ""),
        nullable=param.nullable,
        reach=function.annotation.reach.get(param.name, 0),
    )


def context_of(arguments: list[Argument]) -> str:
    """Say whose context a call belongs to: its stream's, its code's, else the thread's."""
    for argument in arguments:
        if argument.kind == "device":
            return ""
        if argument.table in ("streams", "events"):
            return f"{argument.name}_found->device"
        if argument.table in ("modules", "functions"):
            return f"{argument.name}_found->device ? {argument.name}_found->device : d"
    return "d"


def make_entry(wire: WireFunction, registry: Registry, layout: Layout) -> Entry:
    """Prepare one function."""
    function = wire.function
    arguments = [make_argument(p, function, layout) for p in function.params]
    streams = [a for a in arguments if a.table == "streams"]
    imported = registry.driver.functions.get(function.name)
    prototype = c_text.prototype(imported) if imported else ""
    if function.annotation.cache == Cache.OBJECT and not function.of_kind(Kind.HANDLE):
        raise RegistryError(f"driver.yaml: {function.name}: cache: object needs a handle parameter")
    return Entry(
        name=function.name,
        prototype=prototype,
        pointer=", ".join(p.ctype for p in function.params),
        request=wire.request.name,
        reply=wire.reply.name if wire.reply else "",
        arguments=arguments,
        require=function.annotation.require,
        answered=function.error_class == ErrorClass.ANSWERED,
        may_block=function.annotation.may_block,
        cache=function.annotation.cache.value,
        context=context_of(arguments),
        work=f"{streams[0].name}_found" if len(streams) == 1 else "nullptr",
        client=function.client_generated,
        worker=function.worker_generated,
    )


def function_rules(registry: Registry, signed: dict[str, Command]) -> list[Command]:
    """What the driver's functions that have a frame of their own are to the session."""
    return [
        Command(
            name=f.name,
            id=f.id or 0,
            class_=f.error_class.value,
            may_block=f.annotation.may_block,
            allocates="device" if f.annotation.allocates else "",
            creates=(),
            changes=(),
            destroys=(),
            body="",
        )
        for f in registry.wire_functions()
        if f.name not in signed
    ]


def known_enums(entries: list[Entry], layout: Layout) -> dict[str, list[int]]:
    """Values of every enumeration that crosses by value."""
    used = sorted({a.enum for e in entries for a in e.arguments if a.enum})
    return {
        name: sorted({value & 0xFFFFFFFF for _, value in layout.enums[name].values})
        for name in used
    }


def generate(out: Path, api: Path) -> None:
    """Write everything under `out`."""
    registry, own, bodies = load_registry(api), load_own_commands(api), load_bodies(api)
    check_bodies(own, bodies)
    ids = load_ids(api / "ids.lock") | read_ids(api / "library_ids.lock")
    signed = load_signed_commands(api, own.state, ids)
    writer = Writer(out)
    writer.environment.filters["camel"] = camel_case
    writer.render(
        "wire_commands.h.j2",
        "wire/command_registry.h",
        commands=own.commands,
        rules=[*own.commands, *signed.values(), *function_rules(registry, signed)],
        objects=own.objects,
        state=own.state,
    )
    shared = load_protocol(api)
    writer.environment.filters["ctype"] = lambda name: CTYPES.get(name, camel_case(name))
    writer.environment.filters["lines"] = lambda text: "\n// ".join(textwrap.wrap(text, 116))
    writer.render(
        "wire_protocol.h.j2",
        "wire/protocol.h",
        limits=shared.limits,
        enumerations=shared.enumerations,
        structs=shared.structs,
    )
    for file in bodies.files:
        writer.render("wire_bodies.h.j2", f"wire/bodies/{file.name}.h", file=file)
    writer.render("wire_control.h.j2", "wire/control_messages.h", links=load_control(api))
    writer.render(
        "client_setting_table.h.j2", "client/setting_table.h", said=load_client_settings(api)
    )
    layout = Layout(registry.driver)
    wires = [layout.lay_out(f) for f in registry.wire_functions()]
    entries = [make_entry(w, registry, layout) for w in wires]
    values: dict[str, Any] = {"entries": entries, "enums": known_enums(entries, layout)}
    structs = [s for w in wires for s in (w.request, w.reply) if s]
    writer.render(
        "wire_structs.h.j2",
        "wire/generated.h",
        wires=wires,
        structs=structs,
        enums=values["enums"],
    )
    writer.render("wire_client.inc.j2", "client/driver_stubs.inc", **values)
    writer.render("wire_worker.inc.j2", "worker/generated_handlers.inc", **values)
    writer.render("wire_frames.inc.j2", "tests/generated_frames.inc", **values)
    writer.render("wire_roundtrip.inc.j2", "tests/generated_roundtrip.inc", **values)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Generate wire structs, stubs and handlers.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the generated files")
    parser.add_argument("--api", type=Path, default=API, help="folder of the registry")
    options = parser.parse_args(arguments)
    try:
        generate(options.out, options.api)
    except RegistryError as error:
        print(f"generate_wire: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
