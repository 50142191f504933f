# SPDX-License-Identifier: Apache-2.0
"""What people and labels used: shares add up to projects' usage, over days, crashes and bounds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from ends import DONE
from pool_bench import PoolBench

from sluice.config.controller import AuthSection
from sluice.controller.auth.access import Access
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.tokens import Role, TokenBook
from sluice.controller.pool.grants.vgpu_times import VgpuReport
from sluice.controller.pool.model import OwnerKind
from sluice.controller.pool.projects import shares as shares_module
from sluice.controller.pool.projects.shares import DAY_SECONDS, OTHERS, Share, ShareMeters
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.controller.rpc.messages import request_of
from sluice.controller.store.sqlite import SqliteStore
from sluice.rpc import pool_pb2 as rpc


def shares_of(bench: PoolBench) -> dict[tuple[str, str, str], float]:
    """vGPU-seconds by project, person and label, of all that is not stored and today's."""
    found: dict[tuple[str, str, str], float] = defaultdict(float)
    for each in bench.pool.shared_up_to_now():
        found[each.project, each.person, each.label] += each.vgpu_seconds
    return dict(found)


def stored(bench: PoolBench) -> list[UsageShare]:
    return [c for c in bench.pool.take_changes() if isinstance(c, UsageShare)]


def passing(bench: PoolBench, seconds: float) -> list[UsageShare]:
    """Time, a second at a time as the controller lets it pass; what was stored."""
    found = []
    for _ in range(int(seconds // 10)):
        bench.clock.seconds += 10
        bench.pool.membership.seen("a")
        bench.pool.expire()
        found += stored(bench)
    return found


def test_shares_are_of_person_and_label(bench: PoolBench) -> None:
    bench.node("a", 8000)
    wanted = {"memory_mib": 100, "compute_percent": 10, "project": "p"}
    alice = bench.granted(**wanted, person="alice", owner_label="night").grant
    bench.granted(**wanted, person="bob")
    bench.granted(**wanted)
    bench.clock.seconds += 10
    assert shares_of(bench) == {
        ("p", "alice", "night"): 10, ("p", "bob", ""): 10, ("p", "", ""): 10
    }  # fmt: skip
    bench.pool.lifecycle.release(alice.id, DONE)
    bench.clock.seconds += 5
    assert shares_of(bench)["p", "alice", "night"] == 10
    assert shares_of(bench)["p", "bob", ""] == 15


def test_gpu_time_is_the_persons(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted(memory_mib=1, compute_percent=1, project="p", person="alice").grant
    times = bench.pool._ledger.vgpu_times
    times.take(grant, VgpuReport(grant.id, 0, 3.0, 1.0, 0.5, 0.5))
    [share] = [s for s in bench.pool.shared_up_to_now() if s.person == "alice"]
    assert (share.gpu_seconds, share.gpu_wait_seconds) == (3.0, 1.0)
    [record] = [r for r in bench.pool.used_up_to_now() if r.project == "p"]
    assert record.gpu_seconds == 3.0


def test_shares_add_up_to_the_project_over_days(bench: PoolBench) -> None:
    bench.node("a", 8000)
    wanted = {"memory_mib": 7, "compute_percent": 3, "project": "p"}
    first = bench.granted(**wanted, person="alice").grant
    bench.granted(**wanted, person="bob")
    bench.clock.seconds += DAY_SECONDS - bench.clock.wall() % DAY_SECONDS - 300
    bench.pool.membership.seen("a")
    newest: dict[tuple[str, str, str, int], UsageShare] = {}
    records: dict[int, UsageRecord] = {}

    def keep(seconds: float) -> None:
        for _ in range(int(seconds // 10)):
            bench.clock.seconds += 10
            bench.pool.membership.seen("a")
            bench.pool.expire()
            for change in bench.pool.take_changes():
                if isinstance(change, UsageShare):
                    newest[change.project, change.person, change.label, change.day] = change
                if isinstance(change, UsageRecord):
                    records[change.hour] = change

    keep(200)
    bench.pool.lifecycle.release(first.id, DONE)
    keep(400)
    for share in bench.pool.shared_up_to_now():
        newest[share.project, share.person, share.label, share.day] = share
    for record in bench.pool.used_up_to_now():
        records[record.hour] = record
    assert len({day for *_, day in newest}) == 2
    for field in ("vgpu_seconds", "memory_mib_seconds", "compute_percent_seconds"):
        by_share = sum(getattr(each, field) for each in newest.values())
        by_hour = sum(getattr(each, field) for each in records.values())
        assert by_share == pytest.approx(by_hour), field


def test_a_share_is_stored_once_a_minute(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(memory_mib=1, compute_percent=1, project="p", person="alice")
    assert not stored(bench), "not with the grant"
    assert len(passing(bench, 50)) == 0
    assert len(passing(bench, 120)) == 2


def test_a_crash_costs_a_minute_at_most(bench: PoolBench) -> None:
    bench.node("a", 8000)
    gone = bench.granted(memory_mib=1, compute_percent=1, project="p", person="gone").grant
    bench.granted(memory_mib=1, compute_percent=1, project="p", person="alice")
    bench.pool.take_changes()
    kept = {each.person: each for each in passing(bench, 600)}
    bench.pool.lifecycle.release(gone.id, DONE)
    bench.granted(memory_mib=1, compute_percent=1, project="p", person="new")
    bench.clock.seconds += 30
    after = bench.restarted(shares=list(kept.values()), begins=bench.clock.seconds)
    after.clock.seconds += 5
    found = {person: seconds for (_, person, _), seconds in shares_of(after).items()}
    assert found["alice"] == pytest.approx(635)
    assert found["new"] == pytest.approx(35)
    assert found["gone"] == pytest.approx(600, abs=60)


def test_a_reservation_counts_for_its_label(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.reserve(owner_kind=OwnerKind.LABEL, owner="night", project="p", memory_mib=100)
    bench.clock.seconds += 10
    assert shares_of(bench) == {("p", "", "night"): 10}


def test_shares_are_bounded_and_nothing_gets_lost(
    bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_module, "MOST_SHARES", 3)
    bench.node("a", 80_000)
    grants = [
        bench.granted(memory_mib=1, compute_percent=1, project="p", person=f"person {n}").grant
        for n in range(6)
    ]
    bench.clock.seconds += 10
    found = shares_of(bench)
    assert len(found) == 4
    assert found["p", OTHERS, OTHERS] == 30
    for grant in grants:
        bench.pool.lifecycle.release(grant.id, DONE)
    bench.clock.seconds += 10
    assert shares_of(bench) == found
    passing(bench, 130)
    bench.clock.seconds += DAY_SECONDS
    bench.pool.membership.seen("a")
    bench.pool.expire()
    assert shares_of(bench) == {}, "what holds nothing is forgotten when its day is over"


def test_not_all_are_stored_in_one_step(bench: PoolBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "MOST_OF_CUT", 2)
    meters = ShareMeters(bench.clock)
    size = shares_module.Held(1, 1, 1)
    for number in range(5):
        meters.change(f"g{number}", Share("p", f"person {number}", ""), size, 1)
    bench.clock.seconds += 60
    cuts = [[each.person for each in meters.cut()] for _ in range(4)]
    assert [len(each) for each in cuts] == [2, 2, 1, 0]
    assert len({person for each in cuts for person in each}) == 5


async def test_shares_are_kept_by_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    share = UsageShare("p", "alice", "", 20_000, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    await store.commit([share, UsageShare("q", "", "night", 20_001, 1.0, 2.0, 3.0, 4.0)])
    assert await store.shares(0, 20_000) == [share]
    assert await store.shares(0, 99_999, "p") == [share]
    assert len(await store.shares(0, 99_999)) == 2
    await store.close()
    again = SqliteStore(tmp_path / "store.db")
    assert [each.project for each in (await again.load()).shares] == ["q"]
    await again.close()


def test_a_servers_word_of_a_person_is_one_short_line() -> None:
    message = rpc.GrantRequest(request_id="r", person="al\x1b[31mice\n" + "x" * 500)
    person = request_of(message).person
    assert person.startswith("al[31mice")
    assert len(person) <= 100
    assert person.isprintable()


async def test_a_tokens_person_is_what_it_says_or_its_name(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    tokens = TokenBook(store)
    access = Access(AuthSection(), tokens, EnrolmentBook(store, tokens), loopback_only=True)
    for more, person in (
        ({"name": "alice"}, "alice"),
        ({"name": "ci", "person": "alice@example.org"}, "alice@example.org"),
        ({"name": "vm-1", "vm": "uuid"}, ""),
    ):
        _, secret = await tokens.create(Role.TENANT, by="test", project="p", **more)
        assert access.by_token(secret, "").person == person
    await store.close()
