# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector, kept out of the way of answers.

Used by controller.service. A full collection looks at every object of the pool, which takes 0.1 s
where 50,000 grants live, and finds nothing: the pool's records have no cycles and go by their
reference counts. So nothing is collected while a pool is loaded, all that is there then is left out
from then on, and full collections are made once a minute, of what has come since. Once an hour all
is looked at, for what had become garbage after it was left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

# young objects are many at a time, those of the middle generation at most 20,000 (2 ms), and old
# ones only when it is said
THRESHOLDS = (2000, 10, 1_000_000)
EVERY_SECONDS = 60.0
ROUNDS_OF_ALL = 60


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Nothing is collected inside of this block; what it has made is left out afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()


async def tend() -> None:
    """Collects what is old, without end."""
    rounds = 0
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        rounds += 1
        if rounds % ROUNDS_OF_ALL == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
