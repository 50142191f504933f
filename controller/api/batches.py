# SPDX-License-Identifier: Apache-2.0
"""What calls with many items have in common: each item is read, answered and recorded for itself.

Used by reservation_batch.py and enrolment_batch.py. An item that cannot be read is that item's
problem, by its number and its field, and fails no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.functional_validators import ModelWrapValidatorHandler

from sluice.config.log_ids import request_id
from sluice.controller.api.problems import Problem, invalid
from sluice.controller.auth.access import Caller

MOST_ITEMS = 250  # so that a step of the pool, during which nobody else is heard, is short
AUDIT_KIND = "audit.post"


@dataclass(frozen=True, slots=True)
class Malformed:
    """An item that cannot be read."""

    errors: Sequence[Any]

    def problem(self, place: int) -> Problem:
        """What it has wrong, as the item at this place of a list that is told apart by `do`."""
        # the way into the item begins with which kind of item it is, where it could be told
        errors = [
            {**error, "loc": error["loc"][1:] if error["loc"] else ("do",)} for error in self.errors
        ]
        return invalid(errors, ("items", place))


def or_malformed(value: Any, read: ModelWrapValidatorHandler[Any]) -> Any:
    """Reads an item, for pydantic's WrapValidator; what it has wrong must not fail the whole."""
    try:
        return read(value)
    except ValidationError as error:
        return Malformed(error.errors())


def audit_line(path: str, place: int, what: str, caller: Caller) -> str:
    """The text of the audit trail for one item; `what` ends with its status."""
    name = request_id()
    return f"POST {path} items.{place}: {what}, {caller}" + (f", request {name}" if name else "")
