# SPDX-License-Identifier: Apache-2.0
"""Code images are kept by the hash of what was received, per project, and the oldest ones go."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from control_plane import native_worker, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.server.sessions.code_cache import CodeCache, project_of
from sluice.server.sessions.records import Requester

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "programs" / "module_launch"
SOURCE = Path(__file__).resolve().parents[1] / "programs" / "module_launch.cu"


def name_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def sealed(content: bytes, seals: int = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_GROW)
    return descriptor


def keep(cache: CodeCache, project: str, *contents: bytes) -> None:
    async def run() -> None:
        for content in contents:
            cache.keep(project, sealed(content))
            await cache.settled()

    asyncio.run(run())


def kept(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("*/*")}


def age(folder: Path, *names: str) -> None:
    """Makes the images this old, the first one oldest."""
    for seconds, name in enumerate(names):
        os.utime(folder / name, (1000 + seconds, 1000 + seconds))


def test_an_image_is_named_by_its_content_and_read_by_its_project_only(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "code", 1 << 20)
    keep(cache, "uid-1", b"one" * 1000)
    assert kept(tmp_path / "code") == {f"uid-1/{name_of(b'one' * 1000)}"}
    assert (tmp_path / "code").stat().st_mode & 0o777 == 0o700, "no way in by path"
    folders = dict(cache.open_folders("uid-2"))
    assert {name: str(Path(f"/proc/self/fd/{fd}").readlink()) for name, fd in folders.items()} == {
        "code": str(tmp_path / "code" / "uid-2"),
        "shared_code": str(tmp_path / "code" / "shared"),
    }
    for descriptor in folders.values():
        os.close(descriptor)


def test_what_can_still_change_is_refused(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "code", 1 << 20)

    async def run() -> None:
        cache.keep("uid-1", sealed(b"loose" * 100, seals=0))
        plain = os.open(tmp_path / "plain", os.O_RDWR | os.O_CREAT)
        os.write(plain, b"plain" * 100)
        cache.keep("uid-1", plain)
        await cache.settled()

    asyncio.run(run())
    assert kept(tmp_path / "code") == set()


def test_the_least_recently_used_image_goes_first(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    cache = CodeCache(folder, 3000)
    a, b, c, d = (bytes([i]) * 1000 for i in range(4))
    keep(cache, "p", a, b, c)
    names = [f"p/{name_of(x)}" for x in (a, b, c)]
    age(folder, *names)
    cache.used("p", name_of(a))
    keep(cache, "p", d)
    assert kept(folder) == {names[0], names[2], f"p/{name_of(d)}"}


def test_who_holds_most_makes_room(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    cache = CodeCache(folder, 3000)
    small, others = b"s" * 500, [bytes([i]) * 1000 for i in range(10)]
    keep(cache, "small", small)
    age(folder, f"small/{name_of(small)}")
    keep(cache, "greedy", *others)
    assert f"small/{name_of(small)}" in kept(folder), "a neighbour's flood costs it nothing"
    assert sum(path.stat().st_size for path in folder.glob("*/*")) <= 3000


def test_what_is_too_large_or_shared_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    cache = CodeCache(folder, 3000)
    (folder / "shared" / name_of(b"x")).write_bytes(b"x" * 5000)
    keep(cache, "p", b"large" * 1000, b"right" * 200)
    assert kept(folder) == {f"shared/{name_of(b'x')}", f"p/{name_of(b'right' * 200)}"}


def test_a_worker_cannot_name_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    cache = CodeCache(folder, 3000)
    keep(cache, "other", b"x" * 10)
    for name in ("../other/" + name_of(b"x" * 10), "", "..", name_of(b"y").upper()):
        cache.damaged("p", name)
        cache.used("p", name)
    assert len(kept(folder)) == 1
    cache.damaged("other", name_of(b"x" * 10))
    assert kept(folder) == set()


def test_a_project_is_what_the_host_knows() -> None:
    assert project_of(Requester("shm", "h", "p", uid=7)) == "uid-7"
    assert project_of(Requester("tcp", "10.0.0.3", "p", uid=7)) == "net-10.0.0.3"
    assert project_of(Requester("tcp", "fe80::1%eth0/../x", "p")) == "net-fe80::1_eth0_.._x"
    assert project_of(Requester("ivshmem", "vm", "p", domain_uuid="12-34")) == "domain-12-34"


def built() -> bool:
    try:
        find_native("libcuda.so.1")
    except NativeFileMissing:
        return False
    return native_worker() is not None and PROGRAM.exists()


@pytest.mark.skipif(not built(), reason="the native part or the programs are not built")
def test_a_module_travels_once(tmp_path: Path) -> None:
    """Also when the file was damaged or lies in the shared folder; a small module always does."""
    text = SOURCE.read_text().partition('R"(')[2].partition(')"')[0]
    ptx = tmp_path / "large.ptx"
    ptx.write_text(text + "// padding\n" * 20_000)
    content = ptx.read_bytes() + b"\0"
    cache = tmp_path / "code"
    mine = cache / "net-127.0.0.1" / name_of(content)
    (tmp_path / "plane").mkdir()
    with running(tmp_path / "plane", server={"code_cache_dir": cache}) as plane:

        def run() -> int:
            """Bytes that the client sent."""
            done = subprocess.run(
                [PROGRAM, "3000", ptx],
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
                    "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
                    "SLUICE_CHANNEL": "tcp",
                    "SLUICE_STATS": "1",
                    "SLUICE_GMEM": "64",
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            sent = re.search(r"(\d+) bytes out", done.stderr)
            assert sent, done.stderr
            return int(sent[1])

        assert run() > len(content)
        wait_for(mine.exists)
        assert mine.read_bytes() == content
        os.utime(mine, (1000, 1000))
        assert run() < 60_000
        wait_for(lambda: mine.stat().st_mtime > 1000, message="its use was noted")
        mine.write_bytes(content[:-1] + b"\1")
        assert run() > len(content), "a damaged file is as good as none"

        def is_whole() -> bool:
            try:
                return mine.read_bytes() == content
            except FileNotFoundError:  # the damaged one is taken away first
                return False

        wait_for(is_whole)
        mine.rename(cache / "shared" / mine.name)
        assert run() < 60_000
        assert "damaged" in plane.log("server")
