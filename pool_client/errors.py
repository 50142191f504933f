# SPDX-License-Identifier: Apache-2.0
"""What may come of asking the controllers, by what its caller can do about it."""

from __future__ import annotations

from http import HTTPStatus

from sluice.resources.problem_types import ProblemType


class PoolError(Exception):
    """Nothing came of it; the message says why."""


class UnusableAccess(PoolError):
    """A token, a CA or an address that cannot be used; nobody was asked."""


class Unanswered(PoolError):
    """No controller answered. A change may have been made: look at what there is first."""


class Refused(PoolError):
    """A controller says no, in its own words.

    `type` is its problem document's, "" where that has none, as of a controller of 0.1.
    """

    def __init__(self, detail: str, status: int, type: str = "") -> None:  # noqa: A002
        super().__init__(detail)
        self.status = status
        self.type = type

    @property
    def is_not_found(self) -> bool:
        """Whether there is no such thing."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def is_over(self) -> bool:
        """Whether what was to be ended is not there, or has ended already."""
        if self.type:
            return self.type in _OVER
        return self.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


_OVER = frozenset(
    kind.uri
    for kind in (
        ProblemType.ENROLMENT_OVER,
        ProblemType.GRANT_ENDED,
        ProblemType.NOT_FOUND,
        ProblemType.RESERVATION_OVER,
    )
)
