# SPDX-License-Identifier: Apache-2.0
"""Which parts `sluice doctor` looks at on a host of the package, which has the files of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import controller, server
from sluice.support.doctor import parts_here
from sluice.support.parts import Part


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module, name in ((controller, "controller.conf"), (server, "server.conf")):
        (tmp_path / name).write_text("# nothing\n")
        monkeypatch.setattr(module, "DEFAULT_PATH", tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[init]\nrole = server\n", [Part.SERVER]),
        ("[init]\nrole = controller\n", [Part.CONTROLLER]),
        ("[init]\nrole = both\n", [Part.SERVER, Part.CONTROLLER]),
        ("[init]\nrole = ?\n", [Part.SERVER, Part.CONTROLLER]),
        ("no settings", [Part.SERVER, Part.CONTROLLER]),
        ("", [Part.SERVER, Part.CONTROLLER]),
    ],
)
def test_what_init_made_of_a_host_is_looked_at(etc: Path, text: str, parts: list[Part]) -> None:
    if text:
        (etc / "init.conf").write_text(text)
    assert parts_here(None, None) == parts
    assert parts_here(etc / "server.conf", None)[0] is Part.SERVER  # what is named is looked at
