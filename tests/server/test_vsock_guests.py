# SPDX-License-Identifier: Apache-2.0
"""The vsock socket of a domain, with a stand-in for its device's process: its bookkeeping.

The device itself, guests and sessions are in tests/withstand/test_vsock_guests.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from sluice.hypervisor.ports import VsockPlace
from sluice.protocol.frames import OpenFlags
from sluice.server.guests.vsock_backends import LOG_MIB
from sluice.server.sessions.open_session import (
    OpenSession,
    RefusalError,
    pack_open_session,
    pack_view,
    unpack_open_reply,
)
from sluice.server.sessions.records import Requester

from .vsock_guests import (
    DEVICE,
    OWNER,
    REQUEST,
    UUID,
    FakeManager,
    guests_of,
    record_in,
    rung,
    sockets_in,
)


@pytest.fixture
def program(short_path: Path) -> Path:
    path = short_path / "device-program"
    path.write_text(DEVICE.format(python=sys.executable))
    path.chmod(0o755)
    return path


async def answer(path: Path, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(sent)
    async with asyncio.timeout(20):
        found = await reader.read()
    writer.close()
    return found


def test_only_its_device_is_heard(short_path: Path, program: Path) -> None:
    async def check() -> None:
        guests = guests_of(short_path, program)
        await guests.add(OWNER, VsockPlace(), REQUEST)
        sockets = sockets_in(short_path)
        mode = sockets.session_port.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert mode & 0o077 == 0
        status, _, said = unpack_open_reply(await answer(sockets.device, bytes(512)))
        assert status == 1
        assert "a session begins with OpenSession" in said
        assert await answer(sockets.session_port, b"") == b""
        await guests.remove(UUID, "it is over")
        assert not sockets.folder.exists()

    asyncio.run(check())


def test_a_guest_that_looks_is_shown_and_no_session_opens(short_path: Path, program: Path) -> None:
    class Shows(FakeManager):
        looked: list[tuple[int, str, int]] = []  # noqa: RUF012

        async def view(self, asked: OpenSession, requester: Requester) -> str:
            if asked.request.memory_mib == 32:
                raise RefusalError(2, "not so much")
            self.looked.append((asked.request.memory_mib, requester.domain_uuid, requester.own_pid))
            return '{"vgpus":[]}'

    async def check() -> None:
        guests = guests_of(short_path, program, Shows())
        await guests.add(OWNER, VsockPlace(), REQUEST)
        device = sockets_in(short_path).device
        flags = OpenFlags.VIEW | OpenFlags.HOLD_JOB
        said = await answer(device, pack_open_session(flags=flags, pid=7))
        assert said == pack_view('{"vgpus":[]}')
        assert Shows.looked == [(REQUEST.memory_mib, UUID, 7)], "bounded by its domain's"
        said = await answer(device, pack_open_session(flags=flags, gmem_mib=32))
        assert unpack_open_reply(said) == (2, 0, "not so much")
        said = await answer(device, pack_open_session(flags=flags, gmem_mib=65))
        assert "domain guest was given 64" in unpack_open_reply(said)[2]
        await guests.remove(UUID, "it is over")

    asyncio.run(check())


def test_who_waits_hears_of_the_end_before_its_device_goes(short_path: Path, program: Path) -> None:
    """The stand-in says a last word for its guest once it has noticed, which may be late."""
    said = program.read_text().replace("sink.shutdown", "sink.sendall(b'heard'); sink.shutdown")
    program.write_text(said)
    opens, closed = asyncio.Event(), asyncio.Event()

    class Never(FakeManager):
        async def open(self, _request: object, _tell: object) -> None:
            opens.set()
            try:
                await asyncio.Event().wait()
            finally:
                closed.set()

    async def check() -> None:
        guests = guests_of(short_path, program, Never())
        await guests.add(OWNER, VsockPlace(), REQUEST)
        reader, writer = await asyncio.open_unix_connection(str(sockets_in(short_path).device))
        writer.write(pack_open_session(pid=7))
        await opens.wait()
        pid = int(record_in(short_path).read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        removing = asyncio.create_task(guests.remove(UUID, "it is over"))
        await closed.wait()
        await asyncio.sleep(0.1)  # for one that does not wait to kill it
        os.kill(pid, signal.SIGCONT)
        assert await reader.read() == b"heard"
        writer.close()
        await removing

    asyncio.run(check())


def test_a_device_that_ends_is_started_again_and_one_that_runs_is_found(
    short_path: Path, program: Path
) -> None:
    def pid() -> int:
        return int(record_in(short_path).read_text().split()[0])

    async def check() -> None:
        first = guests_of(short_path, program)
        await first.add(OWNER, VsockPlace(), REQUEST)
        running = pid()
        await first.close()
        second = guests_of(short_path, program)
        await second.add(OWNER, VsockPlace(), REQUEST)
        assert pid() == running
        os.kill(running, 9)
        async with asyncio.timeout(30):
            while pid() == running or not sockets_in(short_path).device.exists():
                await asyncio.sleep(0.05)
            while not await answer(sockets_in(short_path).device, bytes(512)):
                await asyncio.sleep(0.05)
        await second.remove(UUID, "it is over")

    asyncio.run(check())


def test_a_guest_fills_no_disk_through_its_devices_log(short_path: Path, program: Path) -> None:
    program.write_text(
        DEVICE.format(python=sys.executable).replace(
            "while True:\n",
            "try:\n    while True: sys.stderr.buffer.raw.write(bytes(1 << 20))\n"
            "except OSError: pass\nwhile True:\n",
            1,
        )
    )

    async def check() -> None:
        guests = guests_of(short_path, program)
        await guests.add(OWNER, VsockPlace(), REQUEST)
        [path] = (short_path / "log" / "vsock").iterdir()
        async with asyncio.timeout(30):
            while not await answer(sockets_in(short_path).device, bytes(512)):
                await asyncio.sleep(0.05)
        assert path.stat().st_size == LOG_MIB << 20
        await guests.remove(UUID, "it is over")
        await guests.add(OWNER, VsockPlace(), REQUEST)
        assert path.with_suffix(".log.1").stat().st_size == LOG_MIB << 20
        await guests.remove(UUID, "it is over")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("no-such-program", "is not on this host"),
        ("/bin/false", "has ended; its log"),
        ("/bin/cat", r"has ended \(.*cat --help.*\); its log"),
    ],
)
def test_a_device_without_a_process_is_said(short_path: Path, name: str, wanted: str) -> None:
    async def check() -> None:
        guests = guests_of(short_path, name)
        with pytest.raises(RuntimeError, match=wanted):
            await guests.add(OWNER, VsockPlace(), REQUEST)
        await guests.remove(UUID, "it is over")

    asyncio.run(check())


def test_a_kernel_without_vhost_vsock_is_said(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.server.guests.vsock.VHOST_VSOCK", short_path / "none")

    async def check() -> None:
        guests = guests_of(short_path, "")
        with pytest.raises(RuntimeError, match="modprobe vhost_vsock"):
            await guests.add(OWNER, VsockPlace(0x53400001), REQUEST)
        await guests.close()

    asyncio.run(check())


def test_a_bell_is_its_guests_and_nobody_elses(short_path: Path, program: Path) -> None:
    """The process of a device connects to the bell as it does to the other socket."""
    program.write_text(program.read_text().replace('"_9960"', '"_9961"'))

    async def check() -> None:
        guests = guests_of(short_path, program)
        await guests.add(OWNER, VsockPlace(), REQUEST)
        rung.taken.clear()
        assert await answer(sockets_in(short_path).bell, b"") == b""
        assert not rung.taken
        _, writer = await asyncio.open_unix_connection(str(sockets_in(short_path).device))
        writer.write(b"x")
        async with asyncio.timeout(20):
            while not rung.taken:
                await asyncio.sleep(0.01)
        [(uuid, connected)] = rung.taken
        assert uuid == UUID
        assert await asyncio.get_running_loop().sock_recv(connected, 8) == b"x"
        connected.close()
        writer.close()
        await guests.remove(UUID, "it is over")

    asyncio.run(check())
