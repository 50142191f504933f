# SPDX-License-Identifier: Apache-2.0
"""A real controller process whose store is damaged, full or read-only: it says which file and what
to do, answers problem documents rather than 500, loses nothing that it acknowledged, and goes on
by itself when the store works again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import etcd_members
import httpx
import pytest
from control_plane import PYTHON_PATH
from controllers import Controllers, SimulatedServer
from forks import run_command

from sluice.server.sessions.open_session import RefusalError

PATIENCE = 180.0  # on a busy machine; nothing here is decided by it
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")


def run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not run(
        "mount", "-t", "tmpfs", "-o", "size=8m", "sluice-t", str(folder)
    ):
        pytest.skip("cannot mount here")
    try:
        yield folder
    finally:
        run("umount", "--lazy", str(folder))


@contextlib.asynccontextmanager
async def pool(
    folder: Path, database: Path | None = None, store: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Controllers, SimulatedServer]]:
    """A controller, and a server that has joined it."""
    one = Controllers(
        folder, 1, store or {"kind": "sqlite"}, database=database, auth={"local": "operator"}
    )
    server = None
    try:
        await asyncio.to_thread(one.start)
        server = SimulatedServer("node-a", one.grpc)
        await asyncio.wait_for(server.joined(), PATIENCE)
        yield one, server
    finally:
        if server:
            await server.close()
        one.close()


def command(
    controllers: Controllers, folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """The controller's own command, run to its end."""
    return run_command(
        "--config", folder / "controller0.conf", *words, module="sluice.controller",
        environment={**os.environ, "PYTHONPATH": str(PYTHON_PATH)}, timeout=PATIENCE,
    )  # fmt: skip


