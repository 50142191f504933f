# SPDX-License-Identifier: Apache-2.0
"""Says whether the files of Sluice's deb or rpm are as the package brought them.

Used by doctor.py here and by support/doctor.py on hosts. dpkg and rpm know each file's sum; what an
administrator may change (configuration) and what images leave out (documentation) is no fault.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from .findings import Finding, bad, note, ok

#: The folder that a package owns → its name.
PACKAGES = {"sluice-host": "sluice-host", "sluice": "sluice-guest"}
COMMANDS = {"deb": ("dpkg", "--verify"), "rpm": ("rpm", "--verify")}
AGAIN = {
    "deb": "apt-get install --reinstall {name}",
    "rpm": "dnf reinstall {name}",
}
SHOWN = 5
PATIENCE_SECONDS = 60
_LINE = re.compile(r"(?P<what>\S+)\s+(?:(?P<kind>[cdglr])\s+)?(?P<path>/.*)")


def package_home(of: Path = Path(__file__)) -> Path | None:
    """The package's folder that this module is in; None: it was not installed by a package."""
    for folder in of.resolve().parents:
        if folder.name in PACKAGES and (folder / "packaged").is_file():
            return folder
    return None


def check_package(home: Path, ask: Callable[[list[str]], str] | None = None) -> list[Finding]:
    """One finding; `ask` runs a command and returns what it printed, or raises OSError."""
    name = PACKAGES[home.name]
    kind = (home / "packaged").read_text().strip()
    if kind not in COMMANDS:
        return [note("package", f"{home / 'packaged'} names no kind of package: {kind[:20]!r}")]
    again = AGAIN[kind].format(name=name)
    try:
        said = (ask or _ask)([*COMMANDS[kind], name])
    except (OSError, subprocess.TimeoutExpired) as error:
        return [note("package", f"{' '.join(COMMANDS[kind])} {name}: {error}")]
    wrong = changed_files(said)
    if not wrong:
        return [ok("package", f"{name}: its files are as it brought them")]
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    listed = ", ".join(wrong[:SHOWN])
    return [bad("package", f"of {name} are missing or changed: {listed}{more}", again)]


def changed_files(said: str) -> list[str]:
    """The files that matter of what `dpkg --verify` or `rpm --verify` printed.

    A line is `??5??????   /path` or `missing  c /path`, where c and d are configuration and
    documentation; a T alone is another date.
    """
    found = []
    for line in said.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or match["kind"] in ("c", "d"):
            continue
        if match["path"].startswith("/usr/share/"):
            continue
        if match["what"] == "missing" or set(match["what"]) - set(".?T"):
            found.append(match["path"])
    return found


def _ask(command: list[str]) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace")
