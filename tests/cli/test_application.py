# SPDX-License-Identifier: Apache-2.0
"""What of `sluice` is loaded for which words: no more than they need, and never less."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import typer
from control_plane import PYTHON_PATH

from sluice.cli import guest_part, words
from sluice.cli.application import application, first_word

LOADED = """
import json, sys
from sluice.cli.__main__ import main
sys.argv[0] = "sluice"
try:
    main()
finally:
    print(json.dumps([*sys.modules]), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        env={"PYTHONPATH": str(PYTHON_PATH)}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_a_program_waits_for_no_part_but_its_own() -> None:
    loaded = loaded_by("run", "--help")
    assert "sluice.guest_runtime.main" in loaded
    assert not {"typer", "httpx", "pydantic", "sluice.cli.application"} & loaded


def test_a_command_waits_for_no_other_ones_part() -> None:
    loaded = loaded_by("node", "list", "--help")
    assert "sluice.cli.pool_commands" in loaded
    assert not {"sluice.cli.cdi_commands", "sluice.cli.setup.init_command"} & loaded
    assert not {"sluice.config.server", "cryptography", "libvirt", "yaml"} & loaded


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["status"], "status"),
        (["gpu", "list", "--node", "status"], "gpu"),
        (["--ca", "status", "--token-file", "top", "node", "list"], "node"),
        (["--ca=status", "node"], "--ca=status"),
        (["--help", "status"], "--help"),
        (["--ca"], ""),
        ([], ""),
    ],
)
def test_the_word_is_what_stands_behind_the_pools_options(arguments: list[str], word: str) -> None:
    assert first_word(arguments) == word


@pytest.mark.parametrize("arguments", [["--ca=x", "node"], ["--help"], [], ["nod"], ["--ca"]])
def test_where_no_word_is_known_all_are_there(arguments: list[str]) -> None:
    command: Any = typer.main.get_command(application(arguments, optional=False))
    assert set(command.commands) == {*words.COMMANDS, *words.GROUPS} - words.OPTIONAL
    assert set(guest_part.WORDS) < set(words.COMMANDS)


@pytest.mark.parametrize("name", sorted({*words.COMMANDS, *words.GROUPS} - words.OPTIONAL))
def test_a_word_has_the_same_commands_alone_and_among_all(name: str) -> None:
    def commands(arguments: list[str]) -> list[str]:
        group: Any = typer.main.get_command(application(arguments, optional=False))
        return [*getattr(group.commands[name], "commands", ())]

    assert commands([name]) == commands([])
