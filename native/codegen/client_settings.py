# SPDX-License-Identifier: Apache-2.0
"""The client's settings, as client_settings.yaml says them: keys, variables, options, bounds.

Read by generate_wire.py (client/setting_table.h), by generate_protocol.py
(guest_runtime/client_settings.py) and by dev/configuration_reference.py, which writes the tables of
the pages. Format: docs/api-registry.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError, refuse_unknown
from protocol import load_protocol

FILE = "client_settings.yaml"
#: What a type needs besides itself, and what it may have.
TYPES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "text": (frozenset(), frozenset()),
    "flag": (frozenset({"default"}), frozenset()),
    "number": (frozenset({"from", "to"}), frozenset({"unit"})),
    "words": (frozenset({"choices", "default"}), frozenset()),
    "name": (frozenset({"name"}), frozenset()),
    "labels": (frozenset({"name", "most", "wanted"}), frozenset()),
    "job_token": (frozenset(), frozenset()),
}
OF_ALL = frozenset({"type", "about", "section", "variables", "option", "default"})
NAME = re.compile(r"[a-z][a-z0-9_]*")
VARIABLE = re.compile(r"(SLUICE|ORION)_[A-Z_]*[A-Z]")
MOST_VARIABLES = 2
BOUND = re.compile(r"(-?)([a-z_]+)")


@dataclass(frozen=True)
class NameRule:
    """A text of letters, digits and a few characters."""

    name: str
    characters: str
    most: int
    wanted: str

    @property
    def pattern(self) -> str:
        """A regular expression of it; a dash is the last of its characters."""
        dash = "-" if "-" in self.characters else ""
        return f"[A-Za-z0-9{self.characters.replace('-', '')}{dash}]{{1,{self.most}}}"


@dataclass(frozen=True)
class Setting:
    """One setting of a user."""

    name: str
    type: str
    about: str
    section: str
    """Of client.conf; empty: it has variables only."""
    variables: tuple[str, ...]
    """In the order in which they are looked for."""
    option: str
    """Of `sluice run`, or empty."""
    default: str
    """Empty: none."""
    unit: str = ""
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()
    rule: NameRule | None = None
    """Of a name, and of the names and values of labels."""
    wanted: str = ""

    @property
    def key(self) -> str:
        """Section and key as one word; empty where it has variables only."""
        return f"{self.section}.{self.name}" if self.section else ""


@dataclass(frozen=True)
class ClientSettings:
    """client_settings.yaml."""

    true_words: tuple[str, ...]
    false_words: tuple[str, ...]
    names: tuple[NameRule, ...]
    settings: tuple[Setting, ...]


def load_client_settings(api: Path) -> ClientSettings:
    """Read `api`/client_settings.yaml; raises RegistryError with the place and the fix."""
    said = yaml.safe_load((api / FILE).read_text())
    limits = {limit.name: limit.value for limit in load_protocol(api).limits}
    names = {}
    for name, entry in said["names"].items():
        where = f"{FILE}: names: {name}"
        _keys(where, name, entry, frozenset({"characters", "most", "wanted"}), frozenset())
        most = _number(f"{where}: most", entry["most"], limits)
        names[name] = NameRule(name, entry["characters"], most, entry["wanted"])
    flag = said["flag"]
    words = (tuple(flag["true"]), tuple(flag["false"]))
    settings = tuple(
        _setting(name, entry, names, limits, (*words[0], *words[1]))
        for name, entry in said["settings"].items()
    )
    for what in ("variables", "option"):
        given = [v for s in settings for v in _listed(getattr(s, what))]
        if len(set(given)) != len(given):
            twice = sorted({v for v in given if given.count(v) > 1})
            raise RegistryError(f"{FILE}: {twice[0]} is given to two settings")
    return ClientSettings(*words, tuple(names.values()), settings)


def _listed(value: tuple[str, ...] | str) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ((value,) if value else ())


def _setting(
    name: str,
    entry: dict[str, Any],
    names: dict[str, NameRule],
    limits: dict[str, int],
    flags: tuple[str, ...],
) -> Setting:
    where = f"{FILE}: settings: {name}"
    kind = entry.get("type")
    if kind not in TYPES:
        raise RegistryError(f"{where}: type {kind!r} is none of {sorted(TYPES)}")
    needed, allowed = TYPES[kind]
    _keys(where, name, entry, needed | {"type", "about"}, allowed | OF_ALL)
    variables = tuple(entry.get("variables", ()))
    if len(variables) > MOST_VARIABLES or not all(VARIABLE.fullmatch(v) for v in variables):
        raise RegistryError(
            f"{where}: variables {list(variables)} are not at most {MOST_VARIABLES} of the form "
            "SLUICE_… or ORION_…"
        )
    section = entry.get("section", "")
    if not section and not variables:
        raise RegistryError(f"{where}: neither section nor variables: nobody could set it")
    default = str(entry.get("default", ""))
    choices = tuple(entry.get("choices", ()))
    least, most = 0, 0
    if kind == "number":
        least = _number(f"{where}: from", entry["from"], limits)
        most = _number(f"{where}: to", entry["to"], limits)
        if least > most:
            raise RegistryError(f"{where}: nothing is from {least} to {most}")
        if default and not least <= int(default) <= most:
            raise RegistryError(f"{where}: the default {default} is not from {least} to {most}")
    good = {"flag": flags, "words": choices}.get(kind)
    if good is not None and default not in good:
        raise RegistryError(f"{where}: the default {default!r} is none of {list(good)}")
    rule = None
    if "name" in needed:
        if entry["name"] not in names:
            raise RegistryError(f"{where}: name {entry['name']!r} is none of {sorted(names)}")
        rule = names[entry["name"]]
        if default:
            raise RegistryError(f"{where}: a {kind} has no default")
    if kind == "labels":
        most = _number(f"{where}: most", entry["most"], limits)
    return Setting(
        name=name,
        type=kind,
        about=entry["about"],
        section=section,
        variables=variables,
        option=entry.get("option", ""),
        default=default,
        unit=entry.get("unit", ""),
        least=least,
        most=most,
        choices=choices,
        rule=rule,
        wanted=entry.get("wanted", rule.wanted if rule else ""),
    )


def _number(where: str, said: Any, limits: dict[str, int]) -> int:
    """A number, or a limit's name, perhaps behind a minus sign."""
    if isinstance(said, int):
        return said
    parts = BOUND.fullmatch(str(said))
    if not parts or parts[2] not in limits:
        raise RegistryError(f"{where}: {said!r} is neither a number nor a limit of protocol.yaml")
    return -limits[parts[2]] if parts[1] else limits[parts[2]]


def _keys(
    where: str, name: Any, entry: Any, needed: frozenset[str], allowed: frozenset[str]
) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RegistryError(f"{where}: a name has small letters, digits and underscores")
    missing = sorted(needed - set(entry))
    if missing:
        raise RegistryError(f"{where}: {missing[0]} is missing")
    refuse_unknown(where, entry, needed | allowed)