async def rest(one: Controllers, method: str, path: str, **words: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.request(method, f"http://{one.rest[0]}/v1{path}", **words)


def is_a_problem(answer: httpx.Response, *statuses: int) -> str:
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def writes(number: int) -> list[tuple[str, str, Any]]:
    """One change through each door of REST that stores something."""
    return [
        ("PUT", f"/quotas/project-{number}", {"vgpus": number + 1}),
        ("POST", "/reservations", {"owner_kind": "project", "owner": "p", "memory_mib": 1,
                                   "compute_percent": 1}),
        ("POST", "/sessions", {"gmem_mib": 1, "ratio_percent": 1}),
    ]  # fmt: skip


def fill(disk: Path) -> Path:
    """Takes all the space that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


async def until_nothing_is_stored(one: Controllers) -> httpx.Response:
    """Writes until that fails; returns how it is said."""
    text = "x" * 100
    for number in range(20_000):
        body = {"vgpus": number}
        answer = await rest(one, "PUT", f"/quotas/{text}-{number}", json=body)
        if answer.status_code != 200:
            return answer
    raise AssertionError("the disk does not become full")


async def granted_again(server: SimulatedServer) -> str:
    """A grant, when there are any again."""
    return (await asyncio.wait_for(server.take(), PATIENCE)).grant_id


def books(one: Controllers) -> set[str]:
    return {grant["id"] for grant in one.grants()}


async def is_in_the_books(one: Controllers, server: SimulatedServer) -> None:
    """What the server was given, and nothing else, is granted."""
    for _ in range(int(PATIENCE / 0.2)):
        if await asyncio.to_thread(books, one) == set(server.running):
            return
        await asyncio.sleep(0.2)
    assert await asyncio.to_thread(books, one) == set(server.running)


async def nothing_is_given(one: Controllers, server: SimulatedServer, *words: str) -> None:
    """Every door says so, and says why."""
    for method, path, body in writes(0):
        detail = is_a_problem(await rest(one, method, path, json=body), 503)
        assert all(word in detail for word in words), detail
    part = await asyncio.to_thread(one.part, 0)
    assert words[0] in str(part["store_trouble"])
    for path in ("/grants", "/nodes", "/gpus", "/queue", "/pool"):
        assert (await rest(one, "GET", path)).status_code == 200, "what is known can be read"
    with pytest.raises(RefusalError) as refused:
        await server.take(wait_seconds=0)
    assert all(word in refused.value.message for word in words), refused.value.message


async def test_a_full_disk_is_said_survived_and_recovered_from(tmp_path: Path, disk: Path) -> None:
    async with pool(tmp_path, disk / "controller.db") as (one, server):
        await server.take()
        filler = fill(disk)
        detail = is_a_problem(await until_nothing_is_stored(one), 503)
        name = str(disk / "controller.db")
        assert name in detail
        assert "free space on its disk" in detail
        waiting = asyncio.create_task(server.take())  # SLUICE_WAIT=-1
        await nothing_is_given(one, server, name, "free space")
        assert not waiting.done()
        filler.unlink()
        await asyncio.wait_for(waiting, PATIENCE)
        await granted_again(server)
        for method, path, body in writes(1)[:2]:
            assert (await rest(one, method, path, json=body)).is_success
        await is_in_the_books(one, server)
        one.signal(0, signal.SIGKILL)
        one.start_one(0)
        await is_in_the_books(one, server)
        assert server.ended_by_controller == []
        quotas = {q["project"] for q in (await rest(one, "GET", "/quotas")).json()["quotas"]}
        assert "project-1" in quotas


async def test_killed_on_a_full_disk_nothing_acknowledged_is_lost(
    tmp_path: Path, disk: Path
) -> None:
    async with pool(tmp_path, disk / "controller.db") as (one, server):
        for _ in range(5):
            await server.take()
        filler = fill(disk)
        await until_nothing_is_stored(one)
        one.signal(0, signal.SIGKILL)
        filler.unlink()
        one.start_one(0)
        await is_in_the_books(one, server)
        assert server.ended_by_controller == []


@needs_mounts
def test_a_controller_does_not_start_on_a_read_only_disk(tmp_path: Path, disk: Path) -> None:
    one = Controllers(tmp_path, 1, {"kind": "sqlite"}, database=disk / "controller.db")
    try:
        one.start()
    finally:
        one.close()
    assert run("mount", "-o", "remount,ro", str(disk))
    said = command(one, tmp_path)
    assert said.returncode == 1
    assert str(disk / "controller.db") in said.stderr
    assert "Read-only file system" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to be somebody else"
)
def test_a_store_of_somebody_else_is_an_error_with_its_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 != 0o005:
            if not parent.is_relative_to("/tmp"):
                pytest.skip("the test's folder is not reachable for others")
            parent.chmod(parent.stat().st_mode | 0o055)
    place = tmp_path / "store"
    one = Controllers(tmp_path, 1, {"kind": "sqlite"}, database=place / "controller.db")
    try:
        one.start()
    finally:
        one.close()
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; import asyncio;"
        "from sluice.controller.store.sqlite import SqliteStore;"
        "from sluice.controller.store.store import StoreError;"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: asyncio.run(SqliteStore(Path(sys.argv[2])).load())\n"
        "except StoreError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(PYTHON_PATH), str(place / "controller.db")],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert str(place / "controller.db") in said.stdout, said.stderr
    assert "the controller may write" in said.stdout


def damage(path: Path, offset: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\x5a" * size)


@pytest.mark.parametrize("what", ["header", "a page in the middle", "half of it gone"])
async def test_a_damaged_store_is_refused_and_a_backup_restored(tmp_path: Path, what: str) -> None:
    async with pool(tmp_path) as (one, server):
        for _ in range(30):
            await server.take()
        done = await asyncio.to_thread(command, one, tmp_path, "backup", str(tmp_path / "backup"))
        assert done.returncode == 0, done.stderr
        await server.take()  # after the backup
        one.signal(0, signal.SIGTERM)
        assert (await asyncio.to_thread(command, one, tmp_path, "check")).returncode == 0
        size = one.database.stat().st_size
        if what == "header":
            damage(one.database, 0, 100)
        elif what == "half of it gone":
            os.truncate(one.database, size // 2 // 4096 * 4096)
        else:
            for page in range(2, size // 4096, 3):
                damage(one.database, page * 4096, 4096)
        said = await asyncio.to_thread(command, one, tmp_path)
        assert said.returncode == 1
        assert str(one.database) in said.stderr
        assert "sluice-controller restore FILE" in said.stderr
        assert "Traceback" not in said.stderr
        restored = await asyncio.to_thread(
            command, one, tmp_path, "restore", str(tmp_path / "backup")
        )
        assert restored.returncode == 0, restored.stderr
        one.start_one(0)
        await asyncio.to_thread(one.leader, PATIENCE)
        await is_in_the_books(one, server)
        assert len(server.running) == 31, "what runs goes on, whatever the backup knows"
        assert server.ended_by_controller == []


async def test_a_store_that_is_damaged_while_it_is_used_is_said_and_does_not_end_anything(
    tmp_path: Path,
) -> None:
    async with pool(tmp_path) as (one, server):
        for _ in range(20):
            await server.take()
        assert (await rest(one, "GET", "/events")).status_code == 200
        for part in (one.database, one.database.with_name(one.database.name + "-wal")):
            damage(part, 0, part.stat().st_size)
        for _ in range(50):
            answers = [await rest(one, m, p, json=body) for m, p, body in writes(3)]
            assert all(answer.status_code != 500 for answer in answers), answers
            if any(answer.status_code == 503 for answer in answers):
                break
        for path in ("/events", "/usage", "/audit"):
            answer = await rest(one, "GET", path)
            assert answer.status_code in (200, 403, 503), answer.text
        assert (await rest(one, "GET", "/grants")).status_code == 200
        assert server.ended_by_controller == []
        assert server.link.is_connected


# etcd


@pytest.mark.skipif(not etcd_members.is_there(), reason="etcd is not installed")
async def test_etcd_without_space_is_said_and_recovered_from(tmp_path: Path) -> None:
    def ask(endpoint: str, call: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{endpoint}/v3/{call}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    options = ("--quota-backend-bytes", str(3 << 20))
    with etcd_members.etcd_members(tmp_path / "etcd", 1, *options) as member:
        endpoint = member.endpoints[0]
        store = {"kind": "etcd", "endpoints": endpoint}
        async with pool(tmp_path, store=store) as (one, server):
            await server.take()

            def take_space() -> None:
                value = base64.b64encode(bytes(100_000)).decode()
                with contextlib.suppress(OSError):
                    for number in range(100):
                        key = base64.b64encode(f"/filler/{number}".encode()).decode()
                        ask(endpoint, "kv/put", key=key, value=value)

            await asyncio.to_thread(take_space)
            detail = is_a_problem(await until_nothing_is_stored(one), 503)
            assert endpoint in detail
            assert "etcdctl defrag" in detail
            waiting = asyncio.create_task(server.take())
            await nothing_is_given(one, server, endpoint, "etcdctl")
            assert not waiting.done()

            def give_space() -> None:
                first, end = (base64.b64encode(k).decode() for k in (b"/filler/", b"/filler0"))
                gone = ask(endpoint, "kv/deleterange", key=first, range_end=end)
                revision = gone["header"]["revision"]
                ask(endpoint, "kv/compaction", revision=revision, physical=True)
                ask(endpoint, "maintenance/defragment")
                for alarm in ask(endpoint, "maintenance/alarm", action="GET")["alarms"]:
                    ask(endpoint, "maintenance/alarm", action="DEACTIVATE", **alarm)

            await asyncio.to_thread(give_space)
            await asyncio.wait_for(waiting, PATIENCE)
            await granted_again(server)
            await is_in_the_books(one, server)
            one.signal(0, signal.SIGKILL)
            one.start_one(0)
            await asyncio.to_thread(one.leader, PATIENCE)
            await is_in_the_books(one, server)
            assert server.ended_by_controller == []
