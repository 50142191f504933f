# SPDX-License-Identifier: Apache-2.0
"""A function's number, once released, means that function for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .releases import NAMES, RELEASES, ROOT

LOCKS = ("ids.lock", "library_ids.lock")


def numbers(text: str) -> list[tuple[str, ...]]:
    """Ids and names, in order; whether one is retired does not matter."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line[:2]) for line in lines]


def changed_ids(released: str, now: str) -> list[str]:
    """What an old client would mean otherwise."""
    old, new = numbers(released), numbers(now)
    return [
        f"{' '.join(was)} is {' '.join(is_now) or 'gone'}"
        for was, is_now in zip(old, [*new, *[()] * len(old)], strict=False)
        if was != is_now
    ]


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_every_id_of_a_release_has_the_same_meaning(release: Path, lock: str) -> None:
    released = (release / lock).read_text()
    assert numbers(released), "the recording is empty"
    assert changed_ids(released, (ROOT / "native" / "api" / lock).read_text()) == []


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_every_command_of_a_release_has_its_number(release: Path) -> None:
    released = dict(line[::-1] for line in numbers((release / "command_ids.lock").read_text()))
    said = yaml.safe_load((ROOT / "native" / "api" / "commands.yaml").read_text())
    now = {name: str(fields["id"]) for name, fields in said["commands"].items()}
    given = {name: now.get(name, "gone") for name in released}
    assert released, "the recording is empty"
    assert given == released
    others = {number for name, number in now.items() if name not in released}
    assert not others & set(released.values()), "a number of a release means something else"


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ("64 cuA\n65 cuB\n66 cuC\n", []),
        ("64 cuA\n65 cuB retired\n", []),
        ("64 cuA\n", ["65 cuB is gone"]),
        ("64 cuB\n65 cuA\n", ["64 cuA is 64 cuB", "65 cuB is 65 cuA"]),
        ("64 cuA\n65 cuNew\n66 cuB\n", ["65 cuB is 65 cuNew"]),
    ],
)
def test_a_change_of_ids_is_seen(now: str, changed: list[str]) -> None:
    assert changed_ids("# Numbers.\n64 cuA\n65 cuB\n", now) == changed
