# SPDX-License-Identifier: Apache-2.0
"""docs/guest-images.md can be followed: its commands, in its order, in a root of Debian 12."""

from __future__ import annotations

import re

import pytest
from control_plane import ControlPlane

from .conftest import CHECKOUT, MakeRoot, Packages
from .program import SAYS
from .root import Root

PAGE = CHECKOUT / "docs" / "guest-images.md"
HOME = "/home/alice"


def commands(heading: str) -> list[str]:
    """Every indented line of a section, in order."""
    page = PAGE.read_text()
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert section, f"{PAGE.name} has no section {heading}"
    found = [line[4:] for line in section[1].splitlines() if line.startswith("    ")]
    assert found, f"{PAGE.name}: {heading} has no commands"
    return found


@pytest.fixture
def guest(make_root: MakeRoot) -> Root:
    """A guest with the user of the page and her program, in the folder that she is in."""
    root = make_root("bookworm")
    root.check("useradd -m alice")
    root.check(f"cp /add {HOME}/program && chown alice: {HOME}/program")
    return root


def follow(root: Root, plane: ControlPlane, lines: list[str]) -> list[str]:
    """Runs the lines; returns what each printed."""
    said = []
    for line in lines:
        command = line.replace("POOL:9123", f"127.0.0.1:{plane.rest_port}")
        said.append(root.check(f"cd {HOME} && {command}"))
    return said


def test_the_deb(guest: Root, packages: Packages, plane: ControlPlane) -> None:
    guest.put(packages.deb, f"{HOME}/{packages.deb.name}")
    lines = commands("Debian, Ubuntu")
    said = dict(zip(lines, follow(guest, plane, lines), strict=True))
    checks = [text for line, text in said.items() if "sluice check" in line]
    assert [text.splitlines()[-1] for text in checks] == ["it would work"]
    runs = [text.strip() for line, text in said.items() if line.endswith("./program'")]
    assert runs[1:] == [SAYS, SAYS]
    assert not guest.path("/etc/sluice").exists()
    assert not guest.path("/opt/sluice").exists()


def test_the_bundle(guest: Root, packages: Packages, plane: ControlPlane) -> None:
    guest.put(packages.bundle, f"{HOME}/sluice-guest-x86_64.tar.gz")
    lines = commands("Any other distribution, by the bundle")
    said = dict(zip(lines, follow(guest, plane, lines), strict=True))
    assert [t.strip() for line, t in said.items() if "sluice run" in line] == [SAYS]
    assert not guest.path("/opt/sluice").exists()


def test_the_names_of_the_files_are_those_that_are_made(packages: Packages) -> None:
    page = PAGE.read_text()
    for path in (packages.deb, packages.rpm):
        assert path.name in page
    folder = CHECKOUT / "packaging" / "images"
    for recipe in folder.iterdir():
        assert packages.deb.name in recipe.read_text() or packages.rpm.name in recipe.read_text()
        assert recipe.name in page
