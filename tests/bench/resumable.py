# SPDX-License-Identifier: Apache-2.0
"""What it costs that a session over TCP could go on after a break: the same without, in one run.

Called by bench.py, whose servers it uses: one whose sessions outlive their connections, and one
whose do not, take turns.
"""

from __future__ import annotations

from typing import Any

from figure import Figure
from relayed import in_turn

PLAIN = "TCP without resumption"
LEAST = 0.98


def resumable_calls(resumable: Any, plain: Any, rounds: int) -> list[Figure]:
    """Launches that nobody waits for, and synchronous calls, into a null back end."""
    ours, theirs = in_turn(
        [
            lambda: resumable.calls("tcp", "round_trip"),
            lambda: plain.calls("tcp", "round_trip"),
        ],
        rounds,
    )
    each_second, before = ours["async_calls_per_s"], theirs["async_calls_per_s"]
    return [
        Figure("tcp_resumable_calls", each_second / before, "ratio", limit=LEAST, better="higher"),
        Figure("tcp_async_calls_per_s", each_second, "1/s", floor=before, floor_of=PLAIN),
        Figure(
            "tcp_resumable_sync_call_us",
            ours["round_trip_us"],
            "us",
            floor=theirs["round_trip_us"],
            floor_of=PLAIN,
        ),
    ]


def resumable_copies(resumable: Any, plain: Any, rounds: int) -> list[Figure]:
    """Pageable copies of 256 MiB to and from the software GPU."""
    ours, theirs = in_turn(
        [
            lambda: resumable.calls("tcp", "copy", "256"),
            lambda: plain.calls("tcp", "copy", "256"),
        ],
        rounds,
    )
    there, back = "pageable_to_device_gib_s", "pageable_to_host_gib_s"
    worst = min(ours[key] / theirs[key] for key in (there, back))
    return [
        Figure("tcp_resumable_copy", worst, "ratio", limit=LEAST, better="higher"),
        Figure("tcp_copy_gib_s", ours[there], "GiB/s", floor=theirs[there], floor_of=PLAIN),
        Figure("tcp_copy_back_gib_s", ours[back], "GiB/s", floor=theirs[back], floor_of=PLAIN),
    ]
