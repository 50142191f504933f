# SPDX-License-Identifier: Apache-2.0
"""The section [sluice] of nova.conf on compute hosts."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = cfg.OptGroup("sluice", title="Channels to a pool of GPUs")
OPTIONS = [
    cfg.StrOpt(
        "server_socket",
        default="/run/sluice/vms.sock",
        help="Where this host's sluice-server takes requests for channels: vms.sock in its "
        "run_dir. Root and the group of [nova] in server.conf may connect.",
    ),
    cfg.IntOpt(
        "server_seconds",
        default=15,
        min=1,
        help="How many seconds sluice-server may take to prepare a channel.",
    ),
]


def register(configuration: Any) -> None:
    """Makes the options known; may be called again."""
    configuration.register_group(GROUP)
    configuration.register_opts(OPTIONS, GROUP)


def list_options() -> list[tuple[Any, list[Any]]]:
    """For oslo-config-generator."""
    return [(GROUP, OPTIONS)]
