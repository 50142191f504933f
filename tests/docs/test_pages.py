# SPDX-License-Identifier: Apache-2.0
"""Pages are read in editors and in diffs: lines of prose are short, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
GENERATED = {"cli.md", "api-coverage.md"}
PAGES = [
    *sorted(CHECKOUT.glob("*.md")),
    *sorted(p for p in (CHECKOUT / "docs").rglob("*.md") if p.name not in GENERATED),
]
COLUMNS = 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_prose_has_short_lines(page: Path) -> None:
    """Rows of tables and code are as long as they are."""
    long, in_code = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        is_prose = not in_code and not line.startswith("    ") and not line.lstrip().startswith("|")
        if is_prose and len(line) > COLUMNS:
            long.append(f"{number}: {line[:60]}…")
    assert not long, f"wrap them at {COLUMNS} columns"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_to_files_that_there_are(page: Path) -> None:
    """Links within the repository; those into the net are not followed."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert not [link for link in local if not (page.parent / link).exists()]
