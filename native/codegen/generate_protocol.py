# SPDX-License-Identifier: Apache-2.0
"""Generate the Python package sluice.protocol and the client's settings from native/api.

Called by dev/python_layout.py for a checkout, by native/codegen/CMakeLists.txt for a wheel, and by
hand:

    python native/codegen/generate_protocol.py python

It owns OUT/sluice/protocol: `frames` (protocol.yaml, and commands.yaml's numbers),
`control` (control.yaml) and `cuda_status` (CUDA's error codes, as imported); and one module of
OUT/sluice/guest_runtime, which runs alone in guests: `client_settings` (client_settings.yaml).
Files are written only when their text changes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from client_settings import load_client_settings
from commands import load_own_commands
from control import load_control
from generate_abi import Writer
from imported import RegistryError, load_library
from model import API
from protocol import Field, Struct, load_protocol
from wire_layout import camel_case

ERROR = "CUDA_ERROR_"


def sentence(text: str) -> str:
    """A docstring of a few words, with the period that the text may lack."""
    return text.rstrip(".") + "."


def python_type(field: Field) -> str:
    """The annotation of a dataclass's field."""
    if field.struct:
        return camel_case(field.type)
    if field.text:
        return "bytes"
    return "tuple[int, ...]" if field.count else "int"


def python_default(field: Field) -> str:
    """Zeros."""
    if field.struct:
        return f"{camel_case(field.type)}()"
    if field.text:
        return 'b""'
    return f"({', '.join('0' * field.count)},)" if field.count else "0"


def places(layout: Struct) -> list[tuple[Field, int]]:
    """The fields, each with the index of its first value."""
    found, at = [], 0
    for field in layout.fields:
        found.append((field, at))
        at += field.values
    return found


def cuda_statuses(api: Path) -> list[tuple[str, int]]:
    """The names of CUresult without their prefix, and their numbers."""
    results = load_library(api / "imported" / "cuda13", "driver").enum("CUresult")
    return [(name.removeprefix(ERROR).removeprefix("CUDA_"), value) for name, value in results]


def generate_client_settings(out: Path, api: Path = API) -> None:
    """Write out/sluice/guest_runtime/client_settings.py; raises RegistryError."""
    Writer(out / "sluice" / "guest_runtime").render(
        "protocol_client_settings.py.j2", "client_settings.py", said=load_client_settings(api)
    )


def generate(out: Path, api: Path = API) -> None:
    """Write out/sluice/protocol and the client's settings; raises RegistryError."""
    generate_client_settings(out, api)
    writer = Writer(out / "sluice" / "protocol")
    writer.environment.filters |= {
        "camel": camel_case,
        "constant": lambda name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper(),
        "sentence": sentence,
        "python_type": python_type,
        "python_default": python_default,
        "places": places,
    }
    said = load_protocol(api)
    writer.render(
        "protocol_frames.py.j2",
        "frames.py",
        limits=said.limits,
        enumerations=said.enumerations,
        structs=said.structs,
        commands=load_own_commands(api).commands,
    )
    writer.render("protocol_control.py.j2", "control.py", links=load_control(api))
    writer.render("protocol_cuda_status.py.j2", "cuda_status.py", statuses=cuda_statuses(api))
    writer.render("protocol_package.py.j2", "__init__.py")
    writer.render("protocol_package.py.j2", "py.typed")


if __name__ == "__main__":
    try:
        generate(Path(sys.argv[1]).resolve())
    except RegistryError as error:
        sys.exit(f"generate_protocol: {error}")
