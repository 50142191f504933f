# SPDX-License-Identifier: Apache-2.0
"""The fixtures that all folders share, and the order in which files are handed to processes."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair, and decides nothing.
settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")

pytest_plugins = ["planes"]

LONGEST = (
    "withstand/test_turns.py",
    "withstand/test_oversubscription.py",
    "withstand/test_merged_launches.py",
    "withstand/test_jobs_suspended.py",
    "withstand/test_gangs.py",
    "withstand/test_kept_memory.py",
    "withstand/test_moved_sessions.py",
    "withstand/test_returns_tried_again.py",
    "withstand/test_suspension.py",
    "withstand/test_suspended_midway.py",
    "withstand/test_concurrent.py",
    "withstand/test_an_end.py",
    "withstand/test_checkpointed_sessions.py",
    "withstand/test_broken_connections.py",
    "forwarded/test_runtimes_inside.py",
    "console/test_hostile_provider.py",
    "server/test_jobs.py",
    "console/test_prometheus.py",
    "cli/test_commands.py",
    "withstand/test_node_links.py",
    "controller/test_fuzz_rest.py",
    "withstand/test_stops.py",
    "withstand/test_restarts.py",
    "controller/test_store_disasters.py",
    "server/test_jobs_of_nodes.py",
    "guest_runtime/test_enrol_openstack.py",
    "withstand/test_vsock_relays.py",
    "applications/test_matrix.py",
    "console/test_people.py",
    "forwarded/test_merging.py",
    "guest_runtime/test_run.py",
    "console/test_failing_provider.py",
    "forwarded/test_cuda12.py",
    "forwarded/test_merged_libraries.py",
    "monitors/test_monitors.py",
    "server/test_relay.py",
    "guest_runtime/test_substitution.py",
    "server/test_network_clients.py",
    "withstand/test_networks_that_stay_away.py",
    "withstand/test_card_ways.py",
    "server/test_clients.py",
    "controller/test_session_ends.py",
    "withstand/test_idle_sessions.py",
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


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()
