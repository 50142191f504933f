# SPDX-License-Identifier: Apache-2.0
"""An older major version of the CUDA runtime in memory: what it has of its own.

Made by majors.load_majors(), read by generate_majors.py and the coverage table.
"""

from __future__ import annotations

from dataclasses import dataclass

from imported import ImportedFunction, ImportedLibrary, TypeDeclaration
from layouts import Piece
from variants import PerThreadVariant


@dataclass(frozen=True)
class Argument:
    """What an adapter passes for one parameter of the newer function."""

    text: str
    """A parameter's name, or a C expression."""
    converts: str = ""
    """The structure that the parameter points to, when its layout differs."""
    reads: bool = False
    """It is converted before the call; otherwise after it."""


@dataclass(frozen=True)
class Adapter:
    """A function of the older major that calls one of the newer."""

    function: ImportedFunction
    target: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Conversion:
    """A structure with another layout."""

    declaration: TypeDeclaration
    pieces: tuple[Piece, ...]
    """What both have; empty when the newer version has no such structure."""
    both: bool


@dataclass(frozen=True)
class Major:
    """One older major version of libcudart."""

    number: int
    version: int
    """CUDART_VERSION of the imported headers, 12090."""
    library: ImportedLibrary
    conversions: tuple[Conversion, ...]
    adapters: tuple[Adapter, ...]
    hand: tuple[ImportedFunction, ...]
    variants: tuple[PerThreadVariant, ...]
    unsupported: tuple[ImportedFunction, ...]
    undeclared: tuple[str, ...]
    renamed: tuple[str, ...]
    """Names of the newer runtime that mean something else here: its own part of libcudart.so.N
    calls them by another name."""

    @property
    def soname(self) -> str:
        """libcudart.so.12."""
        return f"libcudart.so.{self.number}"

    @property
    def own(self) -> tuple[ImportedFunction, ...]:
        """Everything that is not shared."""
        own = [a.function for a in self.adapters] + list(self.hand)
        own += [v.function for v in self.variants] + list(self.unsupported)
        return tuple(sorted(own, key=lambda f: f.name))
