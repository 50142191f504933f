# SPDX-License-Identifier: Apache-2.0
"""Places that callers take and give back: connections, streams, requests under way, kept keys.

Used by the listeners of server and controller. There are so many in all, and an owner (a user, a
guest, an address, a project) has only some of them: no more than its own bound, and the fewer, the
fewer are free. By the second rule owners that take all they can get less and less, so that after
twenty of them there are still places for others, and the last ones are given out one by one. Some
may be kept for operators.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import Counter
from collections.abc import Iterator
from enum import Enum


class Full(Enum):
    """Why there is no place."""

    OWNER = "the owner has as many as it may have"
    ALL = "all are taken"


class Places:
    """So many places."""

    def __init__(self, most: int, most_of_owner: int | None = None, *, kept: int = 0) -> None:
        """`kept` are for those who are privileged; without `most_of_owner` all are anybody's."""
        self.most = most
        self._most_of_owner = most_of_owner
        self._kept = kept
        self._taken: Counter[str] = Counter()
        self._all = 0

    def __len__(self) -> int:
        return self._all

    def of(self, owner: str) -> int:
        """How many the owner has."""
        return self._taken.get(owner, 0)

    @property
    def owners(self) -> int:
        """How many have any."""
        return len(self._taken)

    def take(self, owner: str, *, privileged: bool = False) -> Full | None:
        """Takes one; or says why there is none."""
        if full := self.full_for(owner, privileged=privileged):
            return full
        self.put(owner)
        return None

    def put(self, owner: str) -> None:
        """One that the owner has already, however many there are."""
        self._taken[owner] += 1
        self._all += 1

    def full_for(self, owner: str, *, privileged: bool = False) -> Full | None:
        """Why the owner would get none now; None: it would get one."""
        there_are = self.most - (0 if privileged else self._kept)
        free = there_are - self._all
        if free <= 0:
            return Full.ALL
        if self._most_of_owner is None:
            return None
        share = self.most if privileged else max(1, free * free // there_are)
        return Full.OWNER if self.of(owner) >= min(self._most_of_owner, share) else None

    def give_back(self, owner: str) -> None:
        """One that the owner took is free again."""
        self._all -= 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]

    @contextlib.contextmanager
    def held(self, owner: str) -> Iterator[None]:
        """The block in which a place that was taken is used."""
        try:
            yield
        finally:
            self.give_back(owner)


def owner_of_address(host: str) -> str:
    """Whose an address is: of IPv6 the network of 64 bits that a single machine has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
