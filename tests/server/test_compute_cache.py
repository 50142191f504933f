# SPDX-License-Identifier: Apache-2.0
"""What drivers have compiled: given to a worker, taken back, kept apart by tenant and bounded.

What the driver does with its folder was measured on a card (docs/decisions/0013); here are the
folder's rights, what a worker that was taken over may have left in it, and what became of it on
the disk.
"""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import pytest
from control_plane import Client, native_worker, running, wait_for
from folders import let_everybody_in

from sluice.server.workers.compute_cache import MOST_ENTRIES, ComputeCache

UID = os.geteuid() or 70001
CODE = b"\x41\0\0\0code of a kernel"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user: as root")


def cache_of(folder: Path, limit: int = 1 << 20) -> ComputeCache:
    return ComputeCache(folder / "cache", limit)


def place_of(cache: ComputeCache, worker: str) -> Path:
    return Path(cache.environment(worker)["CUDA_CACHE_PATH"])


def compile_in(place: Path, name: str, code: bytes = CODE) -> None:
    """As the driver does."""
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(code)


def found_in(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


async def session(cache: ComputeCache, worker: str, tenant: str, **compiled: bytes) -> list[str]:
    """A session from its start to its end; returns what it found."""
    await cache.give(worker, tenant, UID)
    place = place_of(cache, worker)
    found = sorted(found_in(place))
    for name, code in compiled.items():
        compile_in(place, f"{name[0]}/{name[1]}/{name[2:]}", code)
    cache.take_back(worker, tenant)
    await cache.settled()
    assert not place.exists()
    return found


async def test_what_one_session_compiled_the_next_of_its_tenant_finds(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    assert await session(cache, "w1", "project a", a1beef=CODE, index=b"not an entry") == []
    assert await session(cache, "w2", "project a", c0ffee=CODE) == ["a/1/beef"]
    assert await session(cache, "w3", "project a") == ["a/1/beef", "c/0/ffee"]
    assert await session(cache, "w4", "project b") == []
    # and a later server
    assert await session(cache_of(tmp_path), "w5", "project a") == ["a/1/beef", "c/0/ffee"]


@needs_root
async def test_the_folder_is_the_workers_own_and_nobody_elses(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    await session(cache, "w1", "tenant", a1beef=CODE)
    await cache.give("w2", "tenant", UID)
    place = place_of(cache, "w2")
    for path in (place, place / "a", place / "a" / "1", place / "a" / "1" / "beef"):
        assert path.stat().st_uid == UID
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    # passed through, and not read: the names of other workers are not to be had
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o711
    assert stat.S_IMODE((place.parents[1] / "tenants").stat().st_mode) == 0o700
    cache.take_back("w2", "tenant")
    # at once, before the user's number is anybody else's
    assert place.stat().st_uid == os.geteuid()
    await cache.settled()


async def test_only_plain_files_named_as_the_driver_names_them_are_kept(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("of another")
    await cache.give("w1", "tenant", UID)
    place = place_of(cache, "w1")
    compile_in(place, "a/1/beef")
    (place / "a" / "1" / "feed").symlink_to(secret)
    os.link(secret, place / "a" / "1" / "face")
    os.mkfifo(place / "a" / "1" / "deed")
    (place / "a" / "1" / "dead").mkdir()
    (place / "a" / "1" / "fade").touch()
    (place / "a" / "2").symlink_to(tmp_path)
    (place / "b").symlink_to(tmp_path)
    for name in ("a/3/BEEF", "a/3/../x", "a/3/be.ef", "g/1/beef", "a/3/" + "f" * 63):
        compile_in(place, name)
    cache.take_back("w1", "tenant")
    await cache.settled()
    assert await session(cache, "w2", "tenant") == ["a/1/beef"]
    assert secret.read_text() == "of another"


async def test_an_entry_that_is_kept_is_not_replaced(tmp_path: Path) -> None:
    """A worker that was taken over changes what it was given, and nobody's else."""
    cache = cache_of(tmp_path)
    await session(cache, "w1", "tenant", a1beef=CODE)
    await session(cache, "w2", "tenant", a1beef=b"something else")
    await cache.give("w3", "tenant", UID)
    assert found_in(place_of(cache, "w3")) == {"a/1/beef": CODE}


async def test_what_was_damaged_or_lies_at_another_place_is_given_to_nobody(tmp_path: Path) -> None:
    """Whoever did it: a disk, a crash, somebody who exchanged files of tenants or of keys."""
    cache = cache_of(tmp_path)
    await session(cache, "w1", "a", a1beef=CODE, b2beef=CODE + b"other", c3beef=CODE)
    await session(cache, "w2", "b", d4beef=b"of b's")
    kept = {p.relative_to(tmp_path).parts[3]: p for p in (tmp_path / "cache").rglob("*.*")}
    kept["a"].write_bytes(CODE[:-1] + b"!")
    kept["b"].rename(kept["b"].with_name("feed" + kept["b"].suffix))
    kept["c"].unlink()
    elsewhere = kept["c"].parents[2] / "d" / "4"
    elsewhere.mkdir(parents=True)
    kept["d"].rename(elsewhere / kept["d"].name)
    assert await session(cache, "w3", "a") == []
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []
    # and it is kept anew when somebody has compiled it again
    assert await session(cache, "w4", "a", a1beef=CODE) == []
    assert await session(cache, "w5", "a") == ["a/1/beef"]


async def test_what_an_older_release_kept_is_removed(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    await session(cache, "w1", "tenant", a1beef=CODE)
    (kept,) = (tmp_path / "cache").rglob("beef.*")
    kept.rename(kept.with_name("feed"))
    kept.with_name("beef.new").write_bytes(b"a part")
    assert await session(cache_of(tmp_path), "w2", "tenant") == []
    assert list(kept.parent.iterdir()) == []


@needs_root
@pytest.mark.skipif(native_worker() is None, reason="the native part is not built")
def test_a_worker_finds_what_its_tenant_left_and_nothing_else(tmp_path: Path) -> None:
    """Real sessions, of two users: what the driver would write, the worker's user writes here."""
    let_everybody_in(tmp_path)
    with running(tmp_path) as plane:

        def place_of_next(uid: int) -> tuple[Client, Path, int]:
            client = plane.client(uid=uid)
            assert client.first["status"] == 0, client.first
            [worker] = plane.session_worker_pids()
            variables = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
            [place] = (v[16:] for v in variables if v.startswith(b"CUDA_CACHE_PATH="))
            return client, Path(os.fsdecode(place)), Path(f"/proc/{worker}").stat().st_uid

        def end(client: Client, place: Path) -> None:
            client.kill()
            wait_for(lambda: not plane.grants() and not place.exists(), message="it to be kept")

        client, place, worker_uid = place_of_next(4711)
        assert worker_uid != 0
        write = "mkdir -p a/1; printf code >a/1/beef; test ! -r .. && test ! -r ../../tenants"
        subprocess.run(["sh", "-ec", write], cwd=place, user=worker_uid, group=65534, check=True)
        end(client, place)
        client, place, worker_uid = place_of_next(4711)
        assert found_in(place) == {"a/1/beef": b"code"}
        assert (place / "a" / "1" / "beef").stat().st_uid == worker_uid
        end(client, place)
        client, place, _ = place_of_next(4712)
        assert found_in(place) == {}
        end(client, place)
        [kept] = (plane.folder / "state" / "compute-cache" / "tenants").rglob("beef.*")
        kept.write_bytes(b"evil")
        client, place, _ = place_of_next(4711)
        assert found_in(place) == {}
        assert "was damaged, and is removed" in plane.log("server")
        end(client, place)


async def test_room_is_bounded_and_who_holds_most_loses_the_oldest(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, limit=4000)
    for number in range(3):
        await session(cache, f"a{number}", "large", **{f"a{number}00": b"x" * 900})
    await session(cache, "b", "small", b100=b"y" * 900)
    tenants = tmp_path / "cache" / "tenants"
    assert sum(p.stat().st_size for p in tenants.rglob("*") if p.is_file()) == 3600
    await session(cache, "c", "small", b200=b"y" * 900)
    assert sum(p.stat().st_size for p in tenants.rglob("*") if p.is_file()) <= 4000
    await cache.give("last", "small", UID)
    assert sorted(found_in(place_of(cache, "last"))) == ["b/2/00"]  # a quarter is a session's
    await cache.give("other", "large", UID)
    assert sorted(found_in(place_of(cache, "other"))) == ["a/2/00"]


async def test_one_session_cannot_fill_it(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, limit=4000)
    many = {f"a{n % 10}{n:06x}": b"x" * 100 for n in range(100)}
    await session(cache, "w1", "tenant", **many, b1ffff=b"x" * 5000)
    kept = [p for p in (tmp_path / "cache" / "tenants").rglob("*") if p.is_file()]
    assert len(kept) == 10
    assert int(cache.environment("w1")["CUDA_CACHE_MAXSIZE"]) == 1000
    assert MOST_ENTRIES * 4096 <= 1 << 30  # what is looked at is bounded, too


async def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    place_of(cache, "w1").write_text("in the way")
    await cache.give("w1", "tenant", UID)
    cache.take_back("w1", "tenant")
    await cache.settled()


async def test_the_folder_that_the_driver_made_is_used_and_goes_with_its_worker(
    tmp_path: Path,
) -> None:
    """A worker that waits ready has begun its driver, which makes the folder at once."""
    cache = cache_of(tmp_path)
    await session(cache, "w1", "tenant", a1beef=CODE)
    for worker in ("w2", "w3"):
        place_of(cache, worker).mkdir(mode=0o700)
    await cache.give("w2", "tenant", UID)
    assert list(found_in(place_of(cache, "w2"))) == ["a/1/beef"]
    for worker in ("w2", "w3"):
        cache.forget(worker)
    assert place_of(cache, "w2").exists()
    assert not place_of(cache, "w3").exists()


async def test_sessions_begin_while_others_end(tmp_path: Path) -> None:
    """What makes room for others while it is copied is not given, and that is all."""
    cache = cache_of(tmp_path, limit=40_000)

    async def one(number: int) -> None:
        for again in range(5):
            name = f"{number:x}{again}{again:06x}"
            await session(cache, f"w{number}-{again}", "tenant", **{name: b"x" * 4000})

    await asyncio.gather(*(one(number) for number in range(8)))
    kept = [p for p in (tmp_path / "cache" / "tenants").rglob("*") if p.is_file()]
    assert kept
    assert sum(p.stat().st_size for p in kept) <= 40_000
    assert not list((tmp_path / "cache" / "workers").iterdir())


async def test_what_ended_without_a_server_is_removed(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    for worker in ("w1", "w2"):
        await cache.give(worker, "tenant", UID)
    later = cache_of(tmp_path)
    later.remove_others(["w2"])
    assert [p.name for p in place_of(later, "w2").parent.iterdir()] == ["w2"]
