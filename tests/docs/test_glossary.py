# SPDX-License-Identifier: Apache-2.0
"""The glossary is short, true, and what the code's classes are called by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (CHECKOUT / "docs" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| term", "| ---"))
]
PRODUCT = (
    *("cli", "config", "console", "controller", "guest_runtime", "hypervisor", "nova_driver"),
    *("pool_client", "resources", "server", "support"),
)
#: Words of our own making that readers had to guess, and had several meanings.
GIVEN_UP = r"Desk|Door(?!bell)|Office|Asker|Wish|Books|Room"
PYTHON = re.compile(rf"^\s*class (\w*(?:{GIVEN_UP})\w*)|^(\w*WISH\w*) =", re.MULTILINE)
CPP = re.compile(rf"\b(?:struct|class) (\w*(?:{GIVEN_UP})\w*)|\b(k\w*Wish\w*)\b")
#: The registry's limits become constants of both languages.
LIMIT = re.compile(r"^ +(\w*(?:wish|desk|asker)\w*):", re.MULTILINE)


def test_it_stays_short_and_in_order() -> None:
    """Forty terms can be learned."""
    terms = [row[0].lower() for row in ROWS]
    assert 20 < len(terms) <= 40
    assert terms == sorted(terms)


def test_each_term_is_where_the_glossary_says() -> None:
    """Paths of the table exist."""
    paths = [path for row in ROWS for path in re.findall(r"`([^`]+)`", row[2])]
    assert len(paths) >= len(ROWS)
    assert not [path for path in paths if not (CHECKOUT / path).exists()]


def names_in(folders: Iterable[str], pattern: str, given_up: re.Pattern[str]) -> set[str]:
    """Where a file of these folders names something by a word that was given up."""
    return {
        f"{source.relative_to(CHECKOUT)}: {found.group(found.lastindex or 0)}"
        for folder in folders
        for source in (CHECKOUT / folder).rglob(pattern)
        for found in given_up.finditer(source.read_text())
    }


def test_classes_and_limits_are_not_called_by_words_that_were_given_up() -> None:
    """In Python and C++, of the product and of its tests, and in the registry."""
    found = names_in((*PRODUCT, "tests"), "*.py", PYTHON)
    found |= names_in(("native", "tests/native"), "*.h", CPP)
    found |= names_in(("native", "tests/native"), "*.cc", CPP)
    found |= names_in(("native/api",), "*.yaml", LIMIT)
    assert not found


@pytest.mark.parametrize(
    ("pattern", "text", "name"),
    [
        (PYTHON, "class Books:\n", "Books"),
        (PYTHON, "MAX_WISH_BYTES = 1\n", "MAX_WISH_BYTES"),
        (CPP, "const struct NvmlDoor {", "NvmlDoor"),
        (CPP, "n = kMaxWishBytes;", "kMaxWishBytes"),
        (LIMIT, "  max_wish_bytes: {}", "max_wish_bytes"),
    ],
)
def test_such_names_are_seen(pattern: re.Pattern[str], text: str, name: str) -> None:
    """So that finding none says something."""
    [found] = pattern.finditer(text)
    assert found.group(found.lastindex or 0) == name


def test_a_doorbell_is_no_door() -> None:
    """Guests ring one."""
    assert not CPP.search("class Doorbell {")
