# SPDX-License-Identifier: Apache-2.0
"""A difference between what the pool and OpenStack should agree on, in words and for scripts.

Made by inventory.py, flavors.py and grants.py; `sluice openstack check` shows them, and
`sluice openstack sync` mends what it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What is not as it should be."""

    RESOURCE_CLASS = "resource-class"
    TRAIT = "trait"
    PROVIDER = "provider"
    PROVIDER_TRAITS = "provider-traits"
    PROVIDER_AGGREGATE = "provider-aggregate"
    INVENTORY = "inventory"
    COMPUTE_AGGREGATE = "compute-aggregate"
    FLAVOR = "flavor"
    ALLOCATION = "allocation"
    GRANT = "grant"


#: These people mend: a flavor is an administrator's, an allocation is Nova's.
BY_HAND = frozenset({Kind.FLAVOR, Kind.ALLOCATION})


@dataclass(frozen=True)
class Difference:
    """One line of `sluice openstack check`."""

    kind: Kind
    subject: str
    wanted: Any
    found: Any
    explanation: str

    def as_row(self) -> dict[str, Any]:
        """For a table, JSON and YAML."""
        return {
            "kind": self.kind.value,
            "subject": self.subject,
            "wanted": self.wanted,
            "found": self.found,
            "explanation": self.explanation,
            "mended_by": "hand" if self.kind in BY_HAND else "sync",
        }
