# SPDX-License-Identifier: Apache-2.0
"""Makes `nova.virt.sluice` importable wherever Nova is installed.

Nova loads a compute driver from nova.virt and from nowhere else. sluice_nova.pth imports this
module when a Python of that environment starts; it adds a finder that answers for the one name and
costs nothing else. It imports no Nova.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

NOVA_NAME = "nova.virt.sluice"
OUR_NAME = "sluice_nova.driver"


class _Loader:
    """Gives nova.virt.sluice the names of our driver module, which is loaded once."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        driver = importlib.import_module(OUR_NAME)
        module.__doc__ = driver.__doc__
        module.LibvirtDriver = driver.LibvirtDriver  # type: ignore[attr-defined]


class Finder:
    """A finder of sys.meta_path."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of nova.virt.sluice; None for every other module."""
        if name != NOVA_NAME:
            return None
        return importlib.util.spec_from_loader(name, _Loader(), origin=OUR_NAME)  # type: ignore[arg-type]


def install() -> None:
    """Adds the finder, once."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)


install()
