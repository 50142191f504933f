# SPDX-License-Identifier: Apache-2.0
"""What the relay costs: calls and copies through it beside the direct channels, all in one run.

A relayed session's client, relay and worker are on this machine, as are the ends of the bare TCP
ping-pong: with two cores they share them. Called by bench.py, whose servers it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from figure import Figure

Run = Callable[[str], dict[str, float]]

#: Beside what a bare ping-pong takes of a relayed call.
SLACK_US = 10.0
PING_FACTOR = 1.15
DIRECT = "direct TCP channel"


def in_turn(runs: Sequence[Callable[[], dict[str, float]]], rounds: int) -> list[dict[str, float]]:
    """Each figure's median; the runs take turns, so that a machine that drifts drifts for all."""
    results: list[list[dict[str, float]]] = [[] for _ in runs]
    for _ in range(rounds):
        for place, run in enumerate(runs):
            results[place].append(run())
    return [{key: median(one[key] for one in each) for key in each[0]} for each in results]


def relayed_calls(floors: Callable[[], dict[str, float]], server: Any, rounds: int) -> list[Figure]:
    """Synchronous calls (copies of 4 bytes to the host) and launches, into a null back end."""
    floor, local, direct, relayed = in_turn(
        [
            floors,
            lambda: server.calls("shm", "round_trip"),
            lambda: server.calls("tcp", "round_trip"),
            lambda: server.calls("relay", "round_trip"),
        ],
        rounds,
    )
    ping, call, through = (
        floor["tcp_ping_pong_us"],
        local["round_trip_us"],
        relayed["round_trip_us"],
    )
    allowed = call + PING_FACTOR * ping + SLACK_US
    each_second, there = relayed["async_calls_per_s"], direct["async_calls_per_s"]
    return [
        Figure("relay_local_call_us", call, "us"),
        Figure("relay_tcp_ping_pong_us", ping, "us"),
        Figure(
            "relay_direct_tcp_call_us",
            direct["round_trip_us"],
            "us",
            floor=ping,
            floor_of="bare TCP ping-pong",
        ),
        Figure(
            "relay_sync_call_us",
            through,
            "us",
            floor=allowed,
            floor_of="local call, 1.15 bare TCP ping-pongs and 10 us",
            limit=allowed,
        ),
        Figure(
            "relay_async_throughput_ratio",
            each_second / there,
            "ratio",
            limit=0.95,
            better="higher",
        ),
        Figure("relay_async_calls_per_s", each_second, "1/s", floor=there, floor_of=DIRECT),
    ]


def relayed_copies(server: Any, rounds: int) -> list[Figure]:
    """Pageable copies of 256 MiB, beside those over the direct TCP channel."""
    direct, relayed = in_turn(
        [lambda: server.calls("tcp", "copy", "256"), lambda: server.calls("relay", "copy", "256")],
        rounds,
    )
    rows = (
        ("relay_copy_gib_s", "pageable_to_device_gib_s"),
        ("relay_copy_back_gib_s", "pageable_to_host_gib_s"),
    )
    return [
        Figure(name, relayed[key], "GiB/s", floor=direct[key], floor_of=DIRECT)
        for name, key in rows
    ]
