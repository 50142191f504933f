# SPDX-License-Identifier: Apache-2.0
"""Region files have the right size and nobody else's eyes, and only ours are deleted."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.region_file import RegionFiles, open_region

from .domain_texts import OTHER_UUID, UUID

MIB = 1 << 20
QEMU = (64055, 64055)
STRANGER = (65534, 65534)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be made to trust others")


@pytest.fixture
def files(tmp_path: Path) -> RegionFiles:
    (tmp_path / "shm").mkdir()
    return RegionFiles("here", tmp_path / "shm", tmp_path / "run")


def test_a_region_is_made_once_private_and_whole(files: RegionFiles) -> None:
    assert files.ensure(UUID, 16 * MIB)
    found = files.path(UUID).stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (16 * MIB, 0o600)
    files.path(UUID).write_bytes(b"header".ljust(16 * MIB, b"\0"))
    assert not files.ensure(UUID, 16 * MIB)
    assert files.path(UUID).read_bytes()[:6] == b"header"


def test_one_that_the_emulator_made_is_closed_to_others(files: RegionFiles) -> None:
    files.path(UUID).write_bytes(bytes(MIB))
    files.path(UUID).chmod(0o644)
    assert not files.ensure(UUID, MIB)
    assert stat.S_IMODE(files.path(UUID).stat().st_mode) == 0o600


def test_one_of_another_size_is_refused(files: RegionFiles) -> None:
    files.ensure(UUID, MIB)
    with pytest.raises(HypervisorError, match="2 MiB were asked for"):
        files.ensure(UUID, 2 * MIB)
    assert files.path(UUID).stat().st_size == MIB


def test_a_link_in_its_place_is_not_followed(files: RegionFiles, tmp_path: Path) -> None:
    target = tmp_path / "victim"
    target.write_bytes(b"precious")
    files.path(UUID).symlink_to(target)
    with pytest.raises(HypervisorError, match="is a link"):
        files.ensure(UUID, MIB)
    assert target.read_bytes() == b"precious"


def made_by(account: tuple[int, int], path: Path, size: int = MIB) -> Path:
    path.write_bytes(b"secret".ljust(size, b"\0"))
    os.chown(path, *account)
    return path


@needs_root
@pytest.mark.parametrize("in_use", [True, False])
def test_a_strangers_file_is_no_region(files: RegionFiles, in_use: bool) -> None:
    path = made_by(STRANGER, files.path(UUID))
    with pytest.raises(HypervisorError, match=f"{path} belongs to uid 65534.*remove the file"):
        files.ensure(UUID, MIB, QEMU, in_use=in_use)
    assert path.stat().st_uid == STRANGER[0], "nothing was done to it"
    assert files.recorded() == set()
    with pytest.raises(HypervisorError, match="belongs to uid 65534"):
        open_region(path, QEMU)


def test_what_has_another_name_is_no_region(files: RegionFiles, tmp_path: Path) -> None:
    victim = made_by((os.geteuid(), os.getegid()), tmp_path / "victim")
    os.link(victim, files.path(UUID))
    with pytest.raises(HypervisorError, match="another name"):
        files.ensure(UUID, MIB)
    assert victim.read_bytes()[:6] == b"secret"


def _socket_at(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)  # the path itself may be too long for an address
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


@pytest.mark.parametrize(
    ("put", "what"),
    [
        (Path.mkdir, "a folder"),
        (os.mkfifo, "no regular file"),
        (_socket_at, "a socket"),
    ],
    ids=["folder", "pipe", "socket"],
)
def test_what_is_no_file_is_no_region(
    files: RegionFiles, put: Callable[[Path], None], what: str
) -> None:
    put(files.path(UUID))
    with pytest.raises(HypervisorError, match=what):
        files.ensure(UUID, MIB)


@needs_root
def test_what_an_earlier_release_made_is_kept_while_its_vm_runs(files: RegionFiles) -> None:
    path = made_by(QEMU, files.path(UUID))
    record = files.run_folder / "regions" / UUID
    record.parent.mkdir(parents=True)
    record.write_text("here\n7\n")  # as 0.1.0 wrote it
    before = path.stat().st_ino
    assert not files.ensure(UUID, MIB, QEMU)
    assert (path.stat().st_ino, path.read_bytes()[:6]) == (before, b"secret")
    assert files.recorded() == {UUID}
    assert files.ended_since(UUID, 8), "the run that it had noted counts still"
    assert not files.ensure(UUID, MIB, QEMU, in_use=False), "it is written down now"
    assert path.stat().st_ino == before


@needs_root
def test_a_swapped_region_is_made_anew_unless_a_vm_may_map_it(files: RegionFiles) -> None:
    """The emulator's account may remove its own files and make others of that name."""
    files.ensure(UUID, MIB, QEMU)
    with files.path(UUID).open():  # unlike /dev/shm, the test's folder may use an inode again
        files.path(UUID).unlink()
        foreign = made_by(QEMU, files.path(UUID)).stat().st_ino
    with files.path(UUID).open() as watching:
        assert files.ensure(UUID, MIB, QEMU, in_use=False)
        assert files.path(UUID).stat().st_ino != foreign
        assert files.path(UUID).read_bytes()[:6] == bytes(6)
        assert os.fstat(watching.fileno()).st_nlink == 0
    assert not files.ensure(UUID, MIB, QEMU, in_use=False)


