# SPDX-License-Identifier: Apache-2.0
"""`sluice enrol`: exchanges what vSphere tells this VM for a token of its own, and writes it down.

Called by main.py, at boot and every minute by sluice-enrol.timer. It owns /etc/sluice/token (or
node.token), /etc/sluice/pool-ca.crt, and the keys of client.conf (or server.conf) that it lists. It
promises that the token is on the disk, closed to others, before the one-time secret is cleared, and
that nothing of guestinfo is believed which does not look like what it has to be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .guestinfo import GuestInfo, GuestInfoError, find_tool

ADDRESS = r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
ADDRESSES = re.compile(rf"{ADDRESS}(?:,{ADDRESS}){{0,15}}")
SECRET = re.compile(r"sluice_enrol_[A-Za-z0-9_-]{20,200}")
TOKEN = re.compile(r"sluice_[A-Za-z0-9_-]{20,200}")
NAME = re.compile(r"[A-Za-z0-9._-]{1,120}")
PEM = re.compile(
    r"(?:-----BEGIN CERTIFICATE-----\s+[A-Za-z0-9+/=\s]{1,20000}-----END CERTIFICATE-----\s*){1,8}"
)
MODES = ("auto", "reserved", "on-demand")
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 30
MOST_REDIRECTS = 3
NOTHING = 3  # exit status: this VM is told nothing


class EnrolError(Exception):
    """It cannot be done; the message names what and the way out."""


@dataclass(frozen=True)
class Told:
    """What the VM is told, checked."""

    role: str
    controller: str
    ca: str
    node: str
    settings: Mapping[str, str]  # keys of client.conf's [client]
    enrolment: str


def enrol(words: Sequence[str]) -> int:
    """The command; returns the exit status."""
    options = _options(words)
    try:
        tool = find_tool()
        told = _told(tool, options.wait)
        if told is None:
            return _nothing(options.dir)
        return _follow(tool, told, options.dir, options.group)
    except (EnrolError, GuestInfoError) as error:
        print(f"sluice enrol: {error}", file=sys.stderr)
        return 1


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sluice enrol", description="Gets this VM's token from what vSphere tells it."
    )
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="until it is told something"
    )
    parser.add_argument(
        "--group", default="", help="who may read a client's token (default: root alone)"
    )
    parser.add_argument("--dir", type=Path, default=Path("/etc/sluice"), help="where files go")
    return parser.parse_args(list(words))


def _told(tool: GuestInfo, seconds: float) -> Optional[Told]:  # noqa: UP045
    """What stands in guestinfo; None if there is nothing."""
    deadline = time.monotonic() + seconds
    while not (role := tool.get("role")):
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_SECONDS)
    if role not in ("client", "node"):
        raise EnrolError(f"guestinfo.sluice.role is {role[:20]!r}; client or node is wanted")
    ca = tool.get("ca")
    if ca and not PEM.fullmatch(ca):
        raise EnrolError("guestinfo.sluice.ca is no PEM certificate")
    return Told(
        role=role,
        controller=_checked("controller", tool.get("controller"), ADDRESSES),
        ca=ca,
        node=_checked("node", tool.get("node"), NAME) if role == "node" else "",
        settings=_settings(tool.get("settings")) if role == "client" else {},
        enrolment=_checked("enrolment", secret, SECRET)
        if (secret := tool.get("enrolment"))
        else "",
    )


def _checked(key: str, text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        # the text itself may be a secret that was cut short
        raise EnrolError(f"guestinfo.sluice.{key} is not what it should be; see docs/vsphere.md")
    return text


def _settings(text: str) -> dict[str, str]:
    try:
        given: Any = json.loads(text or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise EnrolError("guestinfo.sluice.settings is no JSON object")
    settings = {
        "vgpu_count": _number(given, "count", 1, 64),
        "gmem": _number(given, "memory_mib", 0, 1 << 30),
        "ratio": _number(given, "compute_percent", 0, 100),
    }
    mode = given.get("mode", "auto")
    if mode not in MODES:
        raise EnrolError(f"guestinfo.sluice.settings has no mode of {', '.join(MODES)}")
    return {key: "" if value == "0" else value for key, value in settings.items()} | {"mode": mode}


def _number(given: Mapping[str, Any], key: str, low: int, high: int) -> str:
    value = given.get(key, low)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise EnrolError(f"guestinfo.sluice.settings has no {key} from {low} to {high}")
    return str(value)


def _follow(tool: GuestInfo, told: Told, folder: Path, group: str) -> int:
    name = "token" if told.role == "client" else "node.token"
    token_file, ca_file = folder / name, folder / "pool-ca.crt"
    if not told.enrolment and not token_file.exists():
        print(
            "sluice enrol: this VM has no token and its one-time secret is gone: have the operator "
            "run `sluice vsphere client renew`",
            file=sys.stderr,
        )
        return 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if told.ca:
            _write(ca_file, told.ca.strip() + "\n", 0o644)
        if told.enrolment:
            token = _exchange(told)
            _write(token_file, token + "\n", 0o600)
            if group and told.role == "client":
                shutil.chown(token_file, group=group)
                token_file.chmod(0o640)
        _configure(told, folder, token_file, ca_file if told.ca else None)
    except (OSError, LookupError) as error:
        raise EnrolError(f"{folder} cannot be written: {error}; run it as root") from None
    if told.enrolment:
        if not tool.clear("enrolment"):
            print("sluice enrol: the used secret could not be cleared", file=sys.stderr)
        print(f"enrolled with {told.controller}; the token is in {token_file}")
    return 0


def _exchange(told: Told) -> str:
    """The token; of several controllers that of the one that answers."""
    scheme = "https" if told.ca else "http"
    context = ssl.create_default_context(cadata=told.ca) if told.ca else None
    troubles = []
    for address in told.controller.split(","):
        url = f"{scheme}://{address}/v1/enrol"
        for _ in range(MOST_REDIRECTS):
            request = urllib.request.Request(
                url, data=b"", method="POST", headers={"Authorization": f"Bearer {told.enrolment}"}
            )
            try:
                with _opener(context).open(request, timeout=PATIENCE_SECONDS) as answer:
                    found = json.loads(answer.read(1 << 16))
                    return _checked("controller", str(found["secret"]), TOKEN)
            except urllib.error.HTTPError as error:
                where = error.headers.get("Location", "")
                if error.code == 307 and where.startswith(f"{scheme}://"):
                    url = where  # the one that leads
                    continue
                if error.code == 503:
                    troubles.append(f"{address}: it does not lead")
                    break
                raise EnrolError(f"controller {address}: {_detail(error)}") from None
            except (OSError, ValueError, KeyError, TypeError) as error:
                troubles.append(f"{address}: {error}")
                break
    raise EnrolError(f"no controller answers: {'; '.join(troubles)}; it is tried again")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer: the secret goes nowhere by itself."""


