# SPDX-License-Identifier: Apache-2.0
"""Bodies of commands: laid out as C++ does, never otherwise than released, read as commands say.

The generated headers assert each size and offset, so what is held here is C++'s layout too.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from bodies import LOCK, check_lock, load_bodies, read_bodies, update_lock
from commands import check_bodies, load_own_commands
from imported import RegistryError

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "native" / "api"
WORKER = ROOT / "native" / "worker"
GOOD = """
about: Of a test.
constants:
  most: {type: u32, value: 1 << 2}
enumerations:
  Place: {values: {inline: 0, arena: 1}}
structs:
  Side:
    fields:
      address: u64
      place: Place
      reserved: u32
  Copy:
    about: Of memory.
    fields:
      to: Side
      sizes: {type: "u16[most]", about: of rows}
      from: "Side[2]"
  CopyBack: {same_as: Copy}
"""
LOCKED = """\
enum Place inline=0 arena=1
struct Copy 56 to:Side@0 sizes:u16[4]@16 from:Side[2]@24
struct Side 16 address:u64@0 place:u32@8 reserved:u32@12
"""


def write(tmp_path: Path, text: str, lock: str = LOCKED) -> Path:
    (tmp_path / "bodies").mkdir(exist_ok=True)
    (tmp_path / "bodies" / "copies.yaml").write_text(text)
    (tmp_path / LOCK).write_text(lock)
    return tmp_path


def test_a_good_one_is_laid_out(tmp_path: Path) -> None:
    said = load_bodies(write(tmp_path, GOOD))
    assert said.lock == LOCKED.splitlines()
    copy, back = said.structs["Copy"], said.structs["CopyBack"]
    assert (copy.bytes, copy.alignment, back.same_as) == (56, 8, "Copy")
    assert struct.calcsize("<QII4HQIIQII") == copy.bytes
    assert [f.ctype for f in said.structs["Side"].fields] == ["uint64_t", "Place", "uint32_t"]


def test_a_file_may_have_anothers_types(tmp_path: Path) -> None:
    api = write(tmp_path, GOOD)
    (api / "bodies" / "a.yaml").write_text("structs: {Pair: {fields: {both: 'Side[most]'}}}")
    said = read_bodies(api)
    assert [(f.name, f.uses) for f in said.files] == [("copies", ()), ("a", ("copies",))]
    assert said.structs["Pair"].bytes == 64
    (api / "bodies" / "copies.yaml").write_text(GOOD.replace("to: Side", "to: Pair"))
    with pytest.raises(RegistryError, match="each has types of another"):
        read_bodies(api)


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("reserved: u32", "more: u16", "Side: 14 bytes, a multiple of 8 is wanted"),
        ("      place: Place\n", "", "Side: 12 bytes, a multiple of 8"),
        ('sizes: {type: "u16[most]"', "sizes: {type: u16", "from: lies at 18"),
        ("u16[most]", "u16[least]", "sizes: 'least' is neither a number nor a constant"),
        ("to: Side", "to: Sight", "to: the type 'Sight' is neither enumeration"),
        ("to: Side", "to: float", "to: the type 'float' is neither enumeration"),
        ("about: of rows", "meaning: of rows", "sizes: unknown key 'meaning'"),
        ("same_as: Copy", "same_as: Paste", "same_as 'Paste': no struct before it"),
        ("arena: 1", "arena: 0", "Place: values are given, and each number once"),
        ("1 << 2", "1 << two", "most: the value '1 << two' is neither"),
        ("1 << 2", "1 << 32", "most: the value 4294967296 is none of a u32"),
        ("type: u32, value", "type: i8, value", "most: type 'i8' is none of"),
        ("  Copy:", "  copy:", "'copy': types LikeThis"),
        ("constants:", "numbers:", "unknown key 'numbers'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(RegistryError) as error:
        read_bodies(write(tmp_path, GOOD.replace(was, becomes)))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "address: u64\n      place: Place\n      reserved: u32",
            "place: Place\n      reserved: u32\n      address: u64",
            "released was address:u64@0, found is place:u32@0",
        ),
        ("      place: Place\n      reserved: u32", "      place: u64", "released was place:u32@8"),
        ("      sizes", "      amounts", "released was sizes:u16[4]@16, found is amounts"),
        ("u16[most]", "u16[8]", "released was sizes:u16[4]@16, found is sizes:u16[8]@16"),
        ("{inline: 0, arena: 1}", "{inline: 1, arena: 0}", "released was inline=0"),
        ("{inline: 0, arena: 1}", "{inline: 0}", "released was arena=1, found is nothing"),
        ("Place:", "Spot:", "enum Place: it is gone"),
        ("  Copy:", "  Paste:", "struct Copy: it is gone"),
    ],
)
def test_what_is_released_stays(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    text = GOOD.replace("  CopyBack: {same_as: Copy}\n", "")
    assert was in text
    text = text.replace(was, becomes)
    if becomes == "Spot:":
        text = text.replace("place: Place", "place: Spot")
    api = write(tmp_path, text)
    for refuses in (load_bodies, update_lock):
        with pytest.raises(RegistryError) as error:
            refuses(api)
        assert said in str(error.value)
    assert (api / LOCK).read_text() == LOCKED


@pytest.mark.parametrize(
    ("was", "becomes", "line"),
    [
        ("reserved: u32", "rows: u32", "struct Side 16 address:u64@0 place:u32@8 rows:u32@12"),
        (
            "{inline: 0, arena: 1}",
            "{inline: 0, arena: 1, shadow: 2}",
            "enum Place inline=0 arena=1 ",
        ),
        ('from: "Side[2]"', 'from: "Side[2]"\n      wait: u64', "struct Copy 64 to:Side@0"),
        (
            "  CopyBack: {same_as: Copy}",
            "  Wait: {fields: {time: u64}}",
            "struct Wait 8 time:u64@0",
        ),
    ],
)
def test_what_is_new_is_locked_when_asked_for(
    tmp_path: Path, was: str, becomes: str, line: str
) -> None:
    assert was in GOOD
    api = write(tmp_path, GOOD.replace(was, becomes))
    with pytest.raises(RegistryError, match=r"is not locked; run .* --update-layouts"):
        load_bodies(api)
    update_lock(api)
    assert line in (api / LOCK).read_text()
    load_bodies(api)


def test_the_committed_ones_are_locked_and_named_by_commands() -> None:
    said = load_bodies(API)
    assert len(said.structs) > 100
    own = load_own_commands(API)
    check_bodies(own, said)
    assert {c.name for c in own.commands if not c.body} == {
        *(
            "Reply",
            "OpenSession",
            "OpenReply",
            "Close",
            "ResumeSession",
            "ResumeReply",
            "ResumeProof",
            "RdmaOffer",
            "RdmaAnswer",
            "RdmaVerdict",
        ),
        *("Ping", "ReadOutput"),
    }


def test_a_command_without_a_body_is_named(tmp_path: Path) -> None:
    (tmp_path / "commands.yaml").write_text(
        "{retired: [], objects: {}, state: [], commands: {Copy: {id: 4, class: async},"
        " Paste: {id: 5, class: async}, Cut: {id: 6, class: async, body: none}}}"
    )
    own = load_own_commands(tmp_path)
    assert [c.body for c in own.commands] == ["Copy", "Paste", ""]
    with pytest.raises(RegistryError, match="Paste: no file of native/api/bodies has a struct"):
        check_bodies(own, read_bodies(write(tmp_path, GOOD)))


def first_reads() -> dict[str, str]:
    """What each handler reads first of a command's body, by the command; "" where nothing is."""
    found = {}
    files = [
        path for folder in (".", "merge", "profile") for path in (WORKER / folder).glob("*.cc")
    ]
    for path in sorted(files):
        text = path.read_text()
        for command, function in re.findall(r"t\[wire::k(\w+)\]\.run =\s*(\w+);", text):
            body = re.search(
                rf"^void {function}\(Session&[^)]*\) \{{(.*?)^\}}", text, re.MULTILINE | re.DOTALL
            )
            assert not body or "fixed<" in body[1] or "Decoder" not in body[1], command
            read = re.search(r"\.fixed<(?:wire::)?(\w+)>", body[1]) if body else None
            found[command] = read[1] if read else ""
    return found


def test_handlers_read_the_body_that_the_registry_names() -> None:
    said = load_bodies(API)
    read = first_reads()
    for command in load_own_commands(API).commands:
        if command.class_ == "session":
            continue
        same = said.structs[command.body].same_as if command.body else ""
        assert read[command.name] in {command.body, same}, command.name


def test_the_lock_may_be_read_in_any_order() -> None:
    lines = LOCKED.splitlines()
    check_lock(lines, reversed(lines))
