# SPDX-License-Identifier: Apache-2.0
"""The glossary is short, true, and what the code's classes are called by."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (CHECKOUT / "docs" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| term", "| ---"))
]
PRODUCT = (
    *("cli", "config", "controller", "guest_runtime", "hypervisor", "nova_driver"),
    *("pool_client", "resources", "server"),
)
#: Words of our own making that readers had to guess, and had several meanings.
NOT_CLASSES = re.compile(
    r"^\s*class (\w*(?:Desk|Door(?!bell)|Office|Asker|Wish|Books|Room)\w*)", re.MULTILINE
)


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


def test_classes_are_not_called_by_words_that_were_given_up() -> None:
    """In the product's Python."""
    found = {
        f"{source.relative_to(CHECKOUT)}: {name}"
        for folder in PRODUCT
        for source in (CHECKOUT / folder).rglob("*.py")
        for name in NOT_CLASSES.findall(source.read_text())
    }
    assert not found
