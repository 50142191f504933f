# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/shares.py computes of tenants, and how it holds them at a barrier."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))

from share_figures import Split, arrivals, percentile, work_between  # noqa: E402
from tenants import (  # noqa: E402
    Process,
    Tenant,
    TenantFailed,
    Tenants,
    meanwhile,
    processes,
    window,
)


def test_steps_across_a_moment_count_by_their_part() -> None:
    times = [0.0, 1.0, 2.0, 4.0, 8.0]
    assert work_between(times, 1.0, 4.0) == pytest.approx(2)
    assert work_between(times, 0.5, 3.0) == pytest.approx(2)  # a half, one, and a half
    assert work_between([9.9, 20.0], 10.0, 10.1) == pytest.approx(0.1 / 10.1)
    with pytest.raises(ValueError, match="does not reach"):
        work_between(times, 1.0, 8.5)
    with pytest.raises(ValueError, match="does not reach"):
        work_between(times, -1.0, 2.0)


def test_a_share_is_of_what_each_does_alone() -> None:
    split = Split.of([3.0, 63.0], [31.0, 70.0])  # steps of different length
    assert split.of_alone == pytest.approx((0.0968, 0.9), abs=1e-4)
    assert split.total == pytest.approx(0.9968, abs=1e-4)
    assert sum(split.percents) == pytest.approx(100)
    assert split.errors((10, 90)) == pytest.approx([0.29, 0.29], abs=0.01)
    assert str(split) == "9.71 90.29 | of alone 0.097 0.900"


def test_requests_come_at_random_and_always_the_same() -> None:
    found = arrivals(20, 500, 7)
    assert found == arrivals(20, 500, 7) != arrivals(20, 500, 8)
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] < 500
    assert len(found) == pytest.approx(10_000, rel=0.05)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert sum(gap < 0.05 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.02)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, part) for part in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([3.0], 0.99) == 3


CHILD = """
import time
from tenants import say, tasks
print("a library says something")
say({"ready": NUMBER})
for task in tasks():
    while time.monotonic() < task["begin"]:
        pass
    say({"number": NUMBER, "begin": time.monotonic() - task["begin"], **task})
"""


def start(tenants: Tenants, code: str) -> Tenant:
    environment = {**os.environ, "PYTHONPATH": str(GPU)}
    return tenants.start("one", [sys.executable, "-c", code], environment)


def test_tenants_begin_together_as_often_as_they_are_told() -> None:
    with Tenants() as running:
        both = [start(running, CHILD.replace("NUMBER", str(n))) for n in (1, 2)]
        assert running.wait_ready() == [{"ready": 1}, {"ready": 2}]
        both.append(start(running, CHILD.replace("NUMBER", "3")))
        assert running.wait_ready() == [{"ready": 3}]
        for group in (both, both[1:]):
            said = window(group, 0.1, lead=0.2, linger=4)
            assert [s["number"] for s in said] == [1, 2, 3][-len(group) :]
            assert len({s["end"] for s in said}) == 1
            assert all(s["linger"] == 4 for s in said)
    assert [tenant.process.returncode for tenant in both] == [0, 0, 0]


def test_a_tenant_that_fails_is_named_with_what_it_wrote() -> None:
    with Tenants() as running:
        start(running, "import sys; sys.exit('no such sharing')")
        with pytest.raises(TenantFailed, match=r"one ended with status 1\nno such sharing"):
            running.wait_ready()
    with Tenants() as running:
        start(running, "import sys; sys.stdin.read()")
        begun = time.monotonic()
        with pytest.raises(TenantFailed, match="said nothing in"):
            running.wait_ready(0.2)
        assert time.monotonic() - begun < 10


def test_what_ran_meanwhile_is_named() -> None:
    assert processes()[os.getpid()].cpu_seconds > 0
    before = {1: Process("init", 5.0), 2: Process("sluice-worker", 1.0)}
    now = {1: Process("init", 5.0), 3: Process("sluice-worker", 0.5), 4: Process("cc1plus", 9.0)}
    said = meanwhile(before, now)
    assert "1 workers, 1 began and 1 ended meanwhile" in said
    assert said.endswith("CPU: cc1plus 9.0 s, sluice-worker 0.5 s")
