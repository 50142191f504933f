# SPDX-License-Identifier: Apache-2.0
"""Says what is wrong with client.conf and the client's token: keys that nobody reads, files' modes.

Used by doctor.py. What a key's value may be, `sluice check` judges (check.py); the token itself is
in no finding.
"""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path

from .configuration import SETTINGS, SYSTEM_FILE, Value
from .findings import Finding, bad, note, ok
from .ini_lines import read_lines
from .told import TOKEN

TOKEN_FILE = "~/.sluice/token"


def settings_files(home: str | None = None, system_file: Path = SYSTEM_FILE) -> list[Path]:
    """The files that the client library reads, the first wins."""
    home = os.environ.get("HOME") if home is None else home
    return [*([Path(home) / ".sluice" / "client.conf"] if home else []), system_file]


def check_files(files: list[Path]) -> list[Finding]:
    """Each file that is there: may it be read, and does it say what it seems to say?"""
    found = []
    for path in files:
        if not path.exists():
            continue
        try:
            text = path.read_text(encoding="utf-8", errors="strict")
        except OSError as error:
            found.append(
                bad(
                    "client.conf",
                    f"{path}: {error.strerror}",
                    f"chmod 644 {path}: the libraries go on with their defaults until then",
                )
            )
            continue
        except UnicodeDecodeError as error:
            found.append(
                bad(
                    "client.conf",
                    f"{path} is no UTF-8 text (byte {error.start})",
                    "write it anew with an editor",
                )
            )
            continue
        wrong = _lines(path, text)
        found += wrong or [ok("client.conf", f"{path}: every key is one of the libraries'")]
    return found


def _lines(path: Path, text: str) -> list[Finding]:
    known = {setting.key for setting in SETTINGS}
    found = []
    for line in read_lines(text):
        where = f"{path}:{line.number}"
        if line.unknown:
            found.append(
                bad(
                    "client.conf",
                    f"{where} is neither a section nor a key with a value",
                    "write [section] lines and `key = value` lines; `;` begins a comment",
                )
            )
        elif line.key and (name := f"{line.section}.{line.key}") not in known:
            found.append(
                note(
                    "client.conf",
                    f"{where}: nobody reads [{line.section}] {line.key}",
                    _advice(name, known),
                )
            )
    return found


def _advice(name: str, known: set[str]) -> str:
    key = name.partition(".")[2]
    elsewhere = [each for each in known if each.partition(".")[2] == key]
    near = elsewhere or difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    if near:
        section, _, right = near[0].partition(".")
        return f"did you mean {right} in [{section}]?"
    return "take it out, or see docs/configuration.md for the keys that there are"


def token_path(settings: dict[str, Value]) -> tuple[Path, bool]:
    """The file with the token, and whether it was named."""
    value = settings["controller.token_file"]
    if value.text:
        return Path(value.text), True
    return Path(TOKEN_FILE).expanduser(), False


def read_token(settings: dict[str, Value]) -> str:
    """The client's token; "" where it has none that may be read."""
    if token := os.environ.get("SLUICE_TOKEN"):
        return token.strip()
    try:
        return token_path(settings)[0].read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def check_token(settings: dict[str, Value]) -> list[Finding]:
    """The token's file; whether the controller takes the token is controller_check.py's."""
    if os.environ.get("SLUICE_TOKEN"):
        return [_shape("environment variable SLUICE_TOKEN", os.environ["SLUICE_TOKEN"].strip())]
    path, named = token_path(settings)
    try:
        about = path.stat()
        text = path.read_text().strip()
    except FileNotFoundError:
        if named:
            return [bad("token", f"{path} is not there", "`sluice enrol`, or ask the operator")]
        return []
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        return [bad("token", f"{path}: {why}", f"chown it to whoever uses it and chmod 600 {path}")]
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid not in (os.geteuid(), 0):
        return [
            bad(
                "token",
                f"{path} is user {about.st_uid}'s, and only yours or root's is taken",
                f"chown {os.geteuid()} {path}",
            )
        ]
    if mode & 0o027:
        return [
            bad(
                "token",
                f"{path} has mode {mode:04o}: others may use your token",
                f"chmod 600 {path} (640 for a group), and have the token replaced",
            )
        ]
    return [_shape(str(path), text)]


def _shape(where: str, token: str) -> Finding:
    if not TOKEN.fullmatch(token):
        return bad(
            "token",
            f"{where} holds no token of Sluice",
            "it begins with sluice_ and is one line: `sluice token create` prints it once",
        )
    return ok("token", where)
