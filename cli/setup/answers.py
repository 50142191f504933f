# SPDX-License-Identifier: Apache-2.0
"""What `sluice init` is told: by options, by questions on a terminal, by what an earlier run wrote.

Used by init_command.py. `/etc/sluice/init.conf` keeps the answers, so that a later run without
options asks nothing and changes nothing. Whatever is wrong ends in a CommandError that names the
option and says what would be right.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sluice.cli.rest import CommandError
from sluice.config.ini import Section, read_config
from sluice.config.sections import HostPorts, IpAddress, split_commas
from sluice.guest_runtime.ini_lines import quoted

FILE = "init.conf"
#: Names of projects become names of files.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Role(StrEnum):
    """What this host is."""

    BOTH = "both"
    CONTROLLER = "controller"
    SERVER = "server"


ProjectName = Annotated[str, Field(pattern=NAME, max_length=64)]
Projects = Annotated[list[ProjectName], BeforeValidator(split_commas)]


class Answers(Section):
    """[init] of init.conf. Each key is an option of `sluice init`, with dashes."""

    role: Role = Field(Role.BOTH, description="both, controller or server: what this host is")
    node_name: str = Field(
        default_factory=socket.gethostname,
        pattern=NAME,
        max_length=120,
        description="this host's name in the pool: letters, digits, dot, dash and underscore",
    )
    address: IpAddress = Field(
        "127.0.0.1", description="the IP address of this host at which other hosts reach it"
    )
    tls: bool = Field(True, description="true or false: controller and data port speak TLS")
    controllers: HostPorts = Field(
        default_factory=list,
        max_length=16,
        description="the REST addresses of the pool's controllers as host:port, with commas",
    )
    driver: str = Field(
        "auto",
        min_length=1,
        description="auto, softgpu, none, or the path of a CUDA driver library",
    )
    projects: Projects = Field(
        default_factory=list,
        max_length=64,
        description="the projects that get a tenant's token, with commas",
    )

    joined: str = Field(
        "", pattern=r"^[0-9a-f]{0,64}$", description="the hash of the secret that it joined with"
    )

    @model_validator(mode="after")
    def _fits(self) -> Answers:
        if self.role is Role.SERVER and not self.controllers:
            raise ValueError("a server needs its pool: give --join FILE, or --controller HOST:PORT")
        if self.role is not Role.SERVER and self.controllers:
            raise ValueError("--controller is for --role server: this host has one of its own")
        if self.role is Role.SERVER and self.projects:
            raise ValueError("--project is for the controller's host, which makes the tokens")
        names = [name.lower() for name in self.projects]
        if "admin" in names or len(set(names)) < len(names):
            raise ValueError("--project names a project twice, or `admin`, which is the pool's own")
        return self

    @property
    def runs_controller(self) -> bool:
        """Whether the controller is here."""
        return self.role is not Role.SERVER

    @property
    def runs_server(self) -> bool:
        """Whether the server is here."""
        return self.role is not Role.CONTROLLER

    @property
    def is_alone(self) -> bool:
        """Whether no other host reaches this one."""
        return ipaddress.ip_address(self.address).is_loopback

    def text(self) -> str:
        """As init.conf keeps it."""
        values = {
            "role": self.role.value,
            "node_name": self.node_name,
            "address": self.address,
            "tls": "true" if self.tls else "false",
            "controllers": ", ".join(self.controllers),
            "driver": self.driver,
            "projects": ", ".join(self.projects),
            "joined": self.joined,
        }
        lines = [f"{key} = {quoted(value)}" for key, value in values.items() if value]
        head = "# The answers of `sluice init`, which reads them when it is run again."
        return "\n".join([head, "[init]", *lines]) + "\n"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    init: dict[str, str] = Field(default_factory=dict)


def recorded(folder: Path) -> dict[str, str]:
    """The answers of an earlier run. Raises ConfigError."""
    path = folder / FILE
    return read_config(path, _File).init if path.exists() else {}


def settled(given: dict[str, object], before: dict[str, str]) -> Answers:
    """Options first, then what was answered before, then defaults. Raises CommandError."""
    values: dict[str, object] = {**before, **given}
    if given.get("role") not in (None, before.get("role")):
        for key in ("controllers", "projects", "joined"):  # belonged to the other role
            if key not in given:
                values.pop(key, None)
    if "tls" not in values:
        values["tls"] = not _is_loopback(str(values.get("address", "127.0.0.1")))
    try:
        return Answers.model_validate(values)
    except ValidationError as error:
        raise CommandError("\n".join(_explained(error)), 2) from None


def _explained(error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            lines.append(message)
            continue
        key = str(problem["loc"][0])
        option = {"controllers": "controller", "projects": "project"}.get(key, key)
        field = Answers.model_fields.get(key)
        if field is None:
            lines.append(f"{FILE}: [init] {key}: there is no such key; take it out")
            continue
        lines.append(
            f"--{option.replace('_', '-')} {problem['input']}: {message}; give {field.description}"
        )
    return lines


Ask = Callable[[str, str], str]

#: What is asked on a terminal, in this order: key, question.
QUESTIONS = (
    ("role", "What is this host: both (controller and server), controller, or server"),
    ("node_name", "Its name in the pool"),
    ("address", "Its address for other hosts (127.0.0.1: there are no others)"),
    ("controllers", "The controllers' addresses, HOST:9123, with commas"),
    ("tls", "TLS for the controller and the data port (true or false)"),
    ("driver", "Its GPUs: auto (NVIDIA's, else the software GPU), softgpu, or none"),
    ("projects", "Projects that get a token, with commas (empty: none)"),
)


def ask_for(given: dict[str, object], before: dict[str, str], ask: Ask) -> dict[str, object]:
    """The options and what was answered to questions about the rest; asks again what is wrong."""
    found = dict(given)
    for key, question in QUESTIONS:
        role = str(found.get("role", before.get("role", Role.BOTH)))
        is_server = role == Role.SERVER
        if key in found or key == ("projects" if is_server else "controllers"):
            continue
        if key == "driver" and role == Role.CONTROLLER:
            continue
        found[key] = _asked(key, question, found, before, ask)
    return found


def _asked(
    key: str, question: str, found: dict[str, object], before: dict[str, str], ask: Ask
) -> str:
    default = before.get(key, "")
    if not default and key == "tls":
        default = "false" if _is_loopback(str(found.get("address", ""))) else "true"
    elif not default and key not in ("controllers", "projects"):
        value = Answers.model_validate({"tls": False}).model_dump()[key]
        default = str(value)
    while True:
        answer = ask(question, default).strip()
        so_far = {"role": "server", "controllers": "x:1"} if key == "controllers" else {}
        try:
            Answers.model_validate({**so_far, key: answer, "tls": answer if key == "tls" else True})
        except ValidationError as error:
            if key == "role" and answer == Role.SERVER:
                return answer  # its controllers are asked for next
            print("\n".join(_explained(error)))
            continue
        return answer


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
