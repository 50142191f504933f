# SPDX-License-Identifier: Apache-2.0
"""What several configuration files share: the sections on logging and REST, kinds of values.

Used by the models of server.conf, controller.conf and vsphere.conf. They are the one table of these
files: keys, types, defaults and bounds stand nowhere else, and the tables of docs/configuration.md
are made from them (dev/configuration_reference.py).
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from sluice.config.ini import Section

LAST_PORT = 65535
#: Where systemd says no other.
LOG_DIR = "/var/log/sluice"
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if (
        not colon
        or not host
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or not 0 <= int(port) <= LAST_PORT
    ):
        raise ValueError("is not host:port")
    return value


def _web_address(value: str) -> str:
    parts = urlsplit(value)
    if value and (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or parts.username is not None
        or not value.isprintable()
        or " " in value
        or parts.port == 0  # one that is no port at all raises ValueError
    ):
        raise ValueError("is no address; write https://HOST or https://HOST/PATH")
    return value


def _ip_address(value: str) -> str:
    ipaddress.ip_address(value)
    return value


def split_commas(value: object) -> object:
    """A comma-separated value as a list."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def pairs(text: str, twice: str) -> dict[str, str]:
    """ "a = x, b = y" as a mapping; raises ValueError with `twice` where a name is repeated."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    found = {name.strip(): content.strip() for name, _, content in pairs}
    if len(found) < len(pairs):
        raise ValueError(twice)
    return found


#: What completes a description of a Port that is listened on.
ANY_PORT = f"1 to {LAST_PORT} (0: any free one)"
HostPort = Annotated[str, AfterValidator(_host_and_port)]
HostPorts = Annotated[list[HostPort], BeforeValidator(split_commas)]
IpAddress = Annotated[str, AfterValidator(_ip_address)]
#: http:// or https://, a host, perhaps a port and a path; "" where there may be none.
WebAddress = Annotated[str, Field(max_length=1000), AfterValidator(_web_address)]
Port = Annotated[int, Field(ge=0, le=LAST_PORT)]
Level = Annotated[LogLevel, BeforeValidator(_upper)]


def split_address(address: str) -> tuple[str, int]:
    """Splits host:port (or [v6]:port) into host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class RestSection(Section):
    """[controller] of whoever asks the pool over REST: where it answers."""

    addresses: HostPorts = Field(
        default_factory=lambda: ["127.0.0.1:9123"],
        min_length=1,
        description="the REST addresses of all controllers as host:port, with commas",
    )
    ca_file: Path | None = Field(
        None, description="the CA of the controllers' certificates: TLS is spoken then"
    )


class LogSection(Section):
    """[log]: where a service logs and how much."""

    log_format: Literal["text", "json"] = Field(
        "text", description="text, or json: one object a line, with the ids of what it is about"
    )
    log_with_time: bool = Field(True, description="true or false: each line carries the time")
    log_to_screen: bool = Field(True, description="true or false: log to standard error")
    log_to_file: bool = Field(True, description="true or false: log to a file in log_dir")
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR, for the screen")
    file_log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR, for the file")
    log_dir: Path = Field(
        default_factory=lambda: Path(os.environ.get("LOGS_DIRECTORY", LOG_DIR)),
        description="the folder of the log files",
        json_schema_extra={"default": LOG_DIR},
    )
    log_file_mib: int = Field(
        64, ge=0, description="MiB after which a service's log file is rotated (0: never)"
    )
    log_files_kept: int = Field(
        4, ge=0, le=100, description="how many rotated log files are kept beside it, {bounds}"
    )
