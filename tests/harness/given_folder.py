# SPDX-License-Identifier: Apache-2.0
"""Starts programs that have a folder mounted as containers have it, in a mount namespace each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def with_folder(command: Sequence[str], source: str, place: Path) -> list[str]:
    """`command` with `source` mounted at `place`, which has to be there; only root can."""
    mount = f"mount --bind {shlex.quote(source)} {shlex.quote(str(place))}"
    script = f'{mount} && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command]
