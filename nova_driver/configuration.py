# SPDX-License-Identifier: Apache-2.0
"""openstack.conf as a model: what an operator may set for the OpenStack adapter.

Read by the service and by the commands of `sluice openstack`. Credentials of OpenStack are in
clouds.yaml or OS_* variables, as for every OpenStack client, and not in this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sluice.config.ini import Section, read_config
from sluice.config.sections import LogSection, RestSection, split_commas

DEFAULT_PATH = Path("/etc/sluice/openstack.conf")

Words = Annotated[list[str], BeforeValidator(split_commas)]


class ControllerSection(RestSection):
    """[controller]: where the pool is."""

    token_file: Path | None = Field(
        None, description="the file with an operator's token (empty: none is needed)"
    )


class CloudSection(Section):
    """[openstack]: which cloud, and how it is followed."""

    cloud: str = Field("", description="the cloud's name in clouds.yaml (empty: OS_* variables)")
    region: str = Field("", description="the region (empty: the credentials' own)")
    provider_name: str = Field(
        "sluice",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="the name of the pool's resource provider: letters, digits, dots, dashes",
    )
    computes: Words = Field(
        default_factory=lambda: ["*"],
        min_length=1,
        description="the hypervisor host names that may use the pool, with commas; * and ? stand "
        "for any",
    )
    transport_url: str = Field(
        "",
        description="Nova's message bus, as its transport_url says (empty: no notifications; "
        "changes are then seen at the next reconcile)",
    )
    notification_topic: str = Field(
        "versioned_notifications", description="the topic of Nova's versioned notifications"
    )
    notification_exchange: str = Field("nova", description="the exchange that Nova notifies on")
    reconcile_seconds: float = Field(
        30.0, ge=1, le=3600, description="how often changed instances are looked at, {bounds}"
    )
    full_reconcile_seconds: float = Field(
        600.0, ge=5, le=86400, description="how often every instance is looked at, {bounds}"
    )
    inventory_seconds: float = Field(
        1.0, ge=0.1, le=60, description="how long after a change of the pool Placement is told"
    )


class OpenStackConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    controller: ControllerSection = Field(default_factory=ControllerSection)
    openstack: CloudSection = Field(default_factory=CloudSection)


def read_openstack_config(path: Path | None) -> OpenStackConfig:
    """Reads openstack.conf; None takes the default path if it is there, else the defaults."""
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return read_config(path, OpenStackConfig)
