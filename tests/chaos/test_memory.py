# SPDX-License-Identifier: Apache-2.0
"""Memory that is promised twice, suspended or moved, while all that serves it is killed.

Six programs at a time on two GPUs: once of which the pool promises as much again as host memory
allows (memory_pool.py), once between which they move (moving_pool.py). These have what happens to
them, and what is found wrong on the way. SLUICE_CHAOS_SEED is what happens (printed),
SLUICE_CHAOS_MEMORY_SECONDS for how long, both together.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native
from tests.withstand.softgpu_card import SharedCard, shared_card
from tests.withstand.suspended import start_subject

from . import moving_pool
from .memory_clients import TRAINER
from .memory_pool import ENVIRONMENT, GPU_MIB, SUSPEND, SWAP_MIB, MemoryPool, Say
from .moving_pool import CONTEXT_MIB, MOVING_GPU_MIB, MovingPool

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("SLUICE_CHAOS_MEMORY_SECONDS", "25")) / 2
SEED = int(os.environ.get("SLUICE_CHAOS_SEED", "0")) or random.SystemRandom().getrandbits(31)
SHOWN = 20
POOL = {"job_linger_seconds": 1, "events_kept": 1_000_000}
KINDS = (
    "granted", "suspended", "not_suspended", "resumed", "not_resumed", "moved", "not_moved",
    "preempted",
)  # fmt: skip


@pytest.fixture
def say() -> Say:
    """Skips the test where the native part is not built."""
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    began = time.monotonic()

    def said(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    said(f"SLUICE_CHAOS_SEED={SEED}, {SECONDS:.0f} s")
    return said


def events(plane: ControlPlane, kind: str) -> int:
    return len(plane.rest.get("/events", params={"kind": kind, "limit": 10_000}).json()["events"])


def live_through(plane: ControlPlane, say: Say, make: Callable[[], MemoryPool]) -> dict[str, int]:
    """Everything that the seed has in store; how many events of grants there were, by kind."""
    answer = plane.rest.put("/quotas/default", json={"may_preempt": True})
    assert answer.is_success, answer.text
    pool = make()
    pool.start()
    pool.disturb(SECONDS)
    say("nothing happens to it any more")
    pool.settle()
    say("everybody is gone")
    seen = {kind: events(plane, f"grant.{kind}") for kind in KINDS}
    say(f"grants: {seen}; most in host memory: {pool.most_on_host} of {SWAP_MIB} MiB")
    say(f"counts: {dict(pool.excuses.counts)}")
    for violation in pool.excuses.violations[:SHOWN]:
        say(f"VIOLATION {violation}")
    kinds_of = Counter(text.split(":")[0] for text in pool.excuses.violations)
    assert not pool.excuses.violations, f"{dict(kinds_of)}; SLUICE_CHAOS_SEED={SEED}"
    assert pool.excuses.counts["right"], "nobody has computed anything"
    assert seen["suspended"], "nobody was suspended"
    assert pool.most_on_host, "no memory has moved"
    return seen


def test_nothing_is_lost_wrong_or_left(tmp_path: Path, say: Say) -> None:
    with running(
        tmp_path,
        server={"context_overhead_mib": 2},
        suspend=SUSPEND,
        pool=POOL,
        environment=ENVIRONMENT,
    ) as plane:
        live_through(plane, say, lambda: MemoryPool(plane, SEED, say))
        the_budget_is_whole(plane)


def test_what_moves_is_on_one_gpu_and_right(tmp_path: Path, say: Say) -> None:
    with (
        shared_card(MOVING_GPU_MIB, CONTEXT_MIB, **moving_pool.ENVIRONMENT) as card,
        running(
            tmp_path,
            # on the software GPU a sandbox lets nothing be written
            server={"context_overhead_mib": CONTEXT_MIB, "worker_sandbox": "false"},
            suspend=moving_pool.SUSPEND,
            pool=POOL,
            environment=card.settings,
        ) as plane,
    ):
        live_through(plane, say, lambda: MovingPool(plane, SEED, say, card))
        it_moves_as_before(plane, card)


def it_moves_as_before(plane: ControlPlane, card: SharedCard) -> None:
    """There and back, whatever has become of the moves before."""
    subject = start_subject(plane, filled=False, program=TRAINER, SLUICE_GMEM="64")
    try:
        subject.ask("slab", mib=32, piece_mib=4)
        [grant] = [each["id"] for each in plane.grants()]
        [worker] = plane.session_worker_pids()

        def is_on(device: int) -> bool:
            shown = plane.rest.get(f"/grants/{grant}").json()
            [vgpu] = shown["vgpus"]
            return shown["suspension"] is None and int(vgpu["gpu"][-2:], 16) == device

        for there in (1, 0) if is_on(0) else (0, 1):
            ordered = plane.rest.post(f"/grants/{grant}/move", json={"gpu": str(there)})
            assert ordered.status_code == 202, ordered.text
            wait_for(lambda there=there: is_on(there), message=f"it to be on GPU {there}")
            assert subject.ask("check") == {"wrong": 0}
            assert card.taken_mib(worker, 1 - there) == 0
    finally:
        subject.kill()


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
