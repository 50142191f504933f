# SPDX-License-Identifier: Apache-2.0
"""ELF files are read right, and no file whatever does harm."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from sluice.guest_runtime.elf_file import ElfError, read_elf

from .conftest import Compile

PROGRAM = "#include <stdio.h>\nextern int puts_of_ours(void); int main(){ return puts_of_ours(); }"
LIBRARY = "int puts_of_ours(void){ return 7; }"


@pytest.fixture
def program(compile_c: Compile) -> Path:
    library = compile_c("libours.so.1", LIBRARY, "-shared", "-fPIC", "-Wl,-soname,libours.so.1")
    return compile_c(
        "program", PROGRAM, str(library), "-Wl,-rpath,/some/where", "-Wl,--enable-new-dtags"
    )


def test_what_a_program_needs_and_where_it_looks(program: Path) -> None:
    elf = read_elf(program)
    assert elf.interpreter == "/lib64/ld-linux-x86-64.so.2"
    assert "libours.so.1" in elf.needed
    assert "libc.so.6" in elf.needed
    assert (elf.rpath, elf.runpath) == (None, "/some/where")
    assert "puts_of_ours" in elf.undefined
    assert "main" in elf.defined
    assert not elf.is_static


def test_the_older_kind_of_search_path(compile_c: Compile) -> None:
    path = compile_c("p", "int main(){return 0;}", "-Wl,-rpath,/old", "-Wl,--disable-new-dtags")
    assert (read_elf(path).rpath, read_elf(path).runpath) == ("/old", None)


def test_a_library_has_a_name(program: Path) -> None:
    elf = read_elf(program.parent / "libours.so.1")
    assert elf.soname == "libours.so.1"
    assert "puts_of_ours" in elf.defined


def test_a_static_program(compile_c: Compile) -> None:
    assert read_elf(compile_c("static", "int main(){return 0;}", "-static")).is_static


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + bytes(60)])
def test_what_is_no_program_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ElfError, match="x"):
        read_elf(tmp_path / "x")


def test_a_damaged_file_is_an_error_and_nothing_worse(program: Path, tmp_path: Path) -> None:
    whole = program.read_bytes()
    broken = tmp_path / "broken"
    chance = random.Random(20)
    for round_ in range(400):
        data = bytearray(whole)
        if round_ % 2:
            del data[chance.randrange(len(data)) :]
        else:
            # The headers and the dynamic section are where numbers lead elsewhere.
            for _ in range(1 + round_ % 12):
                data[chance.choice([chance.randrange(1024), chance.randrange(len(data))])] = (
                    chance.randrange(256)
                )
        broken.write_bytes(data)
        with contextlib.suppress(ElfError):  # any other error fails the test
            read_elf(broken)
