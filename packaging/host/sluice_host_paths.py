# SPDX-License-Identifier: Apache-2.0
"""Lets the host package's Python find what is not in it: bindings of the system's, additions.

Imported by sluice-host.pth whenever that Python starts. The bindings of libvirt and of libibverbs
have to be those of the system's libraries, so they are the distribution's; nothing else of its
Python packages is seen. What an operator adds (CuPy for the check of GPUs, OpenStack's client)
lies in /usr/local/lib/sluice-host/pythonX.Y, by `pip install --target`.
"""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

OF_THE_SYSTEM = {"libvirt", "libvirtaio", "libvirt_lxc", "libvirt_qemu", "libvirtmod"}
OF_THE_SYSTEM |= {"libvirtmod_lxc", "libvirtmod_qemu", "pyverbs"}
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SYSTEM = [
    "/usr/lib/python3/dist-packages",
    f"/usr/lib64/{VERSION}/site-packages",
    f"/usr/lib/{VERSION}/site-packages",
]
ADDITIONS = f"/usr/local/lib/sluice-host/{VERSION}"


class SystemBindings:
    """Finds the modules that the system's packages have for its own libraries."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """As importlib asks its finders."""
        if path is None and name in OF_THE_SYSTEM:
            return importlib.machinery.PathFinder.find_spec(name, SYSTEM)
        return None


sys.meta_path.append(SystemBindings)
if Path(ADDITIONS).is_dir():
    sys.path.append(ADDITIONS)
