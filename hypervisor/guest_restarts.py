# SPDX-License-Identifier: Apache-2.0
"""Why guests restarted, as libvirt's events tell it, until the server has been told.

Used by service.py, whose looks at a domain come after the events and may no longer show that
another guest runs now. A look may also come before the event of what it saw: an end that was dealt
with is not the end of the next run. All methods belong to one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """What events had told of a domain when a look at it began."""

    why: str | None = None
    #: Whether it was started since the look before.
    started: bool = False


class GuestRestarts:
    """Of every domain; looks take what was told, and give it back if they fail."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}
        self._started: set[str] = set()

    def started(self, uuid: str, why: str | None) -> None:
        """Another run began; `why` where it began with the memory of an older one."""
        self._started.add(uuid)
        if why:
            self._why[uuid] = why

    def stopped(self, uuid: str, why: str, *, known_off: bool) -> None:
        """A run ended: one that a look has seen ended already, unless another had begun."""
        if not known_off or uuid in self._started:
            self._why[uuid] = why

    def restarted(self, uuid: str, why: str) -> None:
        """The guest is another one in the same run."""
        self._why[uuid] = why

    def reset(self, uuid: str, why: str) -> None:
        """The machine was reset; after a crash libvirt does so itself, which is no other reason."""
        self._why.setdefault(uuid, why)

    def take(self, uuid: str) -> Told:
        """What a look that begins now has to see to."""
        told = Told(self._why.pop(uuid, None), uuid in self._started)
        self._started.discard(uuid)
        return told

    def give_back(self, uuid: str, why: str | None, *, started: bool) -> None:
        """The look failed; what was told meanwhile is newer."""
        if why:
            self._why.setdefault(uuid, why)
        if started:
            self._started.add(uuid)

    def seen_off(self, uuid: str) -> None:
        """A look saw it off: what was told meanwhile is of that end, unless another run began."""
        if uuid not in self._started:
            self._why.pop(uuid, None)
