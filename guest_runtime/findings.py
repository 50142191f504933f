# SPDX-License-Identifier: Apache-2.0
"""One line of `sluice check`: what was looked at, what was found, what to do about it.

Made by program_check.py, channels.py and installation_check.py, printed by check.py.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """What a finding means for the program."""

    OK = "ok"
    NOTE = "note"  # worth knowing; it works all the same
    BAD = "bad"  # it will not work until this is done


@dataclass(frozen=True)
class Finding:
    """`subject` was looked at; `text` is what was found; `remedy` is what to do, if anything."""

    verdict: Verdict
    subject: str
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Verdict.OK, subject, text)


def note(subject: str, text: str, remedy: str = "") -> Finding:
    """It works, but this is worth knowing."""
    return Finding(Verdict.NOTE, subject, text, remedy)


def bad(subject: str, text: str, remedy: str) -> Finding:
    """It does not work until `remedy` is done."""
    return Finding(Verdict.BAD, subject, text, remedy)
