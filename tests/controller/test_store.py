# SPDX-License-Identifier: Apache-2.0
"""The SQLite store: what was committed is there again; what cannot be stored is an error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from control_plane import PYTHON_PATH
from ends import BY_OPERATOR, DONE
from forks import run_command
from pool_bench import FakeClock, PoolBench

from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Granted, GrantRequest, Refused
from sluice.controller.pool.model import Change, Event, Gpu, GrantState, Node, Vgpu
from sluice.controller.pool.pool import Snapshot
from sluice.controller.store import maintenance, sqlite, sqlite_file
from sluice.controller.store.group_commit import GroupCommit
from sluice.controller.store.sqlite import SqliteStore
from sluice.controller.store.store import RecordError, StoreError
from sluice.resources.ends import End, EndCause

STORES = Path(__file__).resolve().parent / "stores"


async def test_everything_committed_is_loaded_again(tmp_path: Path, bench: PoolBench) -> None:
    bench.node("a", 8000, 4000, context_overhead_mib=10, software=True, takes_parts=False)
    first = bench.granted(memory_mib=7)
    bench.clock.seconds += 1
    second = bench.granted(priority=3, program="ü")
    bench.pool.lifecycle.release(first.grant.id, DONE)
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


async def test_a_commit_of_nothing_is_done_after_those_before_it() -> None:
    goes_on = asyncio.Event()
    written: list[Change] = []

    async def write(changes: list[Change]) -> None:
        await goes_on.wait()
        written.extend(changes)

    commits = GroupCommit(write, 100)
    assert commits.commit([]).done()
    event = Event(0.0, "k", "s", "t")
    first = commits.commit([event])
    await asyncio.sleep(0)
    nothing = commits.commit([])
    await asyncio.sleep(0.01)
    assert not nothing.done()
    goes_on.set()
    await nothing
    assert first.done()
    assert written == [event]
    assert commits.groups == 1


async def test_commits_that_come_together_share_one_transaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    events = [Event(float(n), "k", "s", "t") for n in range(500)]
    await asyncio.gather(*(store.commit([event]) for event in events))
    assert store.group_commit.groups < 20
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
    monkeypatch.setattr(sqlite, "TRIM_EVERY_CHANGES", 1)
    store = SqliteStore(tmp_path / "store.db", ended_kept=2, events_kept=5)
    await store.load()
    bench.node("a", 8000)
    living = bench.granted(compute_percent=1)
    for _ in range(5):
        bench.pool.lifecycle.release(bench.granted(compute_percent=1).grant.id, DONE)
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
    bench.pool.membership.register(Node("a", "x", 1, "1", 4), [Gpu("a", "g", "M", 8000)], [])
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    grant_service = GrantService(bench.pool, store)

    async def ask(request_id: str) -> Granted | Refused:
        async for answer in grant_service.request(GrantRequest(request_id)):
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
    await grant_service.step(bench.pool.expire)  # as every tick does
    assert isinstance(await ask("y"), Granted)
    await store.close()
    loaded = await SqliteStore(tmp_path / "store.db").load()
    live = [grant for grant in loaded.grants if grant.state.value == "live"]
    assert [grant.request_id for grant in live] == ["y"]


def stored_form(snapshot: Snapshot) -> list[object]:
    nodes = [replace(node, last_seen=0) for node in snapshot.nodes]
    return [nodes, list(snapshot.gpus), list(snapshot.grants), list(snapshot.sessions)]


async def test_a_store_of_the_first_version_opens(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(STORES / "version-1.db", path)
    store = SqliteStore(path)
    loaded = await store.load()
    assert [node.name for node in loaded.nodes] == ["node-a", "node-b"]
    assert [(gpu.memory_mib, gpu.software) for gpu in loaded.gpus] == [
        (16000, False), (8000, False), (4000, True)
    ]  # fmt: skip
    first, ended, two = loaded.grants
    assert (first.state, first.priority) == (GrantState.LIVE, 3)
    assert first.vgpus == (Vgpu("node-b-gpu0", 2048, 50),)
    assert (ended.state, ended.reason) == (GrantState.ENDED, "done")
    assert len(two.vgpus) == 2
    assert {s.program for s in loaded.sessions} == {"train", "ünïcode", ""}
    assert len(await store.events(100)) == 10
    await store.commit([Event(0.0, "k", "s", "t")])
    await store.close()
    assert (path.parent / "store.db.version-1").exists() == (len(sqlite_file.MIGRATIONS) > 1)
    again = SqliteStore(path)
    assert stored_form(await again.load()) == stored_form(loaded)
    await again.close()


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.load()
    await store.close()
    version = len(sqlite_file.MIGRATIONS)
    wrong = "ALTER TABLE nodes ADD COLUMN rack TEXT NOT NULL DEFAULT ''; SELECT * FROM absent"
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", (*sqlite_file.MIGRATIONS, wrong))
    with pytest.raises(StoreError, match="no such table: absent"):
        await SqliteStore(path).load()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (version,)
        assert "rack" not in [row[1] for row in raw.execute("PRAGMA table_info(nodes)")]
    assert (tmp_path / f"store.db.version-{version}").exists()


async def test_two_controllers_cannot_open_one_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    with pytest.raises(StoreError, match="another sluice-controller uses this store"):
        await SqliteStore(tmp_path / "store.db").load()
    await store.close()


async def test_a_damaged_page_is_found_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(STORES / "version-1.db", path)
    pages = bytearray(path.read_bytes())
    pages[4096 : 4096 * 12] = b"\x5a" * (4096 * 11)
    path.write_bytes(pages)
    with pytest.raises(StoreError, match=r"damaged.*sluice-controller restore"):
        await SqliteStore(path).load()


async def test_a_commit_that_cannot_be_stored_fails_alone_and_order_is_kept(
    tmp_path: Path, bench: PoolBench
) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    good = [Gpu("a", f"g{n}", "M", n) for n in range(20)]
    bad = Gpu("a", "bad", "M", 2**70)
    commits = [store.commit([gpu, Event(0.0, "k", gpu.uuid, "")]) for gpu in [*good, bad]]
    commits[7:7] = [store.commit([Gpu("a", "worse", "M", 2**65)])]
    results = await asyncio.gather(*commits, return_exceptions=True)
    failed = [index for index, result in enumerate(results) if result is not None]
    assert failed == [7, 21]
    assert all(isinstance(results[index], RecordError) for index in failed)
    events = await store.events(100)
    assert [event.subject for event in reversed(events)] == [gpu.uuid for gpu in good]
    await store.close()
    assert {gpu.uuid for gpu in (await SqliteStore(tmp_path / "store.db").load()).gpus} == {
        gpu.uuid for gpu in good
    }


async def ask(
    grant_service: GrantService, request_id: str, wait_seconds: int = 0
) -> Granted | Refused:
    async for answer in grant_service.request(
        GrantRequest(request_id, compute_percent=1, wait_seconds=wait_seconds)
    ):
        if isinstance(answer, Granted | Refused):
            return answer
    raise AssertionError


def run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


async def fill_until_refused(grant_service: GrantService) -> list[Granted]:
    given = []
    long = End(EndCause.CLIENT_ENDED, "x" * 4000)
    while isinstance(answer := await ask(grant_service, secrets.token_hex(8)), Granted):
        given.append(answer)
        await grant_service.step(
            lambda answer=answer: grant_service.pool.lifecycle.release(answer.grant.id, long)
        )  # type: ignore[misc]
        assert len(given) < 3000
    return given


async def test_a_full_disk_stops_grants_only_and_what_waits_is_served_when_there_is_room(
    tmp_path: Path, bench: PoolBench
) -> None:
    bench.node("a", 8000)
    store = SqliteStore(tmp_path / "store.db")
    await store.load()
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 60}")
    grant_service = GrantService(bench.pool, store)
    held = await ask(grant_service, "held")
    assert isinstance(held, Granted)
    given = await fill_until_refused(grant_service)
    assert "free space on its disk" in str(grant_service.trouble)
    waiting = asyncio.create_task(ask(grant_service, "patient", wait_seconds=-1))
    refused = await ask(grant_service, "late")
    assert isinstance(refused, Refused)
    assert "cannot store a grant" in refused.message
    assert await ask(grant_service, "held") == held  # what was given is still known
    assert await store.events(3)  # reading goes on
    with pytest.raises(StoreError, match="not stored yet"):
        await grant_service.end_grant(held.grant.id, BY_OPERATOR)
    assert not waiting.done()
    store._db.execute("PRAGMA max_page_count = 100000")
    ticks = asyncio.create_task(grant_service.tick())
    assert isinstance(await asyncio.wait_for(waiting, 10), Granted)
    ticks.cancel()
    assert grant_service.trouble is None
    await store.close()
    loaded = {g.id: g for g in (await SqliteStore(tmp_path / "store.db").load()).grants}
    assert [g.request_id for g in loaded.values() if g.state is GrantState.LIVE] == ["patient"]
    assert loaded[held.grant.id].end == BY_OPERATOR
    assert {g.grant.id for g in given} <= set(loaded)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
async def test_a_real_disk_that_is_full_or_read_only_is_survived(
    tmp_path: Path, bench: PoolBench
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not run("mount", "-t", "tmpfs", "-o", "size=2m", "sluice-test", str(disk)):
        pytest.skip("cannot mount here")
    try:
        bench.node("a", 8000)
        store = SqliteStore(disk / "store.db")
        await store.load()
        grant_service = GrantService(bench.pool, store)
        assert isinstance(await ask(grant_service, "held"), Granted)
        given = await fill_until_refused(grant_service)
        assert given
        assert isinstance(await ask(grant_service, "full"), Refused)
        assert run("mount", "-o", "remount,size=64m", str(disk))
        await grant_service.step(bench.pool.expire)
        assert isinstance(await ask(grant_service, "roomy"), Granted)
        await store.close()

        assert run("mount", "-o", "remount,ro", str(disk))
        with pytest.raises(StoreError, match="Read-only file system"):
            await SqliteStore(disk / "store.db").load()
        assert run("mount", "-o", "remount,rw", str(disk))
        again = SqliteStore(disk / "store.db", ended_kept=5000)
        live = {g.request_id for g in (await again.load()).grants if g.state is GrantState.LIVE}
        assert live == {"held", "roomy"}
        await again.close()
    finally:
        run("umount", "--lazy", str(disk))


async def test_a_backup_made_in_the_middle_of_commits_is_restored(
    tmp_path: Path, bench: PoolBench
) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    bench.node("a", 8000)
    grant = bench.granted().grant
    store = SqliteStore(path)
    await store.load()
    await store.commit(bench.pool.take_changes())
    more = asyncio.gather(
        *(store.commit([Event(float(n), "k", "s", "t" * 100)]) for n in range(2000))
    )
    line = await asyncio.to_thread(maintenance.backup, path, copy)
    assert "1 grants" in line
    await more
    with pytest.raises(StoreError, match="another sluice-controller"):
        maintenance.restore(path, copy)
    with pytest.raises(StoreError, match="is there already"):
        maintenance.backup(path, copy)
    assert "sound, store version" in maintenance.check(path)
    bench.pool.lifecycle.release(grant.id, DONE)
    await store.commit(bench.pool.take_changes())
    await store.close()
    line = maintenance.restore(path, copy)
    again = SqliteStore(path)
    assert [(g.id, g.state) for g in (await again.load()).grants] == [(grant.id, GrantState.LIVE)]
    await again.close()
    assert "sound" in maintenance.check(Path(line.partition("as it was: ")[2].partition(". ")[0]))


def test_restore_refuses_what_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(StoreError, match="damaged or no store"):
        maintenance.restore(tmp_path / "store.db", tmp_path / "text")
    sqlite3.connect(tmp_path / "empty").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(StoreError, match="is no store of Sluice"):
        maintenance.restore(tmp_path / "store.db", tmp_path / "empty")
    assert not (tmp_path / "store.db").exists()


def test_the_commands_of_an_operator(tmp_path: Path) -> None:
    shutil.copy(STORES / "version-1.db", tmp_path / "store.db")
    config = tmp_path / "controller.conf"
    config.write_text(f"[controller]\nstore = {tmp_path}/store.db\n")

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return run_command(
            "--config", config, *words, module="sluice.controller",
            environment={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
        )  # fmt: skip

    assert "3 grants" in command("check").stdout
    assert command("upgrade").returncode == 0
    assert command("backup", str(tmp_path / "b")).returncode == 0
    (tmp_path / "store.db").write_bytes(b"broken" * 1000)
    broken = command("check")
    assert broken.returncode == 1
    assert "sluice-controller restore" in broken.stderr
    assert "restored from" in command("restore", str(tmp_path / "b")).stdout
    assert "3 grants" in command("check").stdout
    assert "no such file" in command("restore", str(tmp_path / "none")).stderr
