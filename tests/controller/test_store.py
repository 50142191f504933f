# SPDX-License-Identifier: Apache-2.0
"""The SQLite store: what was committed is there again; what cannot be stored is an error."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pool_bench import FakeClock, PoolBench

from sluice.controller.desk import GrantDesk
from sluice.controller.pool.model import Event, Gpu, Granted, GrantRequest, Node, Refused
from sluice.controller.pool.pool import Snapshot
from sluice.controller.store import sqlite
from sluice.controller.store.sqlite import SqliteStore
from sluice.controller.store.store import StoreError


async def test_everything_committed_is_loaded_again(tmp_path: Path, bench: PoolBench) -> None:
    bench.node("a", 8000, 4000, context_overhead_mib=10, software=True)
    first = bench.granted(memory_mib=7)
    bench.clock.seconds += 1
    second = bench.granted(priority=3, program="ü")
    bench.pool.release(first.grant.id, "done")
    store = SqliteStore(tmp_path / "new" / "store.db")
    assert await store.load() == Snapshot([], [], [], [])
    await store.commit(bench.pool.take_changes())
    await store.close()
    again = SqliteStore(tmp_path / "new" / "store.db")
    loaded = await again.load()
    assert [replace(n, last_seen=0) for n in loaded.nodes] == [
        replace(n, last_seen=0) for n in bench.pool.nodes.values()
    ]
    assert list(loaded.gpus) == list(bench.pool.gpus.values())
    assert list(loaded.grants) == [first.grant, second.grant]
    assert list(loaded.sessions) == [first.session, second.session]
    events = await again.events(100)
    assert events[0].kind == "grant.ended"
    assert [e.kind for e in await again.events(1, first.grant.id)] == ["grant.ended"]
    await again.close()


async def test_commits_that_come_together_share_one_transaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    events = [Event(float(n), "k", "s", "t") for n in range(500)]
    await asyncio.gather(*(store.commit([event]) for event in events))
    assert store._commits < 20
    assert [e.time for e in await store.events(500)] == [float(n) for n in range(499, -1, -1)]
    await store.close()


async def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="store version 99, newer than"):
        await store.load()


async def test_a_file_that_is_no_store_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match=r"store\.db"):
        await SqliteStore(path).load()


async def test_old_events_and_ended_grants_are_trimmed(
    tmp_path: Path, bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "TRIM_EVERY_COMMITS", 1)
    store = SqliteStore(tmp_path / "store.db", ended_kept=2, events_kept=5)
    await store.load()
    bench.node("a", 8000)
    living = bench.granted(compute_percent=1)
    for _ in range(5):
        bench.pool.release(bench.granted(compute_percent=1).grant.id, "done")
    await store.commit(bench.pool.take_changes())
    await store.commit([Event(0.0, "k", "s", "t")])
    assert len(await store.events(100)) <= 6
    await store.close()
    loaded = await SqliteStore(tmp_path / "store.db").load()
    assert len(loaded.grants) == 3
    assert living.grant.id in {grant.id for grant in loaded.grants}
    assert {s.grant_id for s in loaded.sessions} == {g.id for g in loaded.grants}


async def test_a_grant_that_cannot_be_stored_is_not_given(tmp_path: Path, bench: PoolBench) -> None:
    assert isinstance(bench.clock, FakeClock)
    bench.pool.register(Node("a", "x", 1, "1", 4), [Gpu("a", "g", "M", 8000)], [])
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    desk = GrantDesk(bench.pool, store)

    async def ask(request_id: str) -> Granted | Refused:
        async for answer in desk.request(GrantRequest(request_id)):
            if isinstance(answer, Granted | Refused):
                return answer
        raise AssertionError

    with sqlite3.connect(tmp_path / "store.db", isolation_level=None) as blocker:
        blocker.execute("BEGIN EXCLUSIVE")
        answer = await ask("x")
        assert isinstance(answer, Refused)
        assert "cannot store a grant" in answer.message
        assert bench.pool.usage(Gpu("a", "g", "M", 8000).key).vgpus == 0
        blocker.execute("ROLLBACK")
    assert isinstance(await ask("y"), Granted)
    await store.close()
    loaded = await SqliteStore(tmp_path / "store.db").load()
    live = [grant for grant in loaded.grants if grant.state.value == "live"]
    assert [grant.request_id for grant in live] == ["y"]


async def test_a_commit_takes_about_a_millisecond(tmp_path: Path, bench: PoolBench) -> None:
    bench.node("a", 8000)
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    await store.commit(bench.pool.take_changes())
    taken = []
    for _ in range(50):
        grant = bench.granted(compute_percent=1).grant
        begin = time.perf_counter()
        await store.commit(bench.pool.take_changes())
        taken.append((time.perf_counter() - begin) * 1e3)
        bench.pool.release(grant.id, "done")
    print(f"commit: median {sorted(taken)[25]:.2f} ms, worst {max(taken):.2f} ms")
    assert sorted(taken)[25] < 5
    await store.close()
