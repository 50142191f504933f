# SPDX-License-Identifier: Apache-2.0
"""`sluice run CMD…`: starts a program so that the CUDA libraries it finds are ours.

Used by main.py and by the host's `sluice`. Sets LD_AUDIT and LD_LIBRARY_PATH and changes nothing
else: the loader hook redirects what a program links or opens by any path, the search path serves
what asks for a bare name in ways the hook does not see.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .installation import Installation, find_installation


class CannotRun(Exception):
    """Why a program cannot be started through Sluice, and what to do."""


def environment_for(found: Installation, base: dict[str, str]) -> dict[str, str]:
    """`base` with the two loader variables put in front of what they hold already."""
    if found.folder is None:
        raise CannotRun(
            "the client libraries are not installed: run install.sh of the guest bundle"
        )
    if found.audit is None:
        raise CannotRun(f"libsluice-audit.so is missing in {found.folder}: run install.sh again")
    result = dict(base)
    result["LD_AUDIT"] = _prepend(str(found.audit), base.get("LD_AUDIT"))
    result["LD_LIBRARY_PATH"] = _prepend(str(found.folder), base.get("LD_LIBRARY_PATH"))
    return result


def _prepend(first: str, rest: str | None) -> str:
    """An empty rest adds nothing: an empty entry would mean the current folder."""
    entries = [entry for entry in (rest or "").split(":") if entry and entry != first]
    return ":".join([first, *entries])


def run(command: Sequence[str]) -> NoReturn:
    """Becomes `command`; exits with 2, 126 or 127 as a shell does where it cannot."""
    if not command:
        print("sluice run: name a program", file=sys.stderr)
        sys.exit(2)
    try:
        os.execvpe(
            command[0], list(command), environment_for(find_installation(), dict(os.environ))
        )
    except CannotRun as error:
        print(f"sluice run: {error}", file=sys.stderr)
        sys.exit(126)
    except FileNotFoundError:
        print(f"sluice run: {command[0]}: no such program", file=sys.stderr)
        sys.exit(127)
    except OSError as error:
        print(f"sluice run: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(126)
