# SPDX-License-Identifier: Apache-2.0
"""Reads Sluice's INI files into checked models.

Called by the services' main functions. Comments and quotes are those of every INI file of Sluice:
guest_runtime/ini_lines.py has the rule. It promises that whatever is wrong ends in one ConfigError
whose lines each name the file, the section, the key, the value that was found, and what would be
right.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import annotated_types
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sluice.guest_runtime.ini_lines import read_lines


class ConfigError(ValueError):
    """A configuration file cannot be used; the message is meant for the operator."""


class Section(BaseModel):
    """One [section] of a file; its fields are the section's keys.

    A field's description completes "give …" in errors and is the key's line in
    docs/configuration.md; `{bounds}` in it stands for the field's own, as "1 to 64".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Called once for each section."""
        super().__pydantic_init_subclass__(**kwargs)
        for field in cls.model_fields.values():
            if field.description and "{bounds}" in field.description:
                field.description = field.description.replace("{bounds}", bounds_of(field))


def bounds_of(field: FieldInfo) -> str:
    """What a number may be, in words; "" where it has no bounds."""
    least = most = ""
    to = ", at most "
    for rule in field.metadata:
        if isinstance(rule, annotated_types.Ge):
            least, to = f"{rule.ge:.15g}", " to "
        elif isinstance(rule, annotated_types.Gt):
            least = f"more than {rule.gt:.15g}"
        elif isinstance(rule, annotated_types.Le):
            most = f"{rule.le:.15g}"
    if least and not most:
        return f"at least {least}" if to == " to " else least
    return f"{least}{to}{most}" if least else ""


Model = TypeVar("Model", bound=BaseModel)
SectionModel = TypeVar("SectionModel", bound=Section)


def read_config(path: Path | None, model: type[Model]) -> Model:
    """Returns the model filled from the file; None or a missing section means the defaults.

    The model's fields are sections, named as in the file with `-` written `_`.
    """
    sections = {} if path is None else _parse(path)
    by_field = {name.replace("-", "_"): keys for name, keys in sections.items()}
    try:
        return model.model_validate(by_field)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(path, model, error, by_field))) from None


def read_named_sections(path: Path, model: type[SectionModel]) -> dict[str, SectionModel]:
    """Returns a file's sections, whatever they are called, each as the same model, in order."""
    found, lines = {}, []
    for name, keys in _parse(path).items():
        try:
            found[name] = model.model_validate(keys)
        except ValidationError as error:
            lines += [
                _explain_key(str(path), name, model, problem, keys)
                if problem["loc"]
                else f"{path}: [{name}]: {_plain(problem['msg'])}"
                for problem in error.errors()
            ]
    if lines:
        raise ConfigError("\n".join(lines))
    return found


def _parse(path: Path) -> dict[str, dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); create it or name another with --config"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None
    sections: dict[str, dict[str, str]] = {}
    for line in read_lines(text):
        wrong = ""
        if line.unknown:
            wrong = f"`{line.unknown}` is neither a section nor a key with a value"
        elif not line.key:
            if line.section in sections:
                wrong = f"the section [{line.section}] is there twice"
            sections[line.section] = {}
        elif line.section not in sections:
            wrong = f"the key {line.key} stands before the first section"
        elif line.key in sections[line.section]:
            wrong = f"the key {line.key} is there twice in [{line.section}]"
        else:
            sections[line.section][line.key] = line.value
        if wrong:
            raise ConfigError(
                f"{path}:{line.number}: is not an INI file: {wrong}; write [section] lines and "
                "`key = value` lines, each once"
            )
    return sections


def _explain(
    path: Path | None,
    model: type[BaseModel],
    error: ValidationError,
    sections: dict[str, dict[str, str]],
) -> list[str]:
    file = str(path) if path else "built-in defaults"
    lines: list[str] = []
    for problem in error.errors():
        place = [str(part) for part in problem["loc"]]
        known_sections = [name.replace("_", "-") for name in model.model_fields]
        if len(place) < 2:
            name = place[0].replace("_", "-") if place else ""
            if problem["type"] == "extra_forbidden":
                fix = f"use one of {', '.join(f'[{known}]' for known in known_sections)}"
                lines.append(f"{file}: [{name}]: there is no such section; {fix}")
            else:
                keys = ", ".join(sections.get(place[0], {})) if place else ""
                where = f" (keys {keys})" if keys else ""
                lines.append(f"{file}: [{name}]: {_plain(problem['msg'])}{where}")
            continue
        section_model = model.model_fields[place[0]].annotation
        assert isinstance(section_model, type)
        assert issubclass(section_model, BaseModel)
        section = place[0].replace("_", "-")
        within: ErrorDetails = {**problem, "loc": problem["loc"][1:]}
        lines.append(_explain_key(file, section, section_model, within, sections.get(place[0], {})))
    return lines


def _explain_key(
    file: str,
    section: str,
    model: type[BaseModel],
    problem: ErrorDetails,
    keys: Mapping[str, str],
) -> str:
    """What is wrong with a key of a section, where `loc` begins with the key."""
    key = str(problem["loc"][0])
    found = keys.get(key)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, model.model_fields, n=1)
        fix = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(model.model_fields)}"
        return f"{file}: [{section}] {key} = {found}: there is no such key; {fix}"
    field = model.model_fields.get(key)
    wanted = field.description if field and field.description else _plain(problem["msg"])
    if problem["type"] == "missing":
        return f"{file}: [{section}]: the key {key} is missing; give {wanted}"
    return f"{file}: [{section}] {key} = {found}: {_plain(problem['msg'])}; give {wanted}"


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
