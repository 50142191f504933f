# SPDX-License-Identifier: Apache-2.0
"""sluice-loader: with our libraries comes our nvidia-smi, unless that name is somebody else's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

LOADER = Path(__file__).resolve().parents[2] / "packaging" / "guest" / "sluice-loader"
PREFIX = "/opt/sluice"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with the guest bundle in it."""
    program = tmp_path / "opt/sluice/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.touch()
    return tmp_path


def loader(root: Path, verb: str) -> None:
    subprocess.run(
        ["sh", LOADER, verb, PREFIX, root], check=True, stderr=subprocess.DEVNULL, timeout=60
    )


def link(root: Path) -> Path:
    return root / "usr/local/bin/nvidia-smi"


def test_it_comes_and_goes_with_the_libraries(root: Path) -> None:
    for verb in ("auto", "auto", "on"):
        loader(root, verb)
        assert str(link(root).readlink()) == f"{PREFIX}/bin/nvidia-smi"
        assert (root / "etc/ld.so.conf.d/00-sluice.conf").exists()
    loader(root, "off")
    assert not link(root).is_symlink()
    loader(root, "auto")
    assert not link(root).is_symlink(), "the choice stays"
    loader(root, "on")
    loader(root, "forget")
    assert not link(root).is_symlink()


def test_nvidias_own_keeps_its_name(root: Path) -> None:
    own = root / "usr/bin/nvidia-smi"
    own.parent.mkdir(parents=True)
    own.touch()
    loader(root, "on")
    assert not link(root).is_symlink()


def test_somebodys_own_is_left_alone(root: Path) -> None:
    link(root).parent.mkdir(parents=True)
    link(root).write_text("mine")
    loader(root, "on")
    loader(root, "forget")
    assert link(root).read_text() == "mine"


def test_beside_nvidias_driver_there_is_none(root: Path) -> None:
    driver = root / "usr/lib64/libcuda.so.1"
    driver.parent.mkdir(parents=True)
    driver.touch()
    loader(root, "auto")
    assert not link(root).is_symlink()
