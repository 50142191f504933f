# SPDX-License-Identifier: Apache-2.0
"""The fixtures that all folders share, and the order in which files are handed to processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair, and decides nothing.
settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")

pytest_plugins = ["planes"]

LONGEST = (
    "withstand/test_broken_connections.py",
    "withstand/test_an_end.py",
    "withstand/test_node_links.py",
    "cli/test_init.py",
    "withstand/test_suspension.py",
    "controller/test_fuzz_rest.py",
    "withstand/test_turns.py",
    "withstand/test_oversubscription.py",
    "withstand/test_gangs.py",
    "controller/test_store_disasters.py",
    "withstand/test_concurrent.py",
    "cli/test_commands.py",
    "withstand/test_restarts.py",
    "server/test_jobs.py",
    "console/test_prometheus.py",
    "withstand/test_long_networks.py",
    "withstand/test_stops.py",
    "applications/test_numba.py",
    "withstand/test_broken_relays.py",
    "server/test_gpu_faults.py",
    "withstand/test_isolation.py",
    "withstand/test_vsock_relays.py",
    "server/test_clients.py",
    "server/test_restarts.py",
    "withstand/test_hostile.py",
    "server/test_network_clients.py",
    "server/test_relay.py",
    "guest_runtime/test_enrol_openstack.py",
    "server/test_metrics.py",
    "forwarded/test_diverted.py",
)
"""Files of `make test` that take longest, by their place under tests/: they begin first.

A file is one process's (--dist loadfile), so one that begins last decides when all is over.
xdist's own order, the files with most tests first, does not know which tests wait.
"""

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; everything else stays in its order."""
    place = {HERE / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
