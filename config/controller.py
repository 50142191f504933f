# SPDX-License-Identifier: Apache-2.0
"""controller.conf as a model: what an operator may set for sluice-controller.

Called by sluice.controller's main; the object is handed to the controller's parts, never changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sluice.config.ini import Section, read_config
from sluice.config.sections import IpAddress, LogSection, Port

DEFAULT_PATH = Path("/etc/sluice/controller.conf")


class ControllerSection(Section):
    """[controller]: doors and store."""

    bind_addr: IpAddress = Field("127.0.0.1", description="the IP address of REST and gRPC")
    rest_port: Port = Field(9123, description="the REST port, 1 to 65535 (0: any free one)")
    grpc_port: Port = Field(9124, description="the gRPC port, 1 to 65535 (0: any free one)")
    store: Path = Field(
        Path("/var/lib/sluice/controller.db"), description="the path of the SQLite store"
    )
    store_synchronous: Literal["NORMAL", "FULL"] = Field(
        "FULL", description="FULL (a grant survives a power cut) or NORMAL (a crash only)"
    )


class PoolSection(Section):
    """[pool]: how the pool is shared out."""

    vgpu_count: int = Field(
        0, ge=0, le=64, description="the default slice is 1/vgpu_count (0: as each server says)"
    )
    heartbeat_seconds: int = Field(
        5, ge=1, le=300, description="how often servers report, in seconds"
    )
    node_timeout_seconds: float = Field(
        30.0, ge=2, le=3600, description="after how many silent seconds a node is lost"
    )
    key_seconds: int = Field(
        60, ge=1, le=600, description="how many seconds a one-time key is good for"
    )
    waiting_line_seconds: float = Field(
        30.0,
        gt=0,
        le=600,
        description="how often a waiting client hears its position, in seconds",
    )
    ended_grants_kept: int = Field(
        1000, ge=0, description="how many ended grants and sessions the store keeps"
    )
    job_sessions: int = Field(
        64, ge=1, le=256, description="how many sessions one job may have at a time, 1 to 256"
    )
    job_linger_seconds: float = Field(
        5.0, ge=1, le=3600, description="how long a job without process and launcher is kept"
    )
    events_kept: int = Field(100_000, ge=100, description="how many events the store keeps")


class ControllerConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    controller: ControllerSection = ControllerSection()
    pool: PoolSection = PoolSection()


def read_controller_config(path: Path | None) -> ControllerConfig:
    """Reads controller.conf; None takes the default path if it is there, else the defaults."""
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return read_config(path, ControllerConfig)
