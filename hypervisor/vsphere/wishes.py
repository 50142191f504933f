# SPDX-License-Identifier: Apache-2.0
"""What a VM's administrator asks for, in the text of a custom attribute or a tag.

Used by clients.py and the commands. The text is `count=1 memory=4GiB compute=25 mode=reserved`, in
any order, with spaces, commas or semicolons between; what is left out is `[clients]`'s. It promises
that whatever text is there ends in a Wish or in a WishError that names the field and the fix.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sluice.config.vsphere import ClientsSection
from sluice.hypervisor.vsphere.errors import VsphereError
from sluice.hypervisor.vsphere.model import Vm

LONGEST_TEXT = 200
SHOWN = 40
UNITS = {"": 1, "m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024}
HELP = {
    "count": "give a number of vGPUs from 1 to 64, such as count=1",
    "memory": "give MiB or GiB of each vGPU, such as memory=4096 or memory=4GiB",
    "compute": "give percent of a GPU's time from 1 to 100, such as compute=25",
    "mode": "give auto, reserved or on-demand",
    "project": "give a project that [clients] allows",
}


class WishError(VsphereError):
    """The text cannot be right; the message names the field."""


def _mib(value: object) -> object:
    found = re.fullmatch(r"([0-9]{1,9})\s*([A-Za-z]{0,3})", str(value), re.ASCII)
    if not found or found[2].lower() not in UNITS:
        raise ValueError("is no amount of memory")
    return int(found[1]) * UNITS[found[2].lower()]


def _percent(value: object) -> object:
    return str(value).removesuffix("%")


class Wish(BaseModel):
    """Checked; zeros are the pool's defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(1, ge=1, le=64)
    memory: Annotated[int, BeforeValidator(_mib), Field(ge=0, le=2**31 - 1)] = 0
    compute: Annotated[int, BeforeValidator(_percent), Field(ge=0, le=100)] = 0
    mode: Literal["auto", "reserved", "on-demand"] = "auto"
    project: str = Field("default", pattern=r"^[A-Za-z0-9._-]{1,60}$")

    @property
    def reserves(self) -> bool:
        """Whether room is held for it; else it takes of the pool what there is."""
        return self.mode != "on-demand"


def parse(text: str, defaults: ClientsSection) -> Wish:
    """The wish of a text; raises WishError."""
    given: dict[str, object] = {
        "count": defaults.count,
        "memory": defaults.memory_mib,
        "compute": defaults.compute_percent,
        "mode": defaults.mode,
        "project": defaults.project,
    }
    if len(text) > LONGEST_TEXT:
        raise WishError(f"the text has {len(text)} characters; give at most {LONGEST_TEXT}")
    seen: set[str] = set()
    for part in re.split(r"[\s,;]+", text.strip()):
        if part in ("", "default"):
            continue
        name, equals, value = part.partition("=")
        if not equals or name not in HELP:
            raise WishError(
                f"{_shown(part)}: there is no such field; give some of {', '.join(HELP)}, each "
                "with = and a value, or the word default"
            )
        if name in seen:
            raise WishError(f"{name}: is there twice; {HELP[name]}")
        seen.add(name)
        given[name] = value
    try:
        wish = Wish.model_validate(given)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise WishError(f"{name}={_shown(str(given[name]))}: {HELP[name]}") from None
    if wish.project not in defaults.allowed:
        raise WishError(
            f"project={_shown(wish.project)}: VMs may not name it; give one of "
            f"{', '.join(sorted(defaults.allowed))}, or have it added to [clients] projects_allowed"
        )
    return wish


def wanted_text(vm: Vm, section: ClientsSection) -> str | None:
    """What chooses a VM as a client: its attribute, else its tag, else its place; None: nothing."""
    if vm.is_template:
        return None
    if section.attribute and (text := vm.attributes.get(section.attribute, "").strip()):
        return text
    if section.category and vm.tag:
        return vm.tag
    if section.folder and is_below(vm.folder, section.folder):
        return ""
    if section.resource_pool and section.resource_pool in vm.resource_pool.split("/"):
        return ""
    return None


def is_below(path: str, folder: str) -> bool:
    """Whether a folder's path is this one's or below it."""
    folder = folder.strip("/")
    return path == folder or path.startswith(f"{folder}/")


def _shown(text: str) -> str:
    """As much of a stranger's text as a line of a log or a terminal takes."""
    short = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return "".join(c if c.isprintable() else "?" for c in short)