def _opener(context: Optional[ssl.SSLContext]) -> urllib.request.OpenerDirector:  # noqa: UP045
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({}),
        _NoRedirects(),
    ]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _detail(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        return str(json.loads(error.read(1 << 16))["detail"])[:500]
    return f"HTTP {error.code}"


def _configure(
    told: Told,
    folder: Path,
    token_file: Path,
    ca_file: Optional[Path],  # noqa: UP045
) -> None:
    if told.role == "client":
        wanted = {
            "controller": {
                "controller_addr": told.controller,
                "ca": str(ca_file or ""),
                "token_file": str(token_file),
            },
            "client": dict(told.settings),
        }
        set_keys(folder / "client.conf", wanted)
        return
    # the server has several addresses under a key of its own
    several = "," in told.controller
    wanted = {
        "controller": {
            "addresses": told.controller if several else "",
            "controller_addr": "" if several else told.controller,
            "token_file": str(token_file),
        },
        "server": {"node_name": told.node},
    }
    if ca_file:
        wanted["tls"] = {"ca_file": str(ca_file)}
    set_keys(folder / "server.conf", wanted)


def set_keys(path: Path, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Sets keys of an INI file and leaves every other line as it is; an empty value unsets."""
    try:
        before = path.read_text()
    except FileNotFoundError:
        before = ""
    left = {section: dict(keys) for section, keys in wanted.items()}
    lines: list[str] = []
    section = ""

    def finish() -> None:
        for key, value in left.pop(section, {}).items():
            if value:
                at = len(lines)
                while at and not lines[at - 1].strip():
                    at -= 1
                lines.insert(at, f"{key} = {value}")

    for line in before.splitlines():
        text = line.strip()
        if text.startswith("[") and text.endswith("]"):
            finish()
            section = text[1:-1]
        key = text.partition("=")[0].strip()
        if key in wanted.get(section, {}) and text[:1] not in ("", ";", "#", "["):
            value = left.get(section, {}).pop(key, "")
            if value:
                lines.append(f"{key} = {value}")
            continue
        lines.append(line)
    finish()
    for section in list(left):
        if any(left[section].values()):
            lines += ["", f"[{section}]"]
            finish()
    text = "\n".join(lines).lstrip("\n") + "\n"
    if text != before:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        _write(path, text, mode)


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, and on the disk when it returns."""
    partial = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _nothing(folder: Path) -> int:
    """The VM is nobody's client: a token that it had is of no use any more."""
    had = False
    for name in ("token", "node.token"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            had = True
    if had:
        print("this VM is not of the pool any more; its token, which is revoked, is removed")
    else:
        print("sluice enrol: vSphere tells this VM nothing (guestinfo.sluice.*)", file=sys.stderr)
    return NOTHING
