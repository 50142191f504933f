# SPDX-License-Identifier: Apache-2.0
"""`sluice enrol`: exchanges what this VM is told for a token of its own, and writes it down.

Called by main.py; at boot by sluice-enrol.service, in vSphere VMs every minute by its timer. Who
tells: vSphere (guestinfo_told.py), OpenStack (vendordata.py), or whoever runs the command with
--controller. It owns /etc/sluice/token (or node.token), /etc/sluice/pool-ca.crt,
/etc/sluice/enrolled.json, and the keys of client.conf (or server.conf) that it lists. It promises
that the token is on the disk, closed to others, before the one-time secret is cleared; that a
machine which has its token asks nobody again; and that a token which somebody else put there is
never removed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .exchange import token_for
from .guestinfo import GuestInfo, GuestInfoError, find_tool
from .guestinfo_told import told_by_vsphere
from .settings_file import set_keys, write_whole
from .told import PEM, SECRET, URLS, EnrolError, NotYetError, RefusedError, Told, checked
from .vendordata import METADATA_SERVICE, is_instance, machine_id, told_by_openstack

POLL_SECONDS = 1.0
LONGEST_FILE = 1 << 20
NOTHING = 3  # exit status: this VM is told nothing
STATE = "enrolled.json"


@dataclass(frozen=True)
class State:
    """What a former run wrote down; all empty if there was none."""

    source: str = ""
    machine: str = ""
    reservation: str = ""
    secret_sha256: str = ""


def enrol(words: Sequence[str]) -> int:
    """The command; returns the exit status."""
    options = _options(words)
    deadline = time.monotonic() + options.wait
    while True:
        try:
            return _once(options)
        except NotYetError as error:
            if time.monotonic() >= deadline:
                print(f"sluice enrol: {error}", file=sys.stderr)
                return 1
        except (EnrolError, GuestInfoError) as error:
            print(f"sluice enrol: {error}", file=sys.stderr)
            return 1
        except _NothingYetError:
            if time.monotonic() >= deadline:
                return _nothing(options.dir, options.system)
        time.sleep(POLL_SECONDS)


class _NothingYetError(Exception):
    """The hypervisor tells nothing, and might in a moment."""


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sluice enrol",
        description="Gets this machine's token from what vSphere or OpenStack tells it, or with a "
        "one-time secret of an operator. Exit status 3: it is told nothing.",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0,
        metavar="SECONDS",
        help="until it is told something, and the controller answers",
    )
    parser.add_argument(
        "--group", default="", help="who may read a client's token (default: root alone)"
    )
    parser.add_argument("--dir", type=Path, default=Path("/etc/sluice"), help="where files go")
    parser.add_argument(
        "--source",
        choices=("auto", "vsphere", "openstack"),
        default="auto",
        help="who is asked (auto: whoever is there)",
    )
    parser.add_argument(
        "--controller", default="", metavar="HOST:PORT", help="with a secret of an operator"
    )
    parser.add_argument(
        "--secret-file", default="", metavar="FILE", help="the one-time secret; - reads it"
    )
    parser.add_argument("--ca", default="", metavar="FILE", help="the pool's CA, PEM")
    parser.add_argument(
        "--again", action="store_true", help="also where this machine has its token already"
    )
    # Tests put folders and servers of theirs in the place of the machine's.
    parser.add_argument("--system", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.add_argument("--metadata", default=METADATA_SERVICE, help=argparse.SUPPRESS)
    options = parser.parse_args(list(words))
    if bool(options.controller) != bool(options.secret_file):
        parser.error("--controller and --secret-file belong together")
    return options


def _once(options: argparse.Namespace) -> int:
    state = _state(options.dir)
    if options.controller:
        return _by_hand(options, state)
    tool = _tool(options)
    if tool is not None:
        told = told_by_vsphere(tool)
        if told is not None:
            return _follow_vsphere(tool, told, options)
    if options.source != "vsphere" and (
        options.source == "openstack" or is_instance(options.system)
    ):
        return _follow_openstack(options, state)
    if tool is not None:
        raise _NothingYetError
    return _nothing(options.dir, options.system)


def _tool(options: argparse.Namespace) -> Optional[GuestInfo]:  # noqa: UP045 - guests' Python 3.9
    """VMware's tool; None where there is none and none is needed."""
    if options.source == "openstack":
        return None
    try:
        return find_tool()
    except GuestInfoError:
        if options.source == "vsphere" or _is_vmware(options.system):
            raise
        return None


def _is_vmware(system: Path) -> bool:
    try:
        return "VMware" in (system / "sys/class/dmi/id/sys_vendor").read_text(errors="replace")
    except OSError:
        return False


def _by_hand(options: argparse.Namespace, state: State) -> int:
    secret = _small_file(options.secret_file, "--secret-file").strip()
    told = Told(
        source="given",
        origin="--secret-file",
        controller=checked("--controller", options.controller, URLS, "sluice enrol --help"),
        enrolment=checked("--secret-file", secret, SECRET, "sluice enrol --help"),
        ca=_small_file(options.ca, "--ca") if options.ca else "",
    )
    if told.ca and not PEM.fullmatch(told.ca.strip()):
        raise EnrolError("--ca is no PEM certificate")
    used = _fingerprint(told.enrolment) == state.secret_sha256
    if used and not options.again and (options.dir / "token").exists():
        _write_files(told, None, options)
        print(f"enrolled already; the token is in {options.dir / 'token'}")
        return 0
    return _exchange([told], options)


