# SPDX-License-Identifier: Apache-2.0
"""Reads and sets `guestinfo.sluice.*` of this VM with VMware's own tools.

Used by enrol.py. `vmware-rpctool` and `vmtoolsd --cmd` (package open-vm-tools) speak to the
hypervisor; any user of the guest may. What is read is another's text: enrol.py checks it.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import Optional

PREFIX = "guestinfo.sluice."
PATIENCE_SECONDS = 15
LONGEST = 64 << 10
NO_VALUE = "no value found"


class GuestInfoError(Exception):
    """The tools are missing or do not work; the message says what to do."""


@dataclass(frozen=True)
class GuestInfo:
    """The tool that this guest has, as the words before a command."""

    tool: tuple[str, ...]

    def get(self, key: str) -> str:
        """A key's value; empty if it is not set."""
        done = self._run(f"info-get {PREFIX}{key}")
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            if NO_VALUE in said.lower():
                return ""
            raise GuestInfoError(
                f"{self.tool[0]} cannot read {PREFIX}{key} ({said[:200] or done.returncode}): is "
                "this a vSphere VM?"
            )
        return done.stdout.strip()[:LONGEST]

    def clear(self, key: str) -> bool:
        """Empties a key; False if the hypervisor does not let the guest."""
        return self._run(f"info-set {PREFIX}{key} ").returncode == 0

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.tool, command],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GuestInfoError(f"{self.tool[0]} does not work: {error}") from None


def find_tool(path: Optional[str] = None) -> GuestInfo:  # noqa: UP045 - guests have Python 3.9
    """The tool of this guest; raises GuestInfoError if it has none."""
    if tool := shutil.which("vmware-rpctool", path=path):
        return GuestInfo((tool,))
    if tool := shutil.which("vmtoolsd", path=path):
        return GuestInfo((tool, "--cmd"))
    raise GuestInfoError(
        "neither vmware-rpctool nor vmtoolsd is here: install open-vm-tools (this is for vSphere)"
    )
