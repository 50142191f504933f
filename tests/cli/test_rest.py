# SPDX-License-Identifier: Apache-2.0
"""What came of asking the controllers, as exit statuses of commands."""

from __future__ import annotations

import pytest

from sluice.cli.rest import (
    EXIT_NOT_ALLOWED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    command_error,
)
from sluice.pool_client.errors import PoolError, Refused, Unanswered


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused("no token", 401), EXIT_NOT_ALLOWED),
        (Refused("no right", 403), EXIT_NOT_ALLOWED),
        (Refused("no such grant", 404), EXIT_NOT_FOUND),
        (Refused("not possible", 409), EXIT_REFUSED),
        (Refused("a proxy's own status", 520), EXIT_REFUSED),
        (Unanswered("nobody is there"), EXIT_UNREACHABLE),
        (PoolError("the token would be in the clear"), EXIT_REFUSED),
    ],
)
def test_every_error_has_its_status(error: PoolError, status: int) -> None:
    ended = command_error(error)
    assert ended.status == status
    assert str(error) in str(ended)
