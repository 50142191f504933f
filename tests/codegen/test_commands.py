# SPDX-License-Identifier: Apache-2.0
"""commands.yaml is checked when it is read: what is wrong is named with its place and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import load_own_commands
from imported import RegistryError
from wire_layout import camel_case

API = Path(__file__).resolve().parents[2] / "native" / "api"
GOOD = """
retired: [12]
objects:
  stream: {kind: 2, most: 10}
  graph_exec: {kind: 17}
state: [blob]
commands:
  Ping: {id: 4, class: answered}
  Make: {id: 4032, class: either, may_block: true, allocates: device, creates: [stream]}
"""


def load(tmp_path: Path, text: str) -> object:
    (tmp_path / "commands.yaml").write_text(text)
    return load_own_commands(tmp_path)


def test_a_good_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "commands.yaml").write_text(GOOD)
    said = load_own_commands(tmp_path)
    assert [c.name for c in said.commands] == ["Ping", "Make"]
    assert said.state == ("stream", "graph_exec", "blob")
    assert [camel_case(o.name) for o in said.objects] == ["Stream", "GraphExec"]
    assert [o.most for o in said.objects] == [10, 0]
    make = said.commands[1]
    assert (make.class_, make.may_block, make.allocates) == ("either", True, "device")
    assert (make.creates, make.changes, make.destroys) == (("stream",), (), ())


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("id: 4,", "id: 64,", "Ping: the id 64 is not from 0 to 63"),
        ("id: 4,", "id: 12,", "Ping: the id 12 is retired's"),
        ("id: 4032,", "id: 4,", "Make: the id 4 is Ping's"),
        ("class: answered", "class: sometimes", "Ping: class 'sometimes' is none of"),
        ("class: either", "class: async", "Make: may_block: nobody waits"),
        ("allocates: device", "allocates: disk", "Make: allocates 'disk' is none of"),
        ("creates: [stream]", "creates: [steam]", "Make: creates: 'steam' is neither"),
        ("creates:", "makes:", "Make: unknown key 'makes'"),
        ("kind: 17", "kind: 2", "objects: kinds are numbers"),
        ("state: [blob]", "state: [stream]", "objects and state: at most 64 names, each once"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(RegistryError) as error:
        load(tmp_path, GOOD.replace(was, becomes))
    assert said in str(error.value)


def test_the_committed_one_is_good() -> None:
    said = load_own_commands(API)
    assert {c.name for c in said.commands} >= {"OpenSession", "Launch", "LinkEnd"}
