# SPDX-License-Identifier: Apache-2.0
"""The pages list exactly the keys that the readers of configuration files know."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sluice.guest_runtime.client_settings import ALL
from sluice.guest_runtime.ini_lines import read_lines

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "dev"))

import configuration_reference as reference  # noqa: E402

PAGE = reference.PAGE.read_text()
TABLES = dict(re.findall(r"<!-- ([^\n]+) -->\n(.*?)<!-- end -->", PAGE, re.DOTALL))
SECTIONS = [
    (f"{file} [{name}]", section)
    for file, model in reference.MODELS.items()
    for name, section in reference.sections(model)
]


def first_cells(table: str) -> list[str]:
    """What stands in the first column, below the head."""
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("page", [reference.PAGE, reference.GUESTS_PAGE], ids=lambda p: p.name)
def test_a_page_has_the_tables_of_now(page: Path) -> None:
    assert page.read_text() == reference.current(page), "run `make docs`"


def test_the_example_for_guests_is_that_of_now() -> None:
    assert reference.EXAMPLE.read_text() == reference.example(), "run `make docs`"


def test_the_keys_of_services_are_those_of_their_readers() -> None:
    documented = {section for place, section in SECTIONS if place in TABLES}
    for place, section in SECTIONS:
        if place in TABLES:
            assert first_cells(TABLES[place]) == list(section.model_fields), place
        else:  # the same section as another file's, and the page says so
            assert place in ("vsphere.conf [log]", "openstack.conf [log]", "kubernetes.conf [log]")
            assert section in documented
    places = {place for place, _ in SECTIONS}
    assert {p for p in TABLES if not p.startswith("client.conf")} <= places
    # no other table of the page lists keys
    outside = re.sub(r"<!-- [^\n]+ -->\n.*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    assert "| key |" not in outside


def test_the_keys_and_variables_of_clients_are_those_of_the_table() -> None:
    listed = {
        f"{section}.{key}" if section != "none" else key
        for section in ("log", "controller", "client", "none")
        for key in first_cells(TABLES[f"client.conf [{section}]"])
    }
    assert listed == {setting.key or setting.variables[0] for setting in ALL}
    clients = "".join(text for place, text in TABLES.items() if place.startswith("client.conf"))
    named = set(re.findall(r"\b(?:SLUICE|ORION)_[A-Z_]*[A-Z]\b", clients))
    assert named == {variable for setting in ALL for variable in setting.variables}
    options = set(re.findall(r"`(--[a-z-]+)`", clients)) - {
        "--share"
    }  # it sets no variable's value
    assert options == {setting.option for setting in ALL if setting.option}


def test_the_example_has_every_key_with_its_default_and_sets_none() -> None:
    text = reference.EXAMPLE.read_text()
    assert not any(line.key or line.unknown for line in read_lines(text))
    uncommented = re.sub(r"^;(?=\w+ =)", "", text, flags=re.MULTILINE)
    found = {f"{v.section}.{v.key}": v.value for v in read_lines(uncommented) if v.key}
    assert found == {setting.key: setting.default for setting in ALL if setting.key}


def test_bounds_are_said_as_they_are_judged() -> None:
    assert "| `vgpu_count` | `4` | 1 to 64 |" in TABLES["server.conf [server]"]
    assert (
        "| `worker_start_seconds` | `60` | more than 0, at most 600 |"
        in (TABLES["server.conf [server]"])
    )
    assert "| `silent_seconds` | `300` | more than 0 |" in TABLES["server.conf [server]"]
    assert "| `events_kept` | `100000` | at least 100 |" in TABLES["controller.conf [pool]"]
    assert "| `memory_mib` | `0` | 0 to 1073741824 |" in TABLES["vsphere.conf [clients]"]
    assert "{bounds}" not in PAGE
