# SPDX-License-Identifier: Apache-2.0
"""Where a test's process runs: an address of its own, and what must be said before its command.

Used by the harnesses of controllers and etcd members. `HERE` is this machine's loopback; a chaos
run gives each process a network namespace, so that its cable can be pulled.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """An address, and the words that put a command there."""

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


HERE = Place()
