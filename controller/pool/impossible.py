# SPDX-License-Identifier: Apache-2.0
"""The error of what an operator asked for and the pool cannot do as things are."""

from __future__ import annotations


class Impossible(Exception):
    """What was asked for cannot be; the message says why and what to do."""


class Over(Impossible):
    """It has ended; `kind` is grant or reservation."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Unknown(Exception):
    """There is no such thing; the arguments are its kind and its name."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name}")
        self.kind = kind
        self.name = name


class Outdated(Exception):
    """Something has changed since the caller looked; the message says what to look at again."""
