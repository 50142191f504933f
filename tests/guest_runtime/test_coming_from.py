# SPDX-License-Identifier: Apache-2.0
"""docs/coming-from-orionx-and-bitfusion.md names only what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.config.controller import ControllerConfig
from sluice.config.server import ServerConfig
from sluice.guest_runtime.client_settings import ALL

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "coming-from-orionx-and-bitfusion.md").read_text()


def ours() -> str:
    """The page without the columns of the others: in a row the third cell and what follows."""
    lines = []
    for line in PAGE.splitlines():
        cells = re.split(r" *\| *", line.strip("| "))
        lines.append(" ".join(cells[2:]) if line.startswith("|") else line)
    return "\n".join(lines)


OURS = ours()


def named(pattern: str, text: str = OURS) -> list[str]:
    found = sorted(set(re.findall(pattern, text)))
    assert found, pattern
    return found


def test_every_variable_is_read_by_the_client() -> None:
    variables = {variable for setting in ALL for variable in setting.variables}
    for name in named(r"\b(?:SLUICE|ORION)_[A-Z_]*[A-Z]\b"):
        assert name in variables, f"{name} is not in native/api/client_settings.yaml"
    aliases = {name for name in variables if name.startswith("ORION_")}
    said = PAGE[PAGE.index("`ORION_CONTROLLER`") : PAGE.index("are read by the client library")]
    assert set(named(r"ORION_[A-Z_]+", said)) == aliases


def test_every_key_is_one_of_a_file() -> None:
    keys = {setting.key for setting in ALL}
    for model in (ServerConfig, ControllerConfig):
        for section, field in model.model_fields.items():
            for key in getattr(field.annotation, "model_fields", {}):
                keys.add(f"{section.replace('_', '-')}.{key}")
    for section, key in re.findall(r"`\[([a-z-]+)\] ([a-z0-9_]+)`", OURS):
        assert f"{section}.{key}" in keys, f"[{section}] {key} is read by nobody"


def commands() -> list[tuple[str, ...]]:
    """Every `sluice …` of the page, up to the first word that is no command's."""
    found = set()
    for text in named(r"`sluice ([^`]+)`"):
        words = []
        for word in text.split():
            if not re.fullmatch("[a-z]+", word):
                break
            words.append(word)
        found.add(tuple(words))
    return sorted(found)


GUEST = {"run", "check", "enrol"}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_exists(words: tuple[str, ...]) -> None:
    reference = (CHECKOUT / "docs" / "cli.md").read_text()
    heading = re.compile(rf"^##+ sluice {' '.join(words)}( [A-Z\[].*)?$", re.MULTILINE)
    assert heading.search(reference), f"sluice {' '.join(words)} is not in docs/cli.md"


def test_the_options_of_run_exist() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluice.guest_runtime", "help"],
        cwd=CHECKOUT / "python",
        capture_output=True,
        text=True,
        check=True,
    )
    for option in named(r"(--(?:vgpu|gmem|ratio|share))\b"):
        assert option in done.stdout


def test_every_page_that_it_points_to_is_there() -> None:
    for name in named(r"\]\(([^)]+)\)", PAGE):
        assert (CHECKOUT / "docs" / name.partition("#")[0]).exists(), name
