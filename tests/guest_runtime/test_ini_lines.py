# SPDX-License-Identifier: Apache-2.0
"""One rule for INI files: every reader holds to the same cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config.ini import Section, read_config
from sluice.guest_runtime.configuration import read_file
from sluice.guest_runtime.ini_lines import quoted, read_lines, value_of
from sluice.guest_runtime.settings_file import set_keys

from .conftest import CHECKOUT

CASES = CHECKOUT / "tests/native/client/ini_cases.txt"


def cases() -> list[tuple[str, list[str]]]:
    """Each file's text, and what is read of it."""
    found = []
    for block in CASES.read_text().split("\n\n"):
        lines = block.splitlines()
        text = "".join(f"{line[2:]}\n" for line in lines if line.startswith("<"))
        text = text.replace("\\t", "\t").replace("\\r", "\r")
        if text:
            found.append((text, [line[2:] for line in lines if line.startswith(">")]))
    return found


@pytest.mark.parametrize(("text", "wanted"), cases())
def test_every_case_is_read_as_the_client_library_reads_it(text: str, wanted: list[str]) -> None:
    read = [f"{v.section}|{v.key}|{v.value}|{v.number}" for v in read_lines(text) if v.key]
    assert read == wanted


def test_guests_and_services_read_by_it(tmp_path: Path) -> None:
    class Log(Section):
        a: str
        b: str
        c: str

    class Config(Section):
        log: Log

    path = tmp_path / "file.conf"
    path.write_text('[log]\na = x#y # z\nb = "v;w" ; z\nc = x;y\n')
    log = read_config(path, Config).log
    assert (log.a, log.b, log.c) == ("x#y", "v;w", "x")
    assert read_file(path) == {"log.a": ("x#y", 2), "log.b": ("v;w", 3), "log.c": ("x", 4)}


@given(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"])))
def test_what_is_written_is_read_again(value: str) -> None:
    assert value_of(quoted(value)) == value


def test_a_value_that_needs_quotes_is_set_with_them(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text("[controller] ; whose\nca = /old#1 ; mine\n[client]\ngmem = 1\n")
    set_keys(path, {"controller": {"ca": "/a;b.pem", "token_file": "/a#b"}})
    assert path.read_text() == (
        '[controller] ; whose\nca = "/a;b.pem"\ntoken_file = /a#b\n[client]\ngmem = 1\n'
    )
    assert read_file(path)["controller.ca"][0] == "/a;b.pem"
