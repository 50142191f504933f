# SPDX-License-Identifier: Apache-2.0
"""Region files have the right size and nobody else's eyes, and only ours are deleted."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.region_file import RegionFiles

from .domain_texts import OTHER_UUID, UUID

MIB = 1 << 20


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
    with pytest.raises(OSError, match="symbolic"):
        files.ensure(UUID, MIB)
    assert target.read_bytes() == b"precious"


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
