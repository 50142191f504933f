# SPDX-License-Identifier: Apache-2.0
"""What osc_lib asks of a plugin: its options, and the object that commands find as their client.

Loaded by the `openstack` command. The commands are in commands.py.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from osc_lib import utils

from .pool_line import PoolLine

DEFAULT_API_VERSION = "1"
API_VERSION_OPTION = "os_vgpu_api_version"
API_NAME = "vgpu"
API_VERSIONS = {"1": "sluice_nova.osc.pool_line.PoolLine"}


def make_client(instance: Any) -> PoolLine:
    """The line to the pool, which is asked only where somebody named it."""
    options = instance._cli_options.config
    return PoolLine(
        options.get("vgpu_controller") or os.environ.get("SLUICE_CONTROLLER", ""),
        options.get("vgpu_ca") or os.environ.get("SLUICE_CA", ""),
        os.environ.get("SLUICE_TOKEN", ""),
    )


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the plugin's global options."""
    parser.add_argument(
        "--os-vgpu-api-version",
        metavar="<vgpu-api-version>",
        default=utils.env("OS_VGPU_API_VERSION", default=DEFAULT_API_VERSION),
        help="vGPU API version, default=1 (Env: OS_VGPU_API_VERSION)",
    )
    parser.add_argument(
        "--os-vgpu-controller",
        metavar="<host:port[,...]>",
        dest="vgpu_controller",
        default=utils.env("SLUICE_CONTROLLER"),
        help="The pool's controllers, to show what is held (Env: SLUICE_CONTROLLER; their token: "
        "SLUICE_TOKEN)",
    )
    parser.add_argument(
        "--os-vgpu-ca",
        metavar="<file>",
        dest="vgpu_ca",
        default=utils.env("SLUICE_CA"),
        help="The CA of the controller's certificate (Env: SLUICE_CA)",
    )
    return parser
