# SPDX-License-Identifier: Apache-2.0
"""server.conf: which vGPUs containers get by the name of their CDI device.

[containers]; part of config.server's ServerConfig. `sluice cdi generate` reads it for the names,
sluice-server for what they mean: nothing of it is in the specification or in the container.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sluice.config.ini import Section
from sluice.config.sections import pairs, split_commas
from sluice.guest_runtime.cdi_specification import ALL, DEFAULT, DEVICE_NAME
from sluice.protocol import frames
from sluice.resources.vgpu_request import COMPUTE_PERCENT, COUNT, MEMORY_MIB, PROJECT

#: Each has a socket of its own.
MOST_DEVICES = 256

ProjectName = Annotated[str, Field(pattern=f"^{PROJECT.pattern}$")]


class ContainerDevice(BaseModel):
    """A slice that all processes of a container share; zeros are the pool's defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(1, ge=1, le=COUNT.high)  # vGPUs
    memory: int = Field(0, ge=0, le=MEMORY_MIB.high)  # MiB of each
    compute: int = Field(0, ge=0, le=COMPUTE_PERCENT.high)  # percent of a GPU, each
    processes: int = Field(1, ge=1, le=frames.MAX_JOB_PROCESSES)  # for whose contexts room is kept
    project: ProjectName = ""  # empty: whose container it is says
    label: ProjectName = ""  # whose reservations it draws on
    group: str = ""  # of the host, that besides root may give the device to containers


#: `default`: a default slice of the pool.
DEFAULT_DEVICE = ContainerDevice()


def _devices(value: object) -> object:
    """ "small=memory:2048 compute:25, …" as mappings by name."""
    if not isinstance(value, str):
        return value
    found = {}
    for name, text in pairs(value, "names a device twice; give each one entry").items():
        words = [word.partition(":") for word in text.split()]
        for key, colon, content in words:
            if key not in ContainerDevice.model_fields or not colon or not content:
                known = ", ".join(f"{key}:…" for key in ContainerDevice.model_fields)
                raise ValueError(f"{name}: {key}{colon}{content} is none of {known}")
        if len({key for key, _, _ in words}) < len(words):
            raise ValueError(f"{name}: says something twice")
        found[name] = {key: content for key, _, content in words}
    return found


def _names(devices: dict[str, ContainerDevice]) -> dict[str, ContainerDevice]:
    for name in devices:
        if not DEVICE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a CDI device's name")
        if name in (ALL, DEFAULT):
            raise ValueError(f"{name} is there already: give it another name")
    if len(devices) > MOST_DEVICES:
        raise ValueError(f"there are more than {MOST_DEVICES}")
    return devices


class ContainersSection(Section):
    """[containers]: what containers of this host get by `--device sluice.io/vgpu=NAME`."""

    enable: bool = Field(
        True, description="true or false: containers reach this server by CDI devices"
    )
    devices: Annotated[
        dict[str, ContainerDevice], BeforeValidator(_devices), AfterValidator(_names)
    ] = Field(
        default_factory=dict,
        description="name = what a container with it shares, with commas: small=memory:2048 "
        "compute:25, train=count:2 memory:40000 project:vision; also processes:, label: and group: "
        "(who besides root may give it)",
    )
    projects: Annotated[list[ProjectName], BeforeValidator(split_commas)] = Field(
        default_factory=list,
        description="the projects of containers of root's engines whose device names none, with "
        "commas, the first unless they choose ([projects] default where there is none)",
    )
    restrict_all: str = Field(
        "",
        description="the group that besides root may give the device `all`, which bounds nothing "
        "(empty: everybody on this host, as with the host's own socket)",
    )
