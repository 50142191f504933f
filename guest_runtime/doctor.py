# SPDX-License-Identifier: Apache-2.0
"""`sluice doctor` in a guest: from the kernel up to the controller, what is wrong and what to do.

Used by main.py, and by support/doctor.py for the client's part of a host. It opens no session and
changes nothing. Exit status 0 if nothing is wrong, 1 if something is, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import VERSION
from .channels import check_channels
from .check import check_settings
from .configuration import Value, read_settings
from .controller_check import Controllers, check_controllers
from .device_check import check_devices, ivshmem_devices
from .examination import Area, Result, examine, exit_status, show, show_json
from .findings import Finding, note
from .installation import find_installation
from .installation_check import check_installation, check_loader
from .loader_check import check_loading
from .machine_check import check_group, check_machine
from .package_check import check_package, package_home
from .settings_check import check_files, check_token, read_token, settings_files


def machine_area() -> Area:
    """What has to be right before anything of Sluice is."""
    return Area("this machine", check_machine)


def package_areas() -> list[Area]:
    """The files of the deb or rpm that this is of; none where it is of no package."""
    home = package_home()
    return [Area("package", lambda: check_package(home))] if home else []


def client_areas(version: str = VERSION) -> list[Area]:
    """What a program here meets on its way to the pool, in that order."""
    settings = read_settings()
    return [
        Area("client settings", lambda: _settings(settings)),
        Area("client libraries", _libraries),
        Area("channel devices", _devices),
        Area("way to the pool", lambda: check_channels(settings)),
        Area("controllers", lambda: _controllers(settings, version)),
    ]


def _settings(settings: dict[str, Value]) -> list[Finding]:
    return [*check_files(settings_files()), *check_settings(settings), *check_token(settings)]


def _libraries() -> list[Finding]:
    found = find_installation()
    return [*check_installation(found), *check_loader(found), *check_loading(found)]


def _devices() -> list[Finding]:
    return [check_group(bool(ivshmem_devices())), *check_devices()]


def _controllers(settings: dict[str, Value], version: str) -> list[Finding]:
    """Asked only where sessions may go that way: a guest without network has no use for them."""
    address = settings["controller.controller_addr"]
    wanted = settings["client.channel"].text in ("tcp", "rdma") or address.origin != "default"
    if not wanted:
        return [note("controller", "none is named; sessions go by this host's server or a channel")]
    asked = Controllers(address.text, settings["controller.ca"].text, read_token(settings))
    return check_controllers(asked, version)


def parser(prog: str = "sluice doctor") -> argparse.ArgumentParser:
    """The options that guests and hosts have in common."""
    made = argparse.ArgumentParser(
        prog=prog, description="Looks at this machine from top to bottom and says what is wrong."
    )
    made.add_argument("--json", action="store_true", help="one JSON document, for scripts")
    made.add_argument("-q", "--quiet", action="store_true", help="problems and notes only")
    return made


def report(results: Sequence[Result], *, as_json: bool, quiet: bool) -> int:
    """Prints what was found; the exit status."""
    if as_json:
        show_json(results, sys.stdout)
    else:
        show(results, sys.stdout, only_problems=quiet)
    return exit_status(results)


def doctor(words: Sequence[str]) -> int:
    """The command in a guest."""
    options = parser().parse_args(list(words))
    results = examine([machine_area(), *package_areas(), *client_areas()])
    return report(results, as_json=options.json, quiet=options.quiet)
