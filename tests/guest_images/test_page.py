# SPDX-License-Identifier: Apache-2.0
"""docs/guest-images.md can be followed: its commands, in its order, in a root of Debian 12."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
from control_plane import ControlPlane
from walkthrough import Walkthrough

from .conftest import CHECKOUT, MakeRoot, Packages
from .program import SAYS
from .root import Root

PAGE = CHECKOUT / "docs" / "guest-images.md"
HOME = "/home/alice"


@pytest.fixture
def guest(make_root: MakeRoot) -> Root:
    """A guest with the user of the page and her program, in the folder that she is in."""
    root = make_root("bookworm")
    root.check("useradd -m alice")
    root.check(f"cp /add {HOME}/program && chown alice: {HOME}/program")
    return root


def follow(root: Root, plane: ControlPlane, heading: str) -> list[str]:
    """Runs the commands of a section in the root; the lines that they printed."""

    def run(command: str, variables: Mapping[str, str]) -> str:
        return root.check(f"cd {HOME} && {command}", **variables)

    variables = {"CONTROLLER": f"127.0.0.1:{plane.rest_port}", "NAME": "alice"}
    printed = Walkthrough(PAGE, heading).follow({"guest": run}, variables)
    return "".join(printed).splitlines()


def test_the_deb(guest: Root, packages: Packages, plane: ControlPlane) -> None:
    guest.put(packages.deb, f"{HOME}/{packages.deb.name}")
    said = follow(guest, plane, "Debian, Ubuntu")
    assert said.count("it would work") == 1
    assert said.count(SAYS) == 2
    assert not guest.path("/etc/sluice").exists()
    assert not guest.path("/opt/sluice").exists()


def test_the_bundle(guest: Root, packages: Packages, plane: ControlPlane) -> None:
    guest.put(packages.bundle, f"{HOME}/sluice-guest-x86_64.tar.gz")
    said = follow(guest, plane, "Any other distribution, by the bundle")
    assert said.count(SAYS) == 1
    assert not guest.path("/opt/sluice").exists()


def test_the_names_of_the_files_are_those_that_are_made(packages: Packages) -> None:
    page = PAGE.read_text()
    named = re.findall(r"sluice-guest[_-][^\s/`\")]+\.(?:deb|rpm)", page)
    assert {Path(name).suffix for name in named} == {".deb", ".rpm"}
    for name in named:
        assert any(fnmatch(path.name, name) for path in (packages.deb, packages.rpm)), name
    for recipe in (CHECKOUT / "packaging" / "images").iterdir():
        assert recipe.name in page
