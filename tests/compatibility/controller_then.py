# SPDX-License-Identifier: Apache-2.0
"""sluice-controller of today at another time: `python -m tests.compatibility.controller_then …`.

SLUICE_THEN says by how many seconds Sluice's own wall clock differs from the machine's. gRPC's does
not: it counts its deadlines by it, and etcd's leases run by it. Everything else is the controller's
own main.
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType
from typing import Any

VARIABLE = "SLUICE_THEN"


class Clocks(ModuleType):
    """The module `time` with another wall clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__("time")
        self._seconds = seconds
        self._right = time.time

    def time(self) -> float:
        """Seconds since the epoch, then."""
        return self._right() + self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main() -> int:
    """The controller, after its clock was changed."""
    clocks, right = Clocks(float(os.environ[VARIABLE])), time.time
    time.time = clocks.time  # what is a default of a parameter is taken at the import
    from sluice.controller.__main__ import main as controller

    time.time = right
    for name, module in list(sys.modules.items()):
        if name.startswith("sluice.controller") and getattr(module, "time", None) is time:
            module.time = clocks  # type: ignore[attr-defined]
    return controller()


if __name__ == "__main__":
    sys.exit(main())
