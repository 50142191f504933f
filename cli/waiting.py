# SPDX-License-Identifier: Apache-2.0
"""`--wait`: follows what takes long until it is done, and says meanwhile what it waits for.

Used by the commands that begin such things. What is not done in time goes on all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.cli import output
from sluice.cli.rest import CommandError

POLL_SECONDS = 0.2


def follow(look: Callable[[], tuple[bool, str]], seconds: float, what: str) -> None:
    """Looks again and again: (whether it is done, what it waits for); raises CommandError."""
    deadline = time.monotonic() + seconds
    with output.working(what) as say:
        while True:
            done, waits_for = look()
            if done:
                return
            say(f"{what}: {waits_for}" if waits_for else what)
            if time.monotonic() >= deadline:
                why = f" ({waits_for})" if waits_for else ""
                raise CommandError(f"{what}: not within {seconds:g} s{why}; it goes on")
            time.sleep(POLL_SECONDS)
