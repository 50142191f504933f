# SPDX-License-Identifier: Apache-2.0
"""A guest of the simulated vCenter, as `sluice enrol` sees it: its folder and its guestinfo.

There is no VMware guest here. A script stands in for `vmware-rpctool`: it answers as the real one
does, from the extraConfig of the VM in the simulated vCenter, and sets keys there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapter import Rig

ROOT = Path(__file__).resolve().parents[2]


TOOL = """\
#!{python}
import json, pathlib, sys
store = pathlib.Path({store!r})
words = sys.argv[-1].split(" ", 2)
values = json.loads(store.read_text())
if words[0] == "info-get":
    value = values.get(words[1])
    if value is None:
        sys.exit("No value found")
    print(value)
elif words[0] == "info-set":
    values[words[1]] = words[2] if len(words) > 2 else ""
    store.write_text(json.dumps(values))
else:
    sys.exit("Unknown command")
"""


class Guest:
    """A guest's files and its FakeRpcTool."""

    def __init__(self, folder: Path, tool: str = "vmware-rpctool") -> None:
        self.dir = folder / "etc"
        self.bin = folder / "bin"
        self.store = folder / "guestinfo.json"
        self.bin.mkdir(parents=True)
        self.store.write_text("{}")
        path = self.bin / tool
        path.write_text(TOOL.format(python=sys.executable, store=str(self.store)))
        path.chmod(0o755)

    def set(self, **values: str) -> None:
        old = json.loads(self.store.read_text())
        new = {f"guestinfo.sluice.{key}": value for key, value in values.items()}
        self.store.write_text(json.dumps({**old, **new}))

    def enrol(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sluice.guest_runtime", "enrol", "--dir", str(self.dir), *words],
            env={"PATH": str(self.bin), "PYTHONPATH": str(ROOT / "python")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def mirror(rig: Rig, vm: Any, guest: Guest) -> dict[str, str]:
    """What vCenter has for the VM, as its guest sees it."""
    extra: dict[str, str] = {k: v for k, v in rig.vcenter.extra(vm).items() if v}
    guest.store.write_text(json.dumps(extra))
    return extra


def told(rig: Rig, vm: Any) -> dict[str, str]:
    """What the guest would read."""
    prefix = "guestinfo.sluice."
    extra = rig.vcenter.extra(vm)
    return {key.removeprefix(prefix): v for key, v in extra.items() if key.startswith(prefix) and v}