@needs_root
def test_a_region_follows_its_emulator_to_another_account(files: RegionFiles) -> None:
    files.ensure(UUID, MIB, QEMU)
    assert not files.ensure(UUID, MIB, (64056, 64056))
    assert files.path(UUID).stat().st_uid == 64056


def test_a_region_has_all_its_memory(files: RegionFiles) -> None:
    files.ensure(UUID, 16 * MIB)
    assert files.path(UUID).stat().st_blocks * 512 >= 16 * MIB
    with files.path(OTHER_UUID).open("wb") as file:  # as QEMU makes it: holes
        file.truncate(16 * MIB)
    files.ensure(OTHER_UUID, 16 * MIB)
    assert files.path(OTHER_UUID).stat().st_blocks * 512 >= 16 * MIB


_FULL = """
import os, subprocess, sys
from pathlib import Path
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.region_file import RegionFiles

shm, run, uuid, other = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(shm)], check=True)
files = RegionFiles("here", shm, run)
files.ensure(uuid, 4 << 20)
try:
    files.ensure(other, 8 << 20)
except HypervisorError as error:
    print(error)
print(sorted(path.name for path in shm.iterdir()), files.recorded() == {uuid})
# one that runs since an earlier release, with holes
with files.path(other).open("wb") as sparse:
    sparse.truncate(8 << 20)
print(files.ensure(other, 8 << 20))
"""


@needs_root
def test_a_full_folder_is_an_error_when_a_region_is_made(tmp_path: Path) -> None:
    """And not a SIGBUS in worker and emulator when they touch what is not there."""
    (tmp_path / "shm").mkdir()
    argv = [str(tmp_path / "shm"), str(tmp_path / "run"), UUID, OTHER_UUID]
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", _FULL, *argv],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    refused, left, adopted = done.stdout.splitlines()
    assert "8 MiB cannot be made" in refused
    assert "No space left" in refused
    assert left == f"['sluice-{UUID}'] True"
    assert adopted == "False"
    assert "has not all of its memory" in done.stderr


def test_removing_leaves_nothing_and_may_be_repeated(files: RegionFiles) -> None:
    files.ensure(UUID, MIB)
    assert files.remove(UUID)
    assert not files.remove(UUID)
    assert files.recorded() == set()
    assert not files.path(UUID).exists()


def test_another_libvirts_regions_are_not_ours(files: RegionFiles) -> None:
    other = RegionFiles("there", files.folder, files.run_folder)
    files.ensure(UUID, MIB)
    other.ensure(OTHER_UUID, MIB)
    assert files.recorded() == {UUID}
    assert other.recorded() == {OTHER_UUID}


def test_one_larger_than_the_folder_is_refused_with_a_way_out(files: RegionFiles) -> None:
    with pytest.raises(HypervisorError, match="--region-mib"):
        files.check_room(UUID, 1 << 60)
    files.check_room(UUID, MIB)


def test_a_run_that_is_over_is_known_to_a_server_that_was_away(tmp_path: Path) -> None:
    files = RegionFiles("one", tmp_path, tmp_path / "run")
    files.ensure(UUID, 1 << 20)
    assert not files.ended_since(UUID, -1), "nothing was seen before"
    files.note_run(UUID, 7)
    files.ensure(UUID, 1 << 20)
    assert files.recorded() == {UUID}
    assert not files.ended_since(UUID, 7)
    assert files.ended_since(UUID, -1)
    assert files.ended_since(UUID, 8)
    files.note_run(UUID, -1)
    assert not files.ended_since(UUID, 8), "off it was before, too"
    RegionFiles("other", tmp_path, tmp_path / "run").note_run(UUID, 1)
    assert files.recorded() == {UUID}, "another libvirt's number says nothing of ours"
    (tmp_path / "run" / "ended").mkdir()
    (tmp_path / "run" / "ended" / UUID).touch()
    assert files.ended_since(UUID, -1), "the hook said so"
    files.note_run(UUID, -1)
    assert not files.ended_since(UUID, -1)
