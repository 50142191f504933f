# SPDX-License-Identifier: Apache-2.0
"""What `sluice doctor` looks at where the whole of Sluice is installed: controllers, GPU hosts.

Used by commands.py and bundle.py. Which parts are looked at follows from the configuration files
that are there, unless --part says it; the client's part is guest_runtime/doctor.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluice.cli.setup.answers import recorded
from sluice.config import controller, server
from sluice.config.ini import ConfigError
from sluice.config.version import own_version
from sluice.guest_runtime.doctor import client_areas, machine_area, package_areas
from sluice.guest_runtime.examination import Area, Result, examine
from sluice.support import controller_host_check, server_check
from sluice.support.parts import Part


def parts_here(server_file: Path | None, controller_file: Path | None) -> list[Part]:
    """What this host is: as `sluice init` was told, or by the files that it has; else a client."""
    if not server_file and not controller_file and (role := _role()):
        return [part for part in (Part.SERVER, Part.CONTROLLER) if role in ("both", part.value)]
    parts = []
    if server_file or server.DEFAULT_PATH.exists():
        parts.append(Part.SERVER)
    if controller_file or controller.DEFAULT_PATH.exists():
        parts.append(Part.CONTROLLER)
    return parts or [Part.CLIENT]


def _role() -> str:
    """What `sluice init` made of this host: its package has the files of both."""
    try:
        before = recorded(server.DEFAULT_PATH.parent)
    except ConfigError:
        return ""  # what is wrong with that file is not what is looked for
    role = before.get("role", "")
    return role if role in ("both", "server", "controller") else ""


def examined(
    parts: Sequence[Part], server_file: Path | None, controller_file: Path | None
) -> list[Result]:
    """What is found of these parts."""
    version = own_version()
    areas = [machine_area(), *package_areas()]
    if Part.CONTROLLER in parts:
        config, found = controller_host_check.read_config(controller_file)
        areas.append(Area("controller.conf", lambda: found))
        if config:
            areas += controller_host_check.controller_areas(config, version)
    if Part.SERVER in parts:
        host, read = server_check.read_config(server_file)
        areas.append(Area("server.conf", lambda: read))
        if host:
            areas += server_check.server_areas(host, version)
    if Part.CLIENT in parts:
        areas += client_areas(version)
    return examine(areas)
