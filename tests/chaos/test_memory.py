# SPDX-License-Identifier: Apache-2.0
"""Memory that is promised twice, suspended and resumed, while all that serves it is killed.

Six programs at a time on two GPUs of 128 MiB, of each of which the pool promises as much again as
host memory allows; memory_pool.py has what happens to them, and what is found wrong on the way.
SLUICE_CHAOS_SEED is what happens (printed), SLUICE_CHAOS_MEMORY_SECONDS for how long.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native
from tests.withstand.suspended import start_subject

from .memory_pool import ENVIRONMENT, GPU_MIB, SUSPEND, SWAP_MIB, MemoryPool

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("SLUICE_CHAOS_MEMORY_SECONDS", "25"))
SEED = int(os.environ.get("SLUICE_CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(31)
SHOWN = 20


def events(plane: ControlPlane, kind: str) -> int:
    return len(plane.rest.get("/events", params={"kind": kind, "limit": 10_000}).json()["events"])


def test_nothing_is_lost_wrong_or_left(tmp_path: Path) -> None:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    say(f"SLUICE_CHAOS_SEED={SEED}, {SECONDS:.0f} s")
    with running(
        tmp_path,
        server={"context_overhead_mib": 2},
        suspend=SUSPEND,
        pool={"job_linger_seconds": 1, "events_kept": 1_000_000},
        environment=ENVIRONMENT,
    ) as plane:
        answer = plane.rest.put("/quotas/default", json={"may_preempt": True})
        assert answer.is_success, answer.text
        pool = MemoryPool(plane, SEED, say)
        pool.start()
        pool.disturb(SECONDS)
        say("nothing happens to it any more")
        pool.settle()
        say("everybody is gone")
        kinds = ("granted", "suspended", "not_suspended", "resumed", "not_resumed", "preempted")
        seen = {kind: events(plane, f"grant.{kind}") for kind in kinds}
        say(f"grants: {seen}; most in host memory: {pool.most_on_host} of {SWAP_MIB} MiB")
        say(f"counts: {dict(pool.excuses.counts)}")
        for violation in pool.excuses.violations[:SHOWN]:
            say(f"VIOLATION {violation}")
        kinds_of = Counter(text.split(":")[0] for text in pool.excuses.violations)
        assert not pool.excuses.violations, f"{dict(kinds_of)}; SLUICE_CHAOS_SEED={SEED}"
        assert pool.excuses.counts["right"], "nobody has computed anything"
        assert seen["suspended"], "nobody was suspended"
        assert pool.most_on_host, "no memory has moved"
        the_budget_is_whole(plane)


def the_budget_is_whole(plane: ControlPlane) -> None:
    """As much as fits on both GPUs can be suspended at once, as before."""
    subjects = []
    try:
        for _ in range(2):
            size = {"SLUICE_GMEM": "112", "SLUICE_RATIO": "60"}
            subject = start_subject(plane, filled=False, **size)
            subjects.append(subject)
            subject.ask("slab", mib=SWAP_MIB // 2 - 16, piece_mib=4)
        grants = [grant["id"] for grant in plane.grants()]
        assert len(grants) == 2

        def states() -> set[str]:
            return {(g["suspension"] or {}).get("state", "runs") for g in plane.grants()}

        for grant in grants:
            assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
        wait_for(lambda: states() == {"suspended"}, message=lambda: f"suspended: {states()}")
        for grant in grants:
            assert plane.rest.post(f"/grants/{grant}/resume").status_code == 202
        wait_for(lambda: states() == {"runs"}, message=lambda: f"resumed: {states()}")
        assert [subject.ask("check") for subject in subjects] == [{"wrong": 0}] * 2
        assert SWAP_MIB // 2 < GPU_MIB
    finally:
        for subject in subjects:
            subject.kill()
