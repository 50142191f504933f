# SPDX-License-Identifier: Apache-2.0
"""What QEMU's account puts into its own folders moves nothing of root's and ends no process."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.hypervisor.ports import RegionOwner, VsockPlace
from sluice.hypervisor.vsock_devices import UserSockets
from sluice.server.guests.foreign_folders import given_folder, given_socket, own_folder
from sluice.server.guests.ivshmem_doorbells import IvshmemDoorbells
from sluice.server.listeners.peers import start_time_of

from .vsock_guests import DEVICE, OWNER, REQUEST, UUID, guests_of, record_in, sockets_in

QEMU = (65534, 65534)
PLACE = VsockPlace(account=QEMU)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")


@pytest.fixture(autouse=True)
def reachable(short_path: Path) -> None:
    """QEMU's account comes to its folder, as below /run."""
    short_path.chmod(0o755)


@pytest.fixture
def program(short_path: Path) -> Path:
    python = shutil.which("python3", path="/usr/bin:/bin")  # this one may lie in root's home
    if python is None:
        pytest.skip("no python3 that every account may run")
    path = short_path / "device-program"
    path.write_text(DEVICE.format(python=python))
    path.chmod(0o755)
    return path


@pytest.fixture
def victim(short_path: Path) -> Path:
    """A file of root's that is to stay as it is."""
    path = short_path / "victim"
    path.write_text("precious")
    path.chmod(0o640)
    return path


def is_untouched(victim: Path) -> bool:
    found = victim.stat()
    mode = stat.S_IMODE(found.st_mode)
    return (victim.read_text(), mode, found.st_uid, found.st_gid) == ("precious", 0o640, 0, 0)


def as_qemu(path: Path) -> None:
    os.chown(path, *QEMU, follow_symlinks=False)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def owner_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return None


async def serve_and_end(folder: Path, program: Path) -> int:
    """A domain comes and goes; returns the process that its device had."""
    guests = guests_of(folder, program)
    await guests.add(OWNER, PLACE, REQUEST)
    pid = int(record_in(folder).read_text().split()[0])
    assert owner_of(pid) == QEMU[0]
    await guests.remove(UUID, "it is over")
    return pid


def qemus_folder(folder: Path) -> UserSockets:
    sockets = sockets_in(folder)
    own_folder(sockets.folder.parent, 0o755)
    given_folder(sockets.folder, QEMU)
    return sockets


@pytest.mark.parametrize("name", ["backend", "device", "guest", "guest_9960", "guest_9961"])
def test_a_link_in_its_folder_is_not_followed(
    short_path: Path, program: Path, victim: Path, name: str
) -> None:
    link = qemus_folder(short_path).folder / name
    link.symlink_to(victim)
    as_qemu(link)
    asyncio.run(serve_and_end(short_path, program))
    assert is_untouched(victim)


def test_a_record_that_it_wrote_ends_nobody(
    short_path: Path, program: Path, bystander: subprocess.Popen[bytes]
) -> None:
    record = qemus_folder(short_path).folder / "backend"
    record.write_text(f"{bystander.pid} {start_time_of(bystander.pid)}\n")
    as_qemu(record)
    assert asyncio.run(serve_and_end(short_path, program)) != bystander.pid
    assert bystander.poll() is None


def test_a_record_that_it_moved_ends_nobody(
    short_path: Path, program: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """Of another domain, which root wrote, or with a second name."""
    folder = qemus_folder(short_path).folder
    for name in ("backend", "elsewhere"):
        (folder / name).write_text(f"{bystander.pid} {start_time_of(bystander.pid)}\n")
    assert asyncio.run(serve_and_end(short_path, program)) != bystander.pid
    assert bystander.poll() is None


def test_a_process_of_the_release_before_is_found(short_path: Path, program: Path) -> None:
    async def check() -> None:
        first = guests_of(short_path, program)
        await first.add(OWNER, PLACE, REQUEST)
        running = record_in(short_path).read_text()
        await first.close()
        record_in(short_path).rename(sockets_in(short_path).folder / "backend")  # 0.1.0's place
        second = guests_of(short_path, program)
        await second.add(OWNER, PLACE, REQUEST)
        assert record_in(short_path).read_text() == running
        await second.remove(UUID, "it is over")
        assert owner_of(int(running.split()[0])) is None
        assert not record_in(short_path).exists()

    asyncio.run(check())


#: Puts a link to a file of root's into the socket's place, as often as it can.
SWAPPER = """
import os, sys
path, victim, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
print("swapping", flush=True)
while True:
    try:
        os.symlink(victim, path + ".link")
        os.rename(path + ".link", path)
    except OSError:
        pass
"""


def test_a_door_that_is_swapped_while_it_is_made_changes_nothing(
    short_path: Path, victim: Path
) -> None:
    path = qemus_folder(short_path).session_port
    argv = [sys.executable, "-c", SWAPPER, str(path), str(victim), str(QEMU[0])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == b"swapping\n"
        until = time.monotonic() + 3
        while time.monotonic() < until:
            given_socket(path, QEMU, 1).close()
        swapper.kill()
    assert is_untouched(victim)


def test_a_doors_folder_is_taken_back_from_its_emulators_account(
    short_path: Path, victim: Path
) -> None:
    """QEMU only has to reach it; 0.1.0 gave the whole folder away."""
    path = short_path / "run" / "ivshmem" / UUID / "server"
    own_folder(path.parent.parent, 0o755)
    given_folder(path.parent, QEMU)
    path.symlink_to(victim)
    as_qemu(path)

    async def check() -> None:
        doorbells = IvshmemDoorbells(lambda uuid, descriptor: None)
        await doorbells.add(RegionOwner(UUID, "guest", account=QEMU), victim, path)
        folder = path.parent.stat()
        assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (0, 0o711)
        found = path.lstat()
        assert stat.S_ISSOCK(found.st_mode)
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (QEMU[0], 0o600)
        assert await asyncio.to_thread(connect_as_qemu, path) == 0
        await doorbells.remove(UUID, path)

    asyncio.run(check())
    assert is_untouched(victim)


def connect_as_qemu(path: Path) -> int:
    code = (
        "import os, socket, sys\n"
        f"os.setresgid(*[{QEMU[1]}] * 3); os.setresuid(*[{QEMU[0]}] * 3)\n"
        "socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode


def test_a_folder_behind_a_link_is_refused(short_path: Path) -> None:
    (short_path / "elsewhere").mkdir()
    (short_path / "folder").symlink_to(short_path / "elsewhere")
    with pytest.raises(OSError, match="Not a directory"):
        given_folder(short_path / "folder", QEMU)
    assert (short_path / "elsewhere").stat().st_uid == 0
