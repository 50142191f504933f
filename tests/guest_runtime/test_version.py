# SPDX-License-Identifier: Apache-2.0
"""One version in every place that has one, spelled as each package manager orders it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tomllib

import pytest

from sluice.guest_runtime import VERSION

from .conftest import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "packaging"))

from guest_packages import package_version


@pytest.mark.parametrize("name", ["pyproject.toml", "nova_driver/pyproject.toml"])
def test_every_distribution_has_the_same_version(name: str) -> None:
    assert tomllib.loads((CHECKOUT / name).read_text())["project"]["version"] == VERSION


@pytest.mark.parametrize(
    ("version", "of_packages"),
    [
        ("0.2.0", "0.2.0"),
        ("0.2.0.dev0", "0.2.0~dev0"),
        ("0.2.0rc1", "0.2.0~rc1"),
        ("1.10.0.dev12", "1.10.0~dev12"),
    ],
)
def test_what_comes_before_a_release_is_before_it_as_a_package(
    version: str, of_packages: str
) -> None:
    assert package_version(version) == of_packages


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is not installed")
def test_dpkg_orders_them_as_python_does() -> None:
    rising = [package_version(v) for v in ("0.1.0", "0.2.0.dev0", "0.2.0rc1", "0.2.0", "0.10.0")]
    for before, after in itertools.pairwise(rising):
        command = ["dpkg", "--compare-versions", f"{before}-1", "lt", f"{after}-1"]
        assert subprocess.run(command, check=False).returncode == 0, (before, after)
