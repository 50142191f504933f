# SPDX-License-Identifier: Apache-2.0
"""Finds what a process has started, by the script that it runs."""

from __future__ import annotations

from pathlib import Path


def children_running(parent: int, script: str, *, zombies: bool = False) -> list[int]:
    """The children of that process whose command has the words; those that have ended, if asked."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        state, parent_of_it = stat[stat.rindex(")") + 2 :].split()[:2]
        is_one = script.encode() in command and int(parent_of_it) == parent
        if is_one and (zombies or state != "Z"):
            found.append(int(entry.name))
    return found
