# SPDX-License-Identifier: Apache-2.0
"""vsphere.conf as a model: what an operator may set for sluice-vsphere, and the credentials.

Called by sluice-vsphere's main and by `sluice vsphere`. Credentials are never part of the model, so
that nothing that prints a configuration prints them.
"""

from __future__ import annotations

import configparser
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sluice.config.ini import ConfigError, Section, read_config
from sluice.config.sections import HostPorts, LogSection, Port, RestSection
from sluice.resources.vgpu_request import COMPUTE_PERCENT, COUNT, MEMORY_MIB

DEFAULT_PATH = Path("/etc/sluice/vsphere.conf")
USER_VARIABLE, PASSWORD_VARIABLE = "SLUICE_VSPHERE_USER", "SLUICE_VSPHERE_PASSWORD"


def _thumbprint(value: str) -> str:
    plain = value.replace(":", "").replace(" ", "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise ValueError("is no SHA-256 thumbprint of 64 hexadecimal digits")
    return plain


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")]
Mib = Annotated[int, Field(ge=0, le=MEMORY_MIB.high)]


class VcenterSection(Section):
    """[vcenter]: which vCenter, and how it is known to be that one."""

    host: str = Field("", description="the vCenter's name or address")
    port: Port = Field(443, description="its HTTPS port")
    credentials_file: Path | None = Field(
        None,
        description="a file that only its owner reads, with the lines `user = …` and "
        f"`password = …` (empty: {USER_VARIABLE} and {PASSWORD_VARIABLE} of the environment)",
    )
    ca_file: Path | None = Field(
        None, description="the CA of its certificate, PEM (empty: the system's CAs)"
    )
    thumbprint: Annotated[str, AfterValidator(_thumbprint)] | None = Field(
        None, description="the SHA-256 thumbprint of its certificate, which is then trusted alone"
    )
    certificate: Literal["check", "any"] = Field(
        "check", description="check, or any: whoever answers gets the password (tests only)"
    )
    name: Name = Field("vsphere", description="what its reservations go by in the controller")
    poll_seconds: int = Field(
        60, ge=1, le=600, description="how long one wait for changes lasts, in seconds"
    )
    tag_seconds: int = Field(
        30, ge=1, le=3600, description="how often tags are read, which vCenter does not report"
    )

    @model_validator(mode="after")
    def _one_check(self) -> VcenterSection:
        if self.thumbprint and self.ca_file:
            raise ValueError("has both thumbprint and ca_file; keep one of them")
        if self.certificate == "any" and (self.thumbprint or self.ca_file):
            raise ValueError("certificate = any checks nothing: leave out thumbprint and ca_file")
        return self


class ControllerSection(RestSection):
    """[controller]: the pool's controller, for this service and for the VMs."""

    token_file: Path | None = Field(
        None, description="the file with this service's token: operator, or admin for pool VMs"
    )
    guest_addresses: HostPorts = Field(
        default_factory=list, description="what VMs are told, if it is not `addresses`"
    )
    resync_seconds: int = Field(
        300, ge=5, le=86400, description="how often the controller's own lists are read again"
    )


class ClientsSection(Section):
    """[clients]: which VMs get vGPUs, and what they get if they do not say."""

    attribute: str = Field("Sluice", description="the custom attribute (empty: none)")
    category: str = Field("", description="the tag category (empty: tags are not read)")
    folder: str = Field(
        "", description="a VM folder's path, such as DC0/vm/ai: its VMs are clients"
    )
    resource_pool: str = Field("", description="a resource pool's name: its VMs are clients")
    project: Name = Field("default", description="on whose account, unless a VM names another")
    projects_allowed: str = Field(
        "", description="the projects that VMs may name, with commas (empty: only `project`)"
    )
    count: int = Field(
        1, ge=COUNT.low, le=COUNT.high, description="vGPUs of a VM that does not say"
    )
    memory_mib: Mib = Field(0, description="MiB of each (0: the pool's default)")
    compute_percent: int = Field(
        0, ge=0, le=COMPUTE_PERCENT.high, description="percent (0: the pool's default)"
    )
    mode: Literal["auto", "reserved", "on-demand"] = Field(
        "auto", description="auto, reserved or on-demand, for a VM that does not say"
    )
    enrolment_seconds: int = Field(
        600, ge=60, le=86400, description="how long a VM's one-time secret is good for"
    )

    @property
    def allowed(self) -> frozenset[str]:
        """Every project that a VM may name."""
        named = (part.strip() for part in self.projects_allowed.split(","))
        return frozenset({self.project, *filter(None, named)})


class PoolSection(Section):
    """[pool]: which VMs with passed-through GPUs become nodes."""

    enrol: bool = Field(True, description="true or false: VMs with GPUs become nodes")
    folder: str = Field("", description="only VMs of this folder (empty: of all)")
    resource_pool: str = Field("", description="only VMs of this resource pool (empty: of all)")
    enrolment_seconds: int = Field(
        3600, ge=60, le=86400, description="how long a pool VM's one-time secret is good for"
    )


class VsphereConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    vcenter: VcenterSection = VcenterSection()
    controller: ControllerSection = ControllerSection()
    clients: ClientsSection = ClientsSection()
    pool: PoolSection = PoolSection()

    @property
    def guest_addresses(self) -> str:
        """What a VM is told of the controllers."""
        return ",".join(self.controller.guest_addresses or self.controller.addresses)


@dataclass(frozen=True)
class Credentials:
    """Who we are to the vCenter; the password is in no text that is made of this."""

    user: str
    password: str = field(repr=False)


def placed(path: Path | None) -> Path | None:
    """A file with a secret: a plain name is systemd's credential, else lies beside vsphere.conf."""
    if path is None or path.is_absolute():
        return path
    return Path(os.environ.get("CREDENTIALS_DIRECTORY", DEFAULT_PATH.parent)) / path


def read_vsphere_config(path: Path | None) -> VsphereConfig:
    """Reads vsphere.conf; raises ConfigError."""
    path = path or DEFAULT_PATH
    config = read_config(path, VsphereConfig)
    if not config.vcenter.host:
        raise ConfigError(f"{path}: [vcenter] host is missing; give the vCenter's name or address")
    return config


def read_credentials(section: VcenterSection) -> Credentials:
    """The user and password of the file, else of the environment; raises ConfigError."""
    path = placed(section.credentials_file)
    if path is None:
        user, password = os.environ.get(USER_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE, "")
        if not user or not password:
            raise ConfigError(
                f"[vcenter] credentials_file is not set, and neither are {USER_VARIABLE} and "
                f"{PASSWORD_VARIABLE}; set the file or both variables"
            )
        return Credentials(user, password)
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path}: can be read by others than its owner: chmod 600 {path}")
        parser.read_string("[vcenter]\n" + path.read_text(encoding="utf-8"))
        found = parser["vcenter"]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (configparser.Error, UnicodeDecodeError, KeyError):
        # what the parser says would quote the line, and that may be the password
        raise ConfigError(f"{path}: has other lines than `user = …` and `password = …`") from None
    user, password = found.get("user", ""), found.get("password", "")
    if not user or not password or set(found) - {"user", "password"}:
        raise ConfigError(f"{path}: wants the lines `user = …` and `password = …`, and no other")
    return Credentials(user, password)
