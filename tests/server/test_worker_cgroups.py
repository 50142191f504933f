# SPDX-License-Identifier: Apache-2.0
"""A worker is in groups of its own in every hierarchy, and not in its server's container's.

The hierarchies are plain folders: what the kernel makes of them is the containers' tests to see.
"""

from __future__ import annotations

from pathlib import Path

from sluice.server.workers.cgroups import SessionCgroups

PID = 4711
OTHERS = ("cpuset", "devices", "freezer")


def version_1(root: Path) -> None:
    for name in ("memory", "pids", *OTHERS):
        (root / name).mkdir()
        (root / name / "cgroup.procs").touch()
        (root / name / "sluice").mkdir()
    for name in ("cpus", "mems"):
        (root / "cpuset" / f"cpuset.{name}").write_text("0-1\n")
        (root / "cpuset" / "sluice" / f"cpuset.{name}").write_text("\n")
    (root / "not-one").mkdir()


def test_of_version_1_a_worker_leaves_its_servers_groups_everywhere(tmp_path: Path) -> None:
    version_1(tmp_path)
    SessionCgroups(0, tmp_path).add("w", PID, 64)
    for name in OTHERS:
        assert (tmp_path / name / "sluice" / "cgroup.procs").read_text() == f"{PID}\n"
    assert (tmp_path / "memory" / "sluice" / "w" / "cgroup.procs").read_text() == f"{PID}\n"
    for name in ("cpus", "mems"):
        assert (tmp_path / "cpuset" / "sluice" / f"cpuset.{name}").read_text() == "0-1\n"
    assert not (tmp_path / "not-one" / "sluice").exists()


def test_a_hierarchy_that_takes_nobody_keeps_no_worker_from_the_others(tmp_path: Path) -> None:
    version_1(tmp_path)
    (tmp_path / "devices" / "sluice" / "cgroup.procs").mkdir()  # writing fails
    SessionCgroups(0, tmp_path).add("w", PID, 64)
    assert (tmp_path / "freezer" / "sluice" / "cgroup.procs").read_text() == f"{PID}\n"