def _small_file(name: str, option: str) -> str:
    try:
        if name == "-":
            return sys.stdin.read(LONGEST_FILE)
        with Path(name).open(errors="replace") as file:
            return file.read(LONGEST_FILE)
    except OSError as error:
        raise EnrolError(f"{option} {name}: {error.strerror}") from None


def _follow_openstack(options: argparse.Namespace, state: State) -> int:
    token_file = options.dir / "token"
    machine = machine_id(options.system)
    if token_file.exists() and not options.again:
        if state.source != "openstack" or state.machine == machine:
            print(f"enrolled already; the token is in {token_file}")
            return 0
        # an image that was made of an enrolled instance: the token is that instance's
        print("sluice enrol: the token here is another instance's; it is removed", file=sys.stderr)
        _remove(options.dir)
    found = told_by_openstack(options.system, options.metadata)
    if not found:
        print(
            "sluice enrol: OpenStack tells this instance nothing: vendor_data2.json has no sluice "
            "(docs/openstack.md)",
            file=sys.stderr,
        )
        return NOTHING
    return _exchange(found, options)


def _follow_vsphere(tool: GuestInfo, told: Told, options: argparse.Namespace) -> int:
    token_file = options.dir / _token_name(told)
    if not told.enrolment:
        if not token_file.exists():
            print(
                "sluice enrol: this VM has no token and its one-time secret is gone: have the "
                "operator run `sluice vsphere client renew`",
                file=sys.stderr,
            )
            return 1
        _write_files(told, None, options)
        return 0
    status = _exchange([told], options)
    if not tool.clear("enrolment"):
        print("sluice enrol: the used secret could not be cleared", file=sys.stderr)
    return status


def _token_name(told: Told) -> str:
    return "token" if told.role == "client" else "node.token"


def _exchange(found: list[Told], options: argparse.Namespace) -> int:
    """Gets a token with the first secret that is good, and writes everything down."""
    refusals: list[str] = []
    for told in found:
        try:
            token = token_for(told, told.ca or _known_ca(options.dir))
        except RefusedError as error:
            late = " (by this machine's clock it ended)" if _is_late(told) else ""
            refusals.append(f"{told.origin}{late}: {error}")
            continue
        _write_files(told, token, options)
        print(f"enrolled with {told.controller}; the token is in {options.dir / _token_name(told)}")
        return 0
    raise EnrolError(
        f"the one-time secret is not good any more: {'; '.join(refusals)}. "
        + _REMEDIES[found[0].source]
    )


_REMEDIES = {
    "openstack": "A config drive is written once: let the instance reach the metadata service, "
    "which hands out another, or rebuild it (openstack server rebuild)",
    "vsphere": "Have the operator run `sluice vsphere client renew`",
    "given": "Have the operator make another (POST /v1/enrolments, docs/control-plane.md)",
}


def _is_late(told: Told) -> bool:
    return bool(told.expires) and told.expires < time.time()


def _known_ca(folder: Path) -> str:
    """The pool's CA that is there already: an image may bring it."""
    try:
        text = (folder / "pool-ca.crt").read_text(errors="replace")
    except OSError:
        return ""
    if not PEM.fullmatch(text.strip()):
        raise EnrolError(f"{folder / 'pool-ca.crt'} is no PEM certificate")
    return text


def _write_files(told: Told, token: Optional[str], options: argparse.Namespace) -> None:  # noqa: UP045
    """Token, CA, settings and state, in this order; without a token those that may have changed."""
    folder: Path = options.dir
    token_file, ca_file = folder / _token_name(told), folder / "pool-ca.crt"
    group = options.group if told.role == "client" else ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if told.ca:
            _replace(ca_file, told.ca.strip() + "\n", 0o644)
        if token is not None:
            write_whole(token_file, token + "\n", 0o640 if group else 0o600, group)
        _configure(told, folder, token_file, ca_file if told.ca or ca_file.exists() else None)
        if token is not None:
            state = {
                "source": told.source,
                "machine": machine_id(options.system),
                "reservation": told.reservation,
                "secret_sha256": _fingerprint(told.enrolment),
            }
            write_whole(folder / STATE, json.dumps(state, indent=1) + "\n", 0o600)
    except (OSError, LookupError) as error:
        raise EnrolError(f"{folder} cannot be written: {error}; run it as root") from None


def _replace(path: Path, text: str, mode: int) -> None:
    if not path.exists() or path.read_text(errors="replace") != text:
        write_whole(path, text, mode)


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


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _state(folder: Path) -> State:
    """What a former run wrote; a file that cannot be read is none."""
    try:
        given: Any = json.loads((folder / STATE).read_text())
        return State(**{key: str(given.get(key, "")) for key in State.__dataclass_fields__})
    except (OSError, ValueError, AttributeError):
        return State()


def _remove(folder: Path) -> bool:
    """Removes tokens and the state; whether there was a token."""
    had = False
    for name in ("token", "node.token", STATE):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            had = had or name != STATE
    return had


def _nothing(folder: Path, system: Path) -> int:
    """This VM is told nothing: a token that vSphere gave it is of no use any more."""
    if _state(folder).source == "vsphere":
        if _remove(folder):
            print("this VM is not of the pool any more; its token, which is revoked, is removed")
        return NOTHING
    print(
        "sluice enrol: nobody tells this machine anything: "
        + (
            "vSphere has set no guestinfo.sluice.*"
            if _is_vmware(system)
            else "it is no instance of OpenStack and no VM of vSphere; with a secret of an "
            "operator use --controller and --secret-file"
        ),
        file=sys.stderr,
    )
    return NOTHING
