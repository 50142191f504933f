# SPDX-License-Identifier: Apache-2.0
"""Large packages travel thinned and in pieces: nothing that a card takes is lost on the way."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

GPU_TESTS = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU_TESTS))

from applications import carried, packages, slices, thinning  # noqa: E402
from applications.carried import Carried  # noqa: E402
from applications.entry import Entry  # noqa: E402
from applications.slices import SliceError  # noqa: E402

PTX, MACHINE_CODE, INTERMEDIATE = 1, 2, 8
MIB = 1 << 20
PIECE = 2 * MIB + 65536
"""Two slices that do not compress."""


def part(kind: int, architecture: int, payload: bytes) -> bytes:
    """A part of a fat binary (native/image_format.h)."""
    head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, 8, 7, architecture)
    return head + bytes(32) + payload


def container(*parts: tuple[int, int, bytes]) -> bytes:
    """A fat binary."""
    body = b"".join(part(*each) for each in parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(folder: Path, *containers: bytes) -> Path:
    """A file in which they stand, at offsets as sections have them."""
    path = folder / "libcode.so.1"
    path.write_bytes(
        b"\x7fELF" + bytes(60) + b"".join(each + b"behind it" * 8 for each in containers)
    )
    return path


def code(name: str) -> bytes:
    """A payload that is found again."""
    return f"<{name}>".encode().ljust(32, b"+")


def test_only_what_the_card_takes_stays_and_every_offset_with_it(tmp_path: Path) -> None:
    compiled = container(
        (MACHINE_CODE, 80, code("80")),
        (MACHINE_CODE, 90, code("90")),
        (MACHINE_CODE, 90, code("90a")),
        (MACHINE_CODE, 100, code("100")),
        (PTX, 90, code("ptx beside machine code")),
        (INTERMEDIATE, 90, code("for linkers")),
    )
    translated = container(
        (MACHINE_CODE, 80, code("older")),
        (PTX, 70, code("ptx 70")),
        (PTX, 80, code("ptx 80")),
        (PTX, 120, code("ptx 120")),
    )
    useless = container((MACHINE_CODE, 100, code("newer")), (PTX, 120, code("ptx 120")))
    path = library(tmp_path, compiled, translated, useless)
    before = path.read_bytes()
    found = thinning.thin(path, 90)
    after = path.read_bytes()
    left = {text.partition(">")[0] for text in after.decode("latin1").split("<")[1:]}
    assert left == {"90", "90a", "ptx 80"}
    assert (found.kept, found.emptied) == (3 * 32, 9 * 32)
    assert len(after) == len(before)
    changed = [at for at in range(len(before)) if before[at] != after[at]]
    assert all(after[at] == 0 for at in changed)
    assert [len(parts) for parts in thinning.containers(after)] == [6, 4, 2], "headers stay"
    assert thinning.thin(path, None) == thinning.Thinned(0, 12 * 32)


@pytest.mark.parametrize("harm", ["unaligned", "longer than the file", "parts beyond it", "short"])
def test_what_only_looks_like_a_fat_binary_is_left_alone(tmp_path: Path, harm: str) -> None:
    good = container((MACHINE_CODE, 80, code("80")))
    wrong = {
        "unaligned": b"1234" + good,
        "longer than the file": good[:8] + struct.pack("<Q", MIB) + good[16:],
        "parts beyond it": good[:24] + struct.pack("<Q", 4096) + good[32:],
        "short": good[:20],
    }[harm]
    path = library(tmp_path, wrong)
    before = path.read_bytes()
    assert thinning.thin(path, 90) == thinning.Thinned()
    assert path.read_bytes() == before


def folder_of_files(folder: Path) -> Path:
    """Some that are small, a large one that is mostly zeros, one that does not compress."""
    (folder / "lib").mkdir(parents=True)
    (folder / "module.py").write_text("x = 1\n")
    (folder / "lib" / "tool").write_text("#!/bin/sh\n")
    (folder / "lib" / "tool").chmod(0o755)
    (folder / "lib" / "random.so").write_bytes(os.urandom(3 * MIB) + b"end")
    with (folder / "lib" / "zeros.so").open("wb") as file:
        file.truncate(40 * MIB)
        file.seek(20 * MIB)
        file.write(b"in the middle")
    return folder


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Path]]:
    """Those files, and their pieces."""
    monkeypatch.setattr(slices, "SLICE", MIB)
    folder = folder_of_files(tmp_path / "folder")
    return folder, slices.pack(folder, "all", tmp_path / "pieces", PIECE, 2)


def test_pieces_may_come_in_any_order(tmp_path: Path, packed: tuple[Path, list[Path]]) -> None:
    folder, pieces = packed
    assert len(pieces) == 2
    assert max(piece.stat().st_size for piece in pieces) <= PIECE
    kept, into, come = pieces[0].parent, tmp_path / "into", tmp_path / "come"
    come.mkdir()
    (come / "all.slices.json").write_bytes((kept / "all.slices.json").read_bytes())
    assert slices.take("all", come, into) == [piece.name for piece in pieces]
    pieces[1].rename(come / pieces[1].name)
    assert slices.take("all", come, into) == [pieces[0].name]
    (come / pieces[1].name).unlink()  # what was taken is not asked for again
    with pytest.raises(SliceError, match=r"have not come: all\.000"):
        slices.finish("all", come, into)
    pieces[0].rename(come / pieces[0].name)
    slices.finish("all", come, into)
    there = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    here = {p.relative_to(into): p for p in into.rglob("*") if p.is_file()}
    assert here.keys() == there.keys()
    for name, path in there.items():
        assert here[name].read_bytes() == path.read_bytes(), name
        assert here[name].stat().st_mode == path.stat().st_mode, name
    assert (into / "lib" / "zeros.so").stat().st_blocks * 512 < 4 * MIB, "zeros stay holes"


def test_a_slice_that_fits_into_no_piece_is_an_error(
    tmp_path: Path, packed: tuple[Path, list[Path]]
) -> None:
    with pytest.raises(SliceError, match="pieces of more than 1048"):
        slices.pack(packed[0], "all", tmp_path / "small", MIB, 2)


def test_a_piece_that_is_not_the_one_that_was_packed_is_refused(
    tmp_path: Path, packed: tuple[Path, list[Path]]
) -> None:
    _, pieces = packed
    whole = pieces[1].read_bytes()
    pieces[1].write_bytes(whole[:-1] + b"?")
    with pytest.raises(SliceError, match=r"all\.001 is not the piece"):
        slices.take("all", pieces[0].parent, tmp_path / "into")
    pieces[1].write_bytes(whole)
    slices.take("all", pieces[0].parent, tmp_path / "into")
    with (tmp_path / "into" / "lib" / "random.so").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(SliceError, match=r"not as packed: lib/random\.so"):
        slices.finish("all", pieces[0].parent, tmp_path / "into")


def test_a_list_leads_nowhere_else(tmp_path: Path, packed: tuple[Path, list[Path]]) -> None:
    _, pieces = packed
    path = pieces[0].parent / "all.slices.json"
    path.write_text(path.read_text().replace("lib/random.so", "../../random.so"))
    with pytest.raises(SliceError, match=r"'\.\./\.\./random\.so' does not lie in the folder"):
        slices.take("all", pieces[0].parent, tmp_path / "into" / "deep")
    with pytest.raises(SliceError, match="is not there"):
        slices.take("none", pieces[0].parent, tmp_path / "into")


def wheel(folder: Path) -> None:
    """A package with a library, its tests and headers."""
    code_of_it = container((MACHINE_CODE, 80, code("80")), (MACHINE_CODE, 90, code("90")))
    files = {
        "thing/__init__.py": b"here = True\n",
        "thing/tests/test_it.py": b"",
        "thing/include/thing.h": b"",
        "thing/include/kept.h": b"",
        "thing/lib/libthing.so.1": code_of_it,
        "thing/lib/libunused.so.1": code_of_it,
        "thing-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
        "thing-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    files["thing-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def test_an_environment_that_stands_alone_sees_its_packages_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "download", lambda _, __, folder, **___: wheel(folder))
    how = Carried(
        alone=True,
        left_out=("*/tests/*", "*/include/*"),
        kept=("thing/include/kept.h",),
        emptied=("thing/lib/libunused*",),
    )
    entry = Entry("e", "E", "it", carried=how)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    [piece] = packages.prepare(entry, python, tmp_path, tmp_path / "pieces")
    assert piece.name == "e.000"
    place = packages.unpack(entry, tmp_path / "pieces", Path(sys.executable), tmp_path / "there")
    program = "import json, sys, thing; print(json.dumps([thing.here, sys.path]))"
    here, path = packages.asked(place.python, program)
    assert here is True
    assert not any("packages" in p for p in path if not Path(p).is_relative_to(tmp_path))
    with pytest.raises(packages.PackageError, match="pytest"):
        packages.asked(place.python, "import pytest")
    assert packages.versions(place, ("thing", "pytest")) == {"thing": "1.0"}
    assert not place.package("thing", "tests").exists()
    assert [p.name for p in place.package("thing", "include").iterdir()] == ["kept.h"]
    assert thinned(place.package("thing", "lib", "libthing.so.1")) == [False, True]
    assert thinned(place.package("thing", "lib", "libunused.so.1")) == [False, False]
    said = carried.notes(place.packages)
    assert said == {"machine code": "for sm_90 alone; that for other architectures was left out"}
    assert carried.notes(tmp_path) == {}


def test_what_another_entry_brings_stands_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "download", lambda _, __, folder, **___: wheel(folder))
    how = Carried(alone=True, borrowed=(("thing", "lender"),))
    entry = Entry("e", "E", "it", carried=how)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages.prepare(entry, python, tmp_path, tmp_path / "pieces")
    unpack = (entry, tmp_path / "pieces", Path(sys.executable), tmp_path / "there")
    with pytest.raises(packages.PackageError, match="unpack lender before e"):
        packages.unpack(*unpack)
    lent = tmp_path / "there" / "lender" / carried.PACKAGES / "thing"
    (lent / "lib").mkdir(parents=True)
    (lent / "theirs.py").write_text("here = 'theirs'\n")
    for _ in range(2):  # as often as it is unpacked
        place = packages.unpack(*unpack)
        program = "import json, thing.theirs; print(json.dumps([thing.here, thing.theirs.here]))"
        assert packages.asked(place.python, program) == [True, "theirs"]
        assert not place.package("thing", "lib").is_symlink(), "its own"


def test_what_is_carried_stands_before_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "download", lambda _, __, folder, **___: wheel(folder))
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    [there] = (base / "lib").glob("python3.*/site-packages")
    (there / "thing.py").write_text("here = False\n")
    (there / "other.py").write_text("")
    entry = Entry("e", "E", "it", carried=Carried())
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages.prepare(entry, python, tmp_path, tmp_path / "pieces")
    place = packages.unpack(entry, tmp_path / "pieces", base / "bin" / "python", tmp_path / "there")
    assert packages.asked(place.python, "import json, other, thing; print(json.dumps(thing.here))")
    assert packages.versions(place, ("thing",)) == {"thing": "1.0"}
    assert place.package("other.py") == there / "other.py"
    assert place.package("thing", "lib").is_relative_to(tmp_path / "there")


def thinned(path: Path) -> list[bool]:
    """Of each part of a library whether something is in it."""
    data = path.read_bytes()
    return [
        any(data[part.start : part.start + part.size])
        for parts in thinning.containers(data)
        for part in parts
    ]


def test_the_list_of_slices_has_what_the_other_machine_needs(
    packed: tuple[Path, list[Path]],
) -> None:
    """slices.py runs there by itself, beside the pieces and without the rest of the checkout."""
    _, pieces = packed
    said = json.loads((pieces[0].parent / "all.slices.json").read_text())
    assert set(said) == {"files", "pieces", "slices"}
    assert {each["piece"] for each in said["slices"]} == set(said["pieces"])
    assert set(said["files"]) == {"lib/random.so", "lib/zeros.so", slices.TAR}
    assert sum(each["file"] == "lib/zeros.so" for each in said["slices"]) == 1
