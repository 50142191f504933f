# SPDX-License-Identifier: Apache-2.0
"""Leaves machine code for other GPUs out of libraries that travel to one kind of card.

Wheels carry each kernel for ten architectures and more. `thin` looks for fat binaries in a file,
wherever they stand (NVIDIA's libraries have them in several sections), and writes zeros over the
payload of each part that a GPU of one architecture never takes. Headers stay, and so does every
offset: the loader, the runtime and the driver read the file as before, and whatever packs it takes
the zeros to nothing. Such a library serves the one architecture, and results that were made with it
say so (`NOTE`). Called by packages.py; the format is described in native/image_format.h.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: As results have it, under the name `machine code`.
NOTE = "for sm_{} alone; that for other architectures was left out"

CONTAINER = struct.Struct("<IHHQ")
PART = struct.Struct("<HHIQIIHHI")
MAGIC = struct.pack("<I", 0xBA55ED50)
LEAST_PART = 64
ALIGNED = 8
PTX, MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class Part:
    """Code for one architecture in a container."""

    kind: int  #: PTX, MACHINE_CODE; others are intermediate code for linkers
    architecture: int  #: 90 for sm_90 and sm_90a
    start: int  #: of its payload, in the file
    size: int  #: of its payload, in bytes


@dataclass
class Thinned:
    """What became of a file's code, in bytes."""

    kept: int = 0
    emptied: int = 0


def containers(data: mmap.mmap | bytes) -> Iterator[list[Part]]:
    """The parts of each fat binary; what only looks like one has parts that do not fit in it."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        parts = parts_of(data, at) if at % ALIGNED == 0 else None
        if parts is None:
            at += len(MAGIC)
            continue
        yield parts
        _, _, header, body = CONTAINER.unpack_from(data, at)
        at += header + body


def parts_of(data: mmap.mmap | bytes, at: int) -> list[Part] | None:
    """The parts of the container at an offset; None where they do not fill it exactly."""
    if at + CONTAINER.size > len(data):
        return None
    _, _, header, body = CONTAINER.unpack_from(data, at)
    end = at + header + body
    if header < CONTAINER.size or end > len(data):
        return None
    parts = []
    at += header
    while at < end:
        if at + LEAST_PART > end:
            return None
        kind, _, header, size, _, _, _, _, architecture = PART.unpack_from(data, at)
        if header < LEAST_PART or at + header + size > end:
            return None
        parts.append(Part(kind, architecture, at + header, size))
        at += header + size
    return parts


def taken(parts: list[Part], architecture: int) -> list[Part]:
    """What a GPU of that architecture takes: its machine code, or else the newest PTX for it."""
    found = [p for p in parts if p.kind == MACHINE_CODE and p.architecture == architecture]
    if found:
        return found
    compiled = [p for p in parts if p.kind == PTX and p.architecture <= architecture]
    newest = max((p.architecture for p in compiled), default=0)
    return [p for p in compiled if p.architecture == newest]


def thin(path: Path, architecture: int | None) -> Thinned:
    """Empties what such a GPU never takes of a file, in place; None: all that it has."""
    found = Thinned()
    if path.stat().st_size < CONTAINER.size:
        return found
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for parts in containers(data):
            kept = [] if architecture is None else taken(parts, architecture)
            for part in parts:
                if part in kept:
                    found.kept += part.size
                    continue
                data[part.start : part.start + part.size] = bytes(part.size)
                found.emptied += part.size
    return found
