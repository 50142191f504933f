# SPDX-License-Identifier: Apache-2.0
"""The etcd store on a real member: what was committed is there again, and only a leader commits."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import etcd_members
import pytest
from ends import DONE
from free_ports import free_port
from pool_bench import PoolBench

from sluice.config.controller import StoreSection
from sluice.controller.leadership.election import Candidate, LeaderAddress, Term
from sluice.controller.pool.model import (
    Event,
    Gpu,
    GrantState,
    OwnerKind,
    Reservation,
    ReservationState,
)
from sluice.controller.pool.pool import Snapshot
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.controller.store import etcd, etcd_cluster
from sluice.controller.store.etcd import EtcdStore
from sluice.controller.store.etcd_cluster import EtcdCluster, UnreachableError
from sluice.controller.store.records import GPUS
from sluice.controller.store.store import DeposedError, RecordError, StoreError

pytestmark = pytest.mark.skipif(not etcd_members.is_there(), reason="etcd is not installed")


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_members.EtcdMembers]:
    with etcd_members.etcd_members(tmp_path_factory.mktemp("etcd")) as members:
        yield members


@pytest.fixture
def section(member: etcd_members.EtcdMembers) -> StoreSection:
    prefix = f"/{secrets.token_hex(4)}/"
    return StoreSection(kind="etcd", endpoints=member.endpoints, prefix=prefix, lease_seconds=2)


@pytest.fixture
async def cluster(section: StoreSection) -> AsyncIterator[EtcdCluster]:
    opened = EtcdCluster(section)
    await opened.open()
    yield opened
    await opened.close()


#: Nobody renews these leases: none may end before its test does.
LEASE_SECONDS = 600


async def elected(cluster: EtcdCluster, section: StoreSection, name: str = "a") -> Term:
    address = LeaderAddress(f"{name}:1", f"{name}:2")
    candidate = Candidate(cluster, section.prefix, LEASE_SECONDS, address)
    term = await asyncio.wait_for(candidate.campaign(), 60)
    term.started(10**12)  # these tests are about etcd's guard, not about the leader's own clock
    return term


async def opened(cluster: EtcdCluster, section: StoreSection, **kept: int) -> EtcdStore:
    return EtcdStore(cluster, await elected(cluster, section), section.prefix, **kept)


async def handed_over(store: EtcdStore) -> None:
    await store.close()
    await store._term.resign()


def comparable(snapshot: Snapshot) -> list[object]:
    nodes = [replace(node, last_seen=0) for node in snapshot.nodes]
    return [nodes, list(snapshot.gpus), list(snapshot.grants), list(snapshot.sessions)]


async def test_everything_committed_is_loaded_again(
    cluster: EtcdCluster, section: StoreSection, bench: PoolBench
) -> None:
    bench.node("a", 8000, 4000, context_overhead_mib=10, software=True)
    first = bench.granted(memory_mib=7)
    bench.clock.seconds += 1
    second = bench.granted(priority=3, program="ü/%")
    bench.pool.lifecycle.release(first.grant.id, DONE)
    store = await opened(cluster, section)
    assert comparable(await store.load()) == [[], [], [], []]
    await store.commit(bench.pool.take_changes())
    gone = Gpu("a", "gone/1", "M", 1)
    await store.commit([gone])
    await store.commit([replace(gone, memory_mib=2)])
    bench.pool.membership.register(bench.pool.nodes["a"], bench.pool.gpus.values(), [], ["r2"])
    await store.commit(bench.pool.take_changes())
    await handed_over(store)
    again = await opened(cluster, section)
    loaded = await again.load()
    assert loaded.grants[0] == first.grant
    assert list(loaded.grants) == [first.grant, second.grant]
    assert list(loaded.sessions) == [first.session, second.session]
    assert {gpu.uuid for gpu in loaded.gpus} == {"a-gpu0", "a-gpu1", "gone/1"}
    assert [e.kind for e in await again.events(1, first.grant.id)] == ["grant.ended"]
    newest = await again.events(3)
    assert newest == (await again.events(100))[:3]
    await handed_over(again)


async def test_commits_that_come_together_share_transactions_and_keep_their_order(
    cluster: EtcdCluster, section: StoreSection
) -> None:
    store = await opened(cluster, section)
    await store.load()
    events = [Event(float(n), "k", "s", "t") for n in range(2500)]
    await asyncio.gather(*(store.commit([event]) for event in events))
    assert store.group_commit.groups < 60
    assert [e.time for e in await store.events(2500)] == [float(n) for n in range(2499, -1, -1)]
    await handed_over(store)


async def test_a_commit_larger_than_a_transaction_is_stored_as_a_whole(
    cluster: EtcdCluster, section: StoreSection
) -> None:
    store = await opened(cluster, section)
    await store.load()
    gpus = [Gpu("a", f"g{n}", "M" * 2000, n) for n in range(700)]
    await store.commit([*gpus, *(Event(0.0, "k", gpu.uuid, "t" * 500) for gpu in gpus)])
    await store.commit([Gpu("a", "g0", "changed", 0)])
    await handed_over(store)
    again = await opened(cluster, section)
    loaded = {gpu.uuid: gpu for gpu in (await again.load()).gpus}
    assert len(loaded) == 700
    assert loaded["g0"].model == "changed"
    assert len(await again.events(1000)) == 700
    await handed_over(again)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_large_commit_cut_off_by_a_crash_is_finished_or_never_was(
    cluster: EtcdCluster, section: StoreSection, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    store = await opened(cluster, section)
    await store.load()
    await store.commit([Gpu("a", "before", "M", 1)])
    real, seen = store._guarded, 0

    async def dies(operations: list[object], events: int = 0) -> None:
        nonlocal seen
        seen += 1
        # 1 clears the journal, then its parts, then "whole", then the pieces
        marked = any(b"journal/whole" in str(op).encode() for op in operations)
        if (marked and not whole) or (whole and seen > 8):
            raise DeposedError("killed")
        await real(operations, events)

    monkeypatch.setattr(store, "_guarded", dies)
    with pytest.raises(DeposedError):
        await store.commit([Gpu("a", f"g{n}", "M" * 2000, n) for n in range(700)])
    assert seen > 3
    await handed_over(store)
    again = await opened(cluster, section)
    names = {gpu.uuid for gpu in (await again.load()).gpus}
    assert len(names) == (701 if whole else 1)
    journal = f"{section.prefix}journal/"
    assert await cluster.get_range(journal, journal + "~") == []
    await handed_over(again)


async def test_pages_show_one_moment_and_can_be_left(
    cluster: EtcdCluster, section: StoreSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_cluster, "FIRST_PAGE_KEYS", 3)
    monkeypatch.setattr(etcd_cluster, "PAGE_MOST_KEYS", 3)
    base = f"{section.prefix}many/"
    await cluster.transaction([], [cluster.put(f"{base}{n}", str(n)) for n in range(8)])
    found = []
    async for page in cluster.pages(base, base + "~"):
        assert len(page) <= 3
        found += page
        later = [cluster.put(f"{base}{len(found)}+", "later"), cluster.delete(f"{base}7")]
        await cluster.transaction([], later)
    assert found == [(f"{base}{n}", str(n).encode()) for n in range(8)]
    before = asyncio.all_tasks()
    pages = cluster.pages(base, base + "~")
    assert len(await anext(pages)) == 3
    await pages.aclose()
    async with asyncio.timeout(5):
        while asyncio.all_tasks() != before:
            await asyncio.sleep(0)


async def test_pages_of_large_values_are_shorter(
    cluster: EtcdCluster, section: StoreSection
) -> None:
    base = f"{section.prefix}large/"
    values = ["x" * size for size in (*[10] * 100, *[1_000_000] * 12, *[10] * 100)]
    for n, value in enumerate(values):
        await cluster.transaction([], [cluster.put(f"{base}{n:03}", value)])
    lengths = []
    found = []
    async for page in cluster.pages(base, base + "~"):
        lengths.append(len(page))
        found += page
    assert [value.decode() for _, value in found] == values
    assert len(lengths) > 4, "gRPC takes 4 MiB"


async def test_a_deposed_leader_stores_nothing(cluster: EtcdCluster, section: StoreSection) -> None:
    old = await opened(cluster, section)
    await old.load()
    await old.commit([Gpu("a", "g", "old", 1)])
    await cluster.revoke_lease(old._term._lease)  # as if it had been paused for too long
    new = await opened(cluster, section)
    await new.load()
    with pytest.raises(DeposedError, match="another controller leads"):
        await old.commit([Gpu("a", "g", "late", 1)])
    await new.commit([Gpu("a", "h", "new", 1)])
    with pytest.raises(DeposedError):
        await old.commit([Gpu("a", "g", "later", 1)])
    await handed_over(new)
    again = await opened(cluster, section)
    assert {(g.uuid, g.model) for g in (await again.load()).gpus} == {("g", "old"), ("h", "new")}
    await handed_over(again)


async def test_an_attempt_without_an_answer_is_applied_once(
    cluster: EtcdCluster, section: StoreSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(cluster, section)
    await store.load()
    real, lost = cluster.transaction, 0

    async def loses_every_other_answer(*words: object) -> object:
        nonlocal lost
        answer = await real(*words)  # type: ignore[arg-type]
        lost += 1
        if lost % 2:
            raise UnreachableError("no answer")
        return answer

    monkeypatch.setattr(cluster, "transaction", loses_every_other_answer)
    for number in range(5):
        await store.commit([Gpu("a", "g", "M", number), Event(float(number), "k", "s", "")])
    monkeypatch.setattr(cluster, "transaction", real)
    assert [e.time for e in await store.events(9)] == [4.0, 3.0, 2.0, 1.0, 0.0]
    await handed_over(store)


async def test_a_commit_that_etcd_cannot_hold_fails_alone(
    cluster: EtcdCluster, section: StoreSection
) -> None:
    store = await opened(cluster, section)
    await store.load()
    commits = [store.commit([Gpu("a", f"g{n}", "M", n)]) for n in range(5)]
    commits[2:2] = [store.commit([Gpu("a", "huge", "M" * 2_000_000, 1)])]
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert [isinstance(result, RecordError) for result in results] == [
        False, False, True, False, False, False
    ]  # fmt: skip
    await handed_over(store)
    again = await opened(cluster, section)
    assert {g.uuid for g in (await again.load()).gpus} == {f"g{n}" for n in range(5)}
    await handed_over(again)


async def test_old_grants_and_events_are_forgotten(
    cluster: EtcdCluster, section: StoreSection, bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "EVENTS_SLACK", 5)
    store = await opened(cluster, section, ended_kept=3, events_kept=10)
    await store.load()
    bench.node("a", 8000)
    living = bench.granted(compute_percent=1)
    for _ in range(40):
        bench.pool.lifecycle.release(bench.granted(compute_percent=1).grant.id, DONE)
        await store.commit(bench.pool.take_changes())
    assert len(await store.events(100)) <= 20
    await handed_over(store)
    again = await opened(cluster, section, ended_kept=3, events_kept=10)
    loaded = await again.load()
    assert living.grant.id in {grant.id for grant in loaded.grants}
    ended = [grant for grant in loaded.grants if grant.state is GrantState.ENDED]
    assert 3 <= len(ended) <= 4
    assert {s.grant_id for s in loaded.sessions} == {g.id for g in loaded.grants}
    await handed_over(again)


async def test_old_reservations_and_hours_are_forgotten(
    cluster: EtcdCluster, section: StoreSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "USAGE_HOURS", 10)
    monkeypatch.setattr(etcd, "USAGE_DAYS", 10)

    def reservation(number: int, state: ReservationState) -> Reservation:
        ended = float(number) if state is ReservationState.ENDED else None
        return Reservation(
            f"r{number}", OwnerKind.PROJECT, "p", "p", 1, 1, 1, 0, "", 0.0, state, ended=ended
        )

    store = await opened(cluster, section, ended_kept=3)
    await store.load()
    await store.commit([reservation(0, ReservationState.HELD)])
    for number in range(1, 21):
        await store.commit([reservation(number, ReservationState.HELD)])
        await store.commit([reservation(number, ReservationState.ENDED)])
        await store.commit(
            [
                *(UsageRecord(p, number, 1.0, 1.0, 1.0, 0.0) for p in ("a", "b")),
                *(UsageShare("a", p, "", number, 1.0, 1.0, 1.0, 0.0) for p in ("x", "")),
            ]
        )
    await handed_over(store)
    again = await opened(cluster, section, ended_kept=3)
    loaded = await again.load()
    assert [r.id for r in loaded.reservations] == ["r0", "r18", "r19", "r20"]
    # what is too old goes with the write after
    assert sorted({r.hour for r in await again.usage(0, 99)}) == list(range(9, 21))
    assert sorted({r.day for r in await again.shares(0, 99)}) == list(range(9, 21))
    assert [(s.person, s.day) for s in loaded.shares] == [("", 20), ("x", 20)]
    assert await again.shares(0, 99, "b") == []
    later = UsageShare("a", "", "", 25, 1.0, 1.0, 1.0, 0.0)
    await again.commit([UsageRecord("a", 25, 1.0, 1.0, 1.0, 0.0), later])
    for number in range(21, 26):  # what the leader before left is forgotten by the next
        await again.commit([reservation(number, ReservationState.ENDED)])
    await handed_over(again)
    third = await opened(cluster, section, ended_kept=3)
    assert len((await third.load()).reservations) <= 5  # the last one goes with the next write
    assert min(r.hour for r in await third.usage(0, 99)) >= 12
    assert min(r.day for r in await third.shares(0, 99)) >= 12
    await handed_over(third)


async def test_a_newer_format_is_left_alone_and_an_older_records_fields_take_defaults(
    cluster: EtcdCluster, section: StoreSection
) -> None:
    store = await opened(cluster, section)
    await store.load()
    older = '{"node": "a", "uuid": "g", "model": "M", "memory_mib": 5, "of_later": 1}'
    await cluster.transaction([], [cluster.put(store._key(GPUS, ("a", "g")), older)])
    await handed_over(store)
    again = await opened(cluster, section)
    assert list((await again.load()).gpus) == [Gpu("a", "g", "M", 5)]
    await handed_over(again)
    await cluster.transaction([], [cluster.put(f"{section.prefix}format", "99")])
    newer = await opened(cluster, section)
    with pytest.raises(StoreError, match="store format 99, newer than"):
        await newer.load()
    await handed_over(newer)


async def test_nobody_there_is_an_error_in_words() -> None:
    cluster = EtcdCluster(StoreSection(kind="etcd", endpoints=["127.0.0.1:1"]))
    await cluster.open()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1.*set \[store\] endpoints"):
        await cluster.get("/sluice/leader")
    await cluster.close()


async def test_a_second_candidate_waits_and_follows_at_once_when_the_first_resigns(
    cluster: EtcdCluster, section: StoreSection
) -> None:
    first = await elected(cluster, section, "first")
    candidate = Candidate(cluster, section.prefix, 10, LeaderAddress("second:1", "second:2"))
    second = asyncio.create_task(candidate.campaign())
    while candidate.leader is None:
        await asyncio.sleep(0.05)
    assert candidate.leader == LeaderAddress("first:1", "first:2")
    await first.resign()
    term = await asyncio.wait_for(second, 60)
    assert term.is_current
    held = asyncio.create_task(term.hold())
    for _ in range(2):  # it is renewed, again and again
        until = term._until
        async with asyncio.timeout(60):
            while term._until == until:
                await asyncio.sleep(0.05)
    assert term.is_current
    await cluster.revoke_lease(term._lease)
    await asyncio.wait_for(held, 60)
    assert not term.is_current
    with pytest.raises(DeposedError):
        term.check()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_etcd_with_a_user_and_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-subj", "/CN=etcd", "-addext", "subjectAltName=DNS:etcd.test,IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(certificate), "-days", "2"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await make.wait() == 0
    members = etcd_members.EtcdMembers(
        tmp_path / "etcd", 1, "--cert-file", str(certificate), "--key-file", str(key),
        "--listen-metrics-urls", (metrics := f"http://127.0.0.1:{free_port()}"),
        scheme="https",
    )  # fmt: skip
    password = tmp_path / "password"
    password.write_text("secret\n")
    base = {"kind": "etcd", "endpoints": members.endpoints, "ca_file": certificate,
            "tls_name": "etcd.test", "lease_seconds": 2}  # fmt: skip
    try:
        members.start_member(0)
        members.wait_healthy(health=[metrics])
        root = EtcdCluster(StoreSection.model_validate(base))
        await root.open()
        auth = root._client.auth
        await auth.user_add("root", "root")
        await auth.user_grant_role("root", "root")
        await auth.user_add("sluice", "secret")
        await auth.role_add("pool")
        await auth.role_grant_permission("pool", "/sluice/", range_end="/sluice0", perm_type=2)
        await auth.user_grant_role("sluice", "pool")
        await auth.auth_enable()
        with pytest.raises(StoreError, match=r"set \[store\] user and password_file"):
            await root.get("/sluice/leader")
        await root.close()

        section = StoreSection.model_validate({**base, "user": "sluice", "password_file": password})
        cluster = EtcdCluster(section)
        await cluster.open()
        store = await opened(cluster, section)
        await store.load()
        await store.commit([Gpu("a", "g", "M", 1)])
        cluster._client.set_token("no such token")  # as after a restart of etcd
        await store.commit([Gpu("a", "h", "M", 1)])
        with pytest.raises(StoreError, match="role that reads and writes keys under /sluice/"):
            await cluster.get("/other")
        await handed_over(store)
        await cluster.close()
    finally:
        members.close()
