# SPDX-License-Identifier: Apache-2.0
"""What tests say of findings: which are bad, and that each says what to do."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.guest_runtime.findings import Finding, Verdict


def bad(found: Iterable[Finding]) -> list[Finding]:
    """Those that are wrong; each names a remedy."""
    wrong = [each for each in found if each.verdict is Verdict.BAD]
    assert all(each.remedy for each in wrong), wrong
    return wrong


def only_bad(found: Iterable[Finding], *words: str) -> Finding:
    """The one that is wrong, whose line has these words."""
    [wrong] = bad(found)
    for word in words:
        assert word in f"{wrong.subject}: {wrong.text} -> {wrong.remedy}"
    return wrong


def noted(found: Iterable[Finding], *words: str) -> Finding:
    """A note whose line has these words."""
    lines = {
        f"{each.subject}: {each.text} -> {each.remedy}": each
        for each in found
        if each.verdict is Verdict.NOTE
    }
    for line, each in lines.items():
        if all(word in line for word in words):
            return each
    raise AssertionError(f"no note with {words} in {list(lines)}")
