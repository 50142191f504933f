# SPDX-License-Identifier: Apache-2.0
"""Containerfiles name no registry of images or packages, and take what the project depends on."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "packaging" / "containers"
FILES = sorted(FOLDER.glob("*.Containerfile"))


def instructions(path: Path) -> list[str]:
    """The instructions, each on one line, without comments."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    return text.replace("\\\n", " ").strip().splitlines()


def test_there_is_one_for_each_part() -> None:
    assert [path.name.partition(".")[0] for path in FILES] == [
        "controller",
        "guest",
        "kubernetes",
        "release",
        "server",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_base_is_an_argument_and_no_host_is_named(path: Path) -> None:
    lines = instructions(path)
    froms = [line.split() for line in lines if line.startswith("FROM")]
    stages = {words[3] for words in froms if words[2:3] == ["AS"]}
    assert {words[1] for words in froms} - stages == {"${BASE}"}
    assert "ARG BASE=localhost/sluice-base" in lines
    for text in (path.read_text(), (FOLDER / "base.sh").read_text()):
        assert "://" not in text
        assert not re.search(r"\b[\w-]+\.(io|org|com|net)/", text.replace("nvidia.com/gpu", ""))


@pytest.mark.parametrize(
    ("part", "user", "begins"),
    [("controller", "64200", "ENTRYPOINT"), ("kubernetes", "65532", "CMD")],
)
def test_what_needs_no_root_has_none_and_no_compiler_is_asked_for(
    part: str, user: str, begins: str
) -> None:
    lines = instructions(FOLDER / f"{part}.Containerfile")
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users == [user]
    assert lines.index(f"USER {user}") < next(
        at for at, line in enumerate(lines) if line.startswith(begins)
    )
    assert not any("build-essential" in line for line in lines)


def test_what_is_copied_into_images_is_there() -> None:
    for path in FILES:
        if path.name == "release.Containerfile":
            continue  # its folder is release_images.py's: see tests/releases
        for line in instructions(path):
            if line.startswith("COPY") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert (CHECKOUT / source).exists(), f"{path.name}: {source}"


@pytest.mark.parametrize("extras", [["libvirt"], ["kubernetes"]])
def test_images_have_all_that_the_project_depends_on(extras: list[str]) -> None:
    command = [sys.executable, FOLDER / "requirements.py", CHECKOUT / "pyproject.toml", *extras]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    assert printed.splitlines() == wanted


def test_what_images_generate_is_made_by_what_the_project_is_built_with() -> None:
    command = [sys.executable, FOLDER / "requirements.py", CHECKOUT / "pyproject.toml", "--build"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert printed.splitlines() == project["build-system"]["requires"]
    for path in FILES:
        if "python_layout.py" in path.read_text():
            assert "requirements.py /src/pyproject.toml --build >" in path.read_text()
