# SPDX-License-Identifier: Apache-2.0
"""A machine that cannot run Sluice is told why, and what to do."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from sluice.guest_runtime.findings import Verdict
from sluice.guest_runtime.machine_check import (
    check_clock,
    check_group,
    check_limits,
    check_machine,
    check_shared_memory,
    check_system,
)
from tests.support.findings_of import bad, noted, only_bad

GOOD = ("Linux", "x86_64", "6.1.0-18-amd64", ("glibc", "2.36"))


def test_this_machine_runs_the_tests_so_it_is_good() -> None:
    assert not bad(check_machine())


def test_a_good_system_is_good() -> None:
    assert not bad(check_system(*GOOD))


@pytest.mark.parametrize(
    ("system", "machine", "kernel", "libc", "word"),
    [
        ("Linux", "aarch64", "6.1.0", ("glibc", "2.36"), "x86-64"),
        ("Darwin", "x86_64", "23.1.0", ("glibc", "2.36"), "Linux"),
        ("Linux", "x86_64", "4.18.0-553.el8", ("glibc", "2.28"), "newer kernel"),
        ("Linux", "x86_64", "6.1.0", ("glibc", "2.17"), "2.28"),
        ("Linux", "x86_64", "6.1.0", ("", ""), "musl"),
    ],
)
def test_a_system_that_is_too_old_or_another_is_named(
    system: str, machine: str, kernel: str, libc: tuple[str, str], word: str
) -> None:
    only_bad(check_system(system, machine, kernel, libc), word)


def test_shared_memory_has_to_be_there_writable_and_large(tmp_path: Path) -> None:
    only_bad([check_shared_memory(tmp_path / "none")], "mount")
    only_bad([check_shared_memory(tmp_path, (64 << 20, 60 << 20))], "60 of 64 MiB", "--shm-size")
    assert check_shared_memory(tmp_path, (1 << 30, 900 << 20)).verdict is Verdict.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_shared_memory_that_is_closed_to_a_user_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        # access(2) asks for the real user, so the folder is the kernel's own that nobody writes
        found = check_shared_memory(Path("/proc/sys"))
    finally:
        os.seteuid(0)
    only_bad([found], "not writable")


def test_limits_that_are_too_low_are_named() -> None:
    only_bad(check_limits(256, -1), "256", "ulimit -n")
    noted(check_limits(-1, 64 << 10), "64 KiB", "ulimit -l")
    assert not bad(check_limits(1 << 16, 8 << 20))


def test_a_clock_that_nothing_keeps_is_named() -> None:
    noted([check_clock(0x40)], "chrony")
    assert check_clock(0x2001).verdict is Verdict.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="group files are judged for other users as root")
def test_who_is_not_in_the_group_is_told_so() -> None:
    only_bad([check_group(True, "no-such-group")], "groupadd")
    assert check_group(False, "no-such-group").verdict is Verdict.OK
    entry = next(each for each in grp.getgrall() if each.gr_name == "daemon")
    only_bad([check_group(True, "daemon", "nobody", frozenset())], "usermod -aG daemon nobody")
    held = check_group(True, "daemon", "nobody", frozenset({entry.gr_gid}))
    assert held.verdict is Verdict.OK
    assert check_group(False, "daemon", "nobody", frozenset()).verdict is Verdict.OK
    member = next((g.gr_name, g.gr_mem[0]) for g in [*grp.getgrall(), _any()] if g.gr_mem)
    if member[0] != "none":
        only_bad([check_group(True, *member, frozenset())], "log in again")


def _any() -> grp.struct_group:
    return grp.struct_group(("none", "x", 0, ["nobody"]))
