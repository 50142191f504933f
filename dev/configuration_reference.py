# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/configuration.md and docs/guest.md, and packaging/guest/client.conf.

Called by `make docs`, and by tests/docs/test_configuration.py, which holds the files against what
would be written. A table stands between the lines `<!-- FILE [SECTION] -->` and `<!-- end -->`;
those of client.conf are made from native/api/client_settings.yaml, the services' from the models
that read their files (config/, nova_driver/configuration.py).
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sluice.config.controller import ControllerConfig
from sluice.config.ini import bounds_of
from sluice.config.server import ServerConfig
from sluice.config.vsphere import VsphereConfig
from sluice.kubernetes.configuration import KubernetesConfig
from sluice.nova_driver.configuration import OpenStackConfig

CHECKOUT = Path(__file__).resolve().parent.parent
API = CHECKOUT / "native" / "api"
sys.path.insert(0, str(CHECKOUT / "native" / "codegen"))

from client_settings import Setting, load_client_settings  # noqa: E402

PAGE = CHECKOUT / "docs" / "configuration.md"
GUESTS_PAGE = CHECKOUT / "docs" / "guest.md"
EXAMPLE = CHECKOUT / "packaging" / "guest" / "client.conf"
PLACE = re.compile(
    r"(?<=<!-- )([\w.]+\.conf(?: \[[\w-]+\])?)( -->\n).*?(?=<!-- end -->)", re.DOTALL
)
MODELS: dict[str, type[BaseModel]] = {
    "server.conf": ServerConfig,
    "controller.conf": ControllerConfig,
    "vsphere.conf": VsphereConfig,
    "openstack.conf": OpenStackConfig,
    "kubernetes.conf": KubernetesConfig,
}
CLIENT = "client.conf"
EXAMPLE_HEAD = """\
; Settings of Sluice's CUDA libraries on this machine. ~/.sluice/client.conf overrules them, and
; variables of the environment (in brackets) overrule both.
"""
COLUMNS = 110


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, without the columns in which no row says anything."""
    all_rows = list(rows)
    kept = [at for at in range(len(heads)) if any(row[at] for row in all_rows)]
    lines = (heads, ["---"] * len(heads), *all_rows)
    return "".join("| " + " | ".join(line[at] for at in kept) + " |\n" for line in lines)


def sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section's name, as in the file, and its model."""
    for name, field in model.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        yield name.replace("_", "-"), field.annotation


def section_table(section: type[BaseModel]) -> str:
    """The keys of a service's section, a line each."""
    rows = []
    for key, field in section.model_fields.items():
        bounds = bounds_of(field)
        give = (field.description or "").replace(f", {bounds}", "") if bounds else field.description
        rows.append((f"`{key}`", code(default_of(field)), bounds, give or ""))
    return grid(("key", "default", "bounds", "give"), rows)


def default_of(field: FieldInfo) -> str:
    """As it would stand in the file; of what the machine decides, what its model says of it."""
    if isinstance(field.json_schema_extra, dict) and "default" in field.json_schema_extra:
        return str(field.json_schema_extra["default"])
    return written(field.get_default(call_default_factory=True, validated_data={}))


def written(value: Any) -> str:
    """A value as it is written in a file."""
    if value is None or isinstance(value, dict):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}"
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, Collection) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)


def code(text: str) -> str:
    """In backticks, where there is something."""
    return f"`{text}`" if text else ""


def codes(texts: Iterable[str]) -> str:
    """Each in backticks."""
    return ", ".join(map(code, texts))


def accepted(setting: Setting) -> str:
    """What a setting may be, in words."""
    if setting.type == "number":
        return f"{setting.least} to {setting.most}{' ' if setting.unit else ''}{setting.unit}"
    if setting.type == "labels":
        return f"{setting.wanted}; at most {setting.most}"
    if setting.rule:
        return f"{setting.wanted}; at most {setting.rule.most} characters"
    return {"words": codes(setting.choices), "flag": "true or false"}.get(setting.type, "")


def client_tables() -> dict[str, str]:
    """The tables of client.conf by the marks of their places."""
    settings = load_client_settings(API).settings
    tables = {}
    for section in sorted({s.section for s in settings}):
        rows = (
            (
                code(s.name) if s.section else "",
                codes(s.variables),
                code(s.option),
                code(s.default),
                accepted(s),
                s.about,
            )
            for s in settings
            if s.section == section
        )
        heads = ("key", "variable", "`sluice run`", "default", "accepts", "meaning")
        tables[f"{CLIENT} [{section or 'none'}]"] = grid(heads, rows)
    with_variable = (
        (code(s.variables[0]), code(f"[{s.section}] {s.name}") if s.section else "", meaning(s))
        for s in settings
        if s.variables
    )
    tables[CLIENT] = grid(("variable", "setting in `client.conf`", "meaning"), with_variable)
    return tables


def meaning(setting: Setting) -> str:
    """What it is, with unit and default."""
    beside = [setting.unit] if setting.unit else []
    if setting.type != "flag" and setting.default:
        beside.append(f"default {code(setting.default)}")
    return f"{setting.about} ({', '.join(beside)})" if beside else setting.about


def all_tables() -> dict[str, str]:
    """Every table by the mark of its place."""
    tables = client_tables()
    for file, model in MODELS.items():
        for name, section in sections(model):
            tables[f"{file} [{name}]"] = section_table(section)
    return tables


def example() -> str:
    """packaging/guest/client.conf: every key with its default, as comments."""
    settings = load_client_settings(API).settings
    lines = [EXAMPLE_HEAD]
    for section in ("log", "controller", "client"):
        lines.append(f"[{section}]")
        for s in settings:
            if s.section == section:
                beside = [*s.variables[:1], *filter(None, [accepted(s)])]
                about = f"{s.about} ({'; '.join(beside)})" if beside else s.about
                lines += textwrap.wrap(
                    about.replace("`", ""),
                    COLUMNS,
                    initial_indent="; ",
                    subsequent_indent=";   ",
                )
                lines.append(f";{s.name} = {s.default}".rstrip())
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def current(page: Path) -> str:
    """What a page is to be; raises KeyError for a mark that is no table's."""
    tables = all_tables()
    return PLACE.sub(lambda m: m[1] + m[2] + tables[m[1]], page.read_text())


if __name__ == "__main__":
    for each in (PAGE, GUESTS_PAGE):
        each.write_text(current(each))
    EXAMPLE.write_text(example())
