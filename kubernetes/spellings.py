# SPDX-License-Identifier: Apache-2.0
"""How other systems spell what pods ask of a GPU, in our words. Pure.

Used by webhook.py for the systems of `[kubernetes] spellings`, and for no others: the names may be
another device plugin's. Each name is read where that system's own documents have it; the table in
docs/kubernetes.md is held against this one by tests/kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.kubernetes.naming import VGPU, VGPU_COMPUTE, VGPU_MEMORY
from sluice.kubernetes.pod_requests import PodRequestError, limits_of, whole_number
from sluice.resources.vgpu_request import COMPUTE_PERCENT, COUNT, I32

MIB = 1 << 20


class Spelling(StrEnum):
    """The systems whose names are known."""

    NVIDIA = "nvidia"
    HAMI = "hami"
    BITFUSION = "bitfusion"
    ORIONX = "orionx"


@dataclass(frozen=True, slots=True)
class Word:
    """One resource of another system: which of ours it is, and how its numbers are to be read."""

    ours: str
    unit: int = 1  # how many of its are one of ours, where it is a size in bytes


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A system's resources, and its variables (ORION_GMEM), by name."""

    resources: Mapping[str, Word]
    variables: Mapping[str, Word]
    refused: Mapping[str, str]  # what has no meaning here, and what to write instead


_NVIDIA = {"nvidia.com/gpu": Word(VGPU)}
_FIXED = "a share of the memory of a card that is not known yet: give nvidia.com/gpumem in MiB"
VOCABULARIES: Mapping[Spelling, Vocabulary] = {
    Spelling.NVIDIA: Vocabulary({**_NVIDIA, "nvidia.com/gpu.shared": Word(VGPU)}, {}, {}),
    Spelling.HAMI: Vocabulary(
        {
            **_NVIDIA,
            "nvidia.com/gpumem": Word(VGPU_MEMORY),
            "nvidia.com/gpucores": Word(VGPU_COMPUTE),
        },
        {},
        {"nvidia.com/gpumem-percentage": _FIXED},
    ),
    Spelling.BITFUSION: Vocabulary(
        {
            "bitfusion.io/gpu-num": Word(VGPU),
            "bitfusion.io/gpu-amount": Word(VGPU),
            "bitfusion.io/gpu-percent": Word(VGPU_COMPUTE),
            "bitfusion.io/gpu-memory": Word(VGPU_MEMORY, MIB),
        },
        {},
        {},
    ),
    Spelling.ORIONX: Vocabulary(
        {"virtaitech.com/gpu": Word(VGPU)},
        {
            "ORION_VGPU": Word(VGPU),
            "ORION_GMEM": Word(VGPU_MEMORY),
            "ORION_RATIO": Word(VGPU_COMPUTE),
        },
        {},
    ),
}
_MOST = {VGPU: COUNT.high, VGPU_MEMORY: I32.high, VGPU_COMPUTE: COMPUTE_PERCENT.high}


@dataclass(frozen=True, slots=True)
class Translated:
    """A container's limits in our words; `taken`: the names of others that are not to stay."""

    limits: Mapping[str, int]
    taken: frozenset[str]


def translate(
    container: Mapping[str, Any], path: str, spellings: tuple[Spelling, ...]
) -> Translated | None:
    """What a container asks for in others' words; None: nothing. Raises PodRequestError.

    Our own names beside them count, and a resource that two of them name with different numbers is
    refused. A variable counts only beside a resource of its system.
    """
    limits = limits_of(container, path)
    found: dict[str, int] = {}
    taken: set[str] = set()
    for spelling in spellings:
        vocabulary = VOCABULARIES[spelling]
        named = [name for name in limits if name in vocabulary.resources]
        for name, instead in vocabulary.refused.items():
            if name in limits:
                raise PodRequestError(f"{path}.resources.limits[{name}] is not taken: {instead}")
        for name in named:
            field = f"{path}.resources.limits[{name}]"
            _add(found, vocabulary.resources[name], limits[name], field)
            taken.add(name)
        if named:
            for name, value in _variables(container, path):
                if name in vocabulary.variables and value is not None:
                    word = vocabulary.variables[name]
                    if word.ours not in found:  # the resource was said to Kubernetes
                        _add(found, word, value, f"{path}.env[{name}]")
    if not taken:
        return None
    found = {name: number for name, number in found.items() if number}
    if found and VGPU not in found and VGPU not in limits:
        found[VGPU] = 1
    return Translated(
        {name: n for name, n in found.items() if name not in limits}, frozenset(taken)
    )


def _add(found: dict[str, int], word: Word, value: Any, field: str) -> None:
    most = _MOST[word.ours]
    # a size in bytes is one where it is large or has a suffix: Bitfusion's plain numbers are MiB
    is_bytes = word.unit > 1 and not str(value).isdecimal()
    number = whole_number(value, field, least=0, most=most * (word.unit if is_bytes else 1))
    if is_bytes:
        number = -(-number // word.unit)
    if found.setdefault(word.ours, number) != number:
        raise PodRequestError(
            f"{field}={str(value)[:32]}: another name of {word.ours} says {found[word.ours]}; "
            "name it once"
        )


def _variables(container: Mapping[str, Any], path: str) -> list[tuple[str, Any]]:
    listed = container.get("env") or []
    if not isinstance(listed, list):
        raise PodRequestError(f"{path}.env is no list")
    found = []
    for each in listed:
        if not isinstance(each, Mapping):
            raise PodRequestError(f"{path}.env holds what is no object")
        found.append((str(each.get("name")), each.get("value")))
    return found
