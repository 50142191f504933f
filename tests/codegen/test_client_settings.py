# SPDX-License-Identifier: Apache-2.0
"""client_settings.yaml is checked when it is read, and both languages have the same table of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from client_settings import Setting, load_client_settings
from imported import RegistryError

from sluice.guest_runtime import client_settings as guests

from .conftest import ROOT

API = ROOT / "native" / "api"
GOOD = """
flag: {"true": ["yes"], "false": ["no"]}
names:
  project: {characters: "._-", most: long, wanted: a name}
settings:
  size: {section: client, variables: [SLUICE_SIZE], option: --size, type: number, from: -long,
         to: long, default: 2, about: how large}
  way: {section: client, type: words, choices: [auto, tcp], default: auto, about: by which way}
  net: {section: client, type: flag, default: "yes", about: whether}
  account: {variables: [SLUICE_ACCOUNT], type: name, name: project, about: whose}
"""
PROTOCOL = "{limits: {long: {type: u32, value: 9}}, enumerations: {}, structs: {}}"


def read(folder: Path, text: str) -> dict[str, Setting]:
    (folder / "protocol.yaml").write_text(PROTOCOL)
    (folder / "client_settings.yaml").write_text(text)
    return {setting.name: setting for setting in load_client_settings(folder).settings}


def test_a_good_one_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert (found["size"].key, found["size"].least, found["size"].most) == ("client.size", -9, 9)
    assert found["account"].key == ""
    rule = found["account"].rule
    assert rule
    assert rule.pattern == "[A-Za-z0-9._-]{1,9}"


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("to: long", "to: short", "size: to: 'short' is neither a number nor a limit"),
        ("from: -long", "from: 10", "size: nothing is from 10 to 9"),
        ("default: 2", "default: 10", "size: the default 10 is not from -9 to 9"),
        ("default: 2", "size: 2", "size: unknown key 'size'"),
        ("default: auto", "default: shm", "way: the default 'shm' is none of ['auto', 'tcp']"),
        ('default: "yes"', "default: on", "net: the default 'True' is none of ['yes', 'no']"),
        ("type: flag", "type: bool", "net: type 'bool' is none of"),
        (", about: whether", "", "net: about is missing"),
        ("name: project, about", "name: host, about", "name 'host' is none of ['project']"),
        ("{variables: [SLUICE_ACCOUNT], ", "{", "account: neither section nor variables"),
        ("[SLUICE_ACCOUNT]", "[ACCOUNT]", "account: variables ['ACCOUNT'] are not at most 2"),
        ("[SLUICE_ACCOUNT]", "[SLUICE_SIZE]", "SLUICE_SIZE is given to two settings"),
        ("  way:", "  Way:", "settings: Way: a name has small letters"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(RegistryError) as error:
        read(tmp_path, GOOD.replace(was, becomes, 1))
    assert str(error.value).startswith("client_settings.yaml: ")
    assert said in str(error.value)


def test_guests_have_every_setting_with_its_bounds() -> None:
    for said, has in zip(load_client_settings(API).settings, guests.ALL, strict=True):
        assert (said.name, said.key, said.variables) == (has.name, has.key, has.variables)
        assert (said.option, said.default) == (has.option, has.default)
        if said.type == "number":
            assert has.accepts == range(said.least, said.most + 1)
        elif said.type == "words":
            assert has.accepts == said.choices
        assert has.flag == (said.type == "flag")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("project", ["a", "A.b_c-9", "x" * 120], ["", "a/b", "a b", "x" * 121]),
        ("gpu_model", ["NVIDIA H200 (a/b)"], ["h200;", "x" * 121]),
        ("gpu_architecture", ["sm_90"], ["sm-90", "x" * 33]),
        ("labels", ["rack=r12", "a=b, c/d=e", ",".join(["a=b"] * 16)],
         ["rack", "=x", "a=b;c=d", "a=" + "x" * 64, ",".join(["a=b"] * 17)]),
    ],
)  # fmt: skip
def test_texts_are_what_they_may_be(name: str, good: list[str], bad: list[str]) -> None:
    text = guests.BY_NAME[name].text
    assert text
    assert all(re.fullmatch(text[0], each) for each in good)
    assert not any(re.fullmatch(text[0], each) for each in bad)
