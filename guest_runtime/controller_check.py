# SPDX-License-Identifier: Apache-2.0
"""Looks at each controller from here: reachable, certificate, clock, release, our token.

Used by doctor.py, and by support/ on hosts, which look from there. Nothing is changed and the token
goes only to a controller whose certificate was good, or where no TLS is spoken at all. Answers are
a peer's: read up to a bound, with a time limit, and quoted with care (examination.plain).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Optional

from . import VERSION
from .exchange import split_scheme
from .findings import Finding, bad, note, ok

PATIENCE_SECONDS = 5.0
MOST_BYTES = 1 << 16
SKEW_NOTE_SECONDS = 5.0
SKEW_BAD_SECONDS = 60.0
RENEW_DAYS = 14
#: docs/guest.md: a server takes clients that are two releases old.
RELEASES_APART = 2
#: OpenSSL's reasons (x509_vfy.h) and what each wants.
_EXPIRED, _NOT_YET, _NAMES = 10, 9, (62, 64)
_UNKNOWN_CA = (18, 19, 20, 21)


class Controllers(NamedTuple):
    """Who is asked, and what is shown: a CA's file or none, a token or none."""

    addresses: str
    ca_file: str = ""
    token: str = ""


class _Answer(NamedTuple):
    status: int
    date: str
    body: bytes


def check_controllers(asked: Controllers, own_version: str = VERSION) -> list[Finding]:
    """Every controller that is named, one after the other."""
    found: list[Finding] = []
    addresses = [part.strip() for part in asked.addresses.split(",") if part.strip()]
    if not addresses:
        return [bad("controller", "none is named", "set SLUICE_CONTROLLER=host:port")]
    context: Optional[ssl.SSLContext] = None  # noqa: UP045 - Python 3.9
    try:
        context = ssl.create_default_context(cafile=asked.ca_file or None)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        found.append(
            bad(
                "CA",
                f"{asked.ca_file} cannot be used: {why}",
                "name the pool's ca.crt, as PEM and readable for you (SLUICE_CA, [tls] ca_file)",
            )
        )
    for address in addresses:
        scheme, place = split_scheme(address.rstrip("/"), bool(asked.ca_file))
        host, colon, port = place.rpartition(":")
        subject = f"controller {address}"
        if scheme not in ("http", "https") or not colon or not port.isdecimal():
            found.append(bad(subject, "is no host:port", "write host:port, or https://host:port"))
            continue
        if scheme == "https" and context is None:
            continue
        with_tls = context if scheme == "https" else None
        found += _one(subject, host.strip("[]"), int(port), with_tls, asked.token, own_version)
    return found


def _one(
    subject: str,
    host: str,
    port: int,
    tls: Optional[ssl.SSLContext],  # noqa: UP045
    token: str,
    own_version: str,
) -> list[Finding]:
    found: list[Finding] = []
    try:
        with _connected(host, port, tls) as line:
            if isinstance(line, ssl.SSLSocket):
                found.append(_certificate(subject, line))
            answer = _ask(line, host, "/v1/controller", "")
    except ssl.SSLError as error:
        return [*found, _tls_trouble(subject, host, error)]
    except (OSError, OverflowError) as error:
        return [*found, _network_trouble(subject, error)]
    except (http.client.HTTPException, ValueError):
        remedy = (
            "is another service there? REST's port is 9123, gRPC's 9124"
            if tls
            else "it may want TLS: write https:// before the address and name the CA (SLUICE_CA)"
        )
        return [*found, bad(subject, "what answers is no controller, or wants TLS", remedy)]
    found += _about(subject, answer, own_version)
    found.append(_clock(subject, answer.date))
    if token and answer.status == http.client.OK:
        found.append(_token(subject, host, port, tls, token))
    return found


@contextlib.contextmanager
def _connected(
    host: str,
    port: int,
    tls: Optional[ssl.SSLContext],  # noqa: UP045
) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as plain:
        if tls is None:
            yield plain
            return
        with tls.wrap_socket(plain, server_hostname=host) as secure:
            yield secure


def _ask(line: socket.socket, host: str, path: str, token: str) -> _Answer:
    """One request on a connection of its own; raises OSError, HTTPException, ValueError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    key = f"Authorization: Bearer {token}\r\n" if token else ""
    line.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: close\r\n\r\n".encode("ascii")
    )
    answer = http.client.HTTPResponse(line)
    answer.begin()
    body = b""
    while len(body) < MOST_BYTES and time.monotonic() < deadline:
        if not (part := answer.read(min(4096, MOST_BYTES - len(body)))):
            break
        body += part
    return _Answer(answer.status, answer.getheader("Date") or "", body)


def _about(subject: str, answer: _Answer, own_version: str) -> list[Finding]:
    try:
        said: Any = json.loads(answer.body)
        version, leads, trouble = str(said["version"]), said["leads"], said["store_trouble"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [
            bad(
                subject,
                f"answers {answer.status} at /v1/controller, as no controller does",
                "is another service there? REST's port is 9123, gRPC's 9124",
            )
        ]
    part = "leads the pool" if leads else "does not lead, and says who does"
    found = [ok(subject, f"release {version}, {part}")]
    if trouble:
        found.append(
            bad(
                subject,
                f"its store takes nothing: {trouble}",
                "on its host: sluice doctor --part controller",
            )
        )
    if apart := _releases_apart(version, own_version):
        found.append(
            bad(
                "release",
                f"{subject} has {version}, this machine {own_version}: {apart}",
                "upgrade the older one; clients may be two releases older than servers",
            )
            if apart != _NEAR
            else note(
                "release",
                f"{subject} has {version}, this machine {own_version}",
                "fine for an upgrade; then bring all to one release",
            )
        )
    return found


_NEAR = "near"


def _releases_apart(theirs: str, ours: str) -> str:
    """ "" for the same release, _NEAR for what works, else why it need not."""
    numbers = [re.match(r"([0-9]{1,4})\.([0-9]{1,4})", each) for each in (theirs, ours)]
    if theirs == ours or not all(numbers):
        return ""
    (major, minor), (own_major, own_minor) = ((int(n[1]), int(n[2])) for n in numbers if n)
    if major != own_major:
        return "other major releases do not speak with one another"
    if abs(minor - own_minor) > RELEASES_APART:
        return f"more than {RELEASES_APART} releases lie between them"
    return _NEAR


def _clock(subject: str, date: str, now: Optional[float] = None) -> Finding:  # noqa: UP045
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return note("clock", f"{subject} does not tell the time")
    ahead = theirs - (time.time() if now is None else now)
    text = f"{subject} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    if abs(ahead) > SKEW_BAD_SECONDS:
        return bad(
            "clock",
            text,
            "set both clocks by NTP (chrony, systemd-timesyncd): certificates"
            " and one-time keys are refused by a clock that is wrong",
        )
    if abs(ahead) > SKEW_NOTE_SECONDS:
        return note("clock", text, "set both clocks by NTP (chrony, systemd-timesyncd)")
    return ok("clock", f"{subject} and this machine agree")


def _certificate(subject: str, line: ssl.SSLSocket) -> Finding:
    certificate: Any = line.getpeercert() or {}
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    days = int((ends - time.time()) // 86400)
    text = f"{subject}: {line.version()}, certificate good for {days} more days"
    if days < RENEW_DAYS:
        return note("TLS", text, "renew it in time: sluice ca issue")
    return ok("TLS", text)


def _tls_trouble(subject: str, host: str, error: ssl.SSLError) -> Finding:
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code == _EXPIRED:
            return bad(
                "TLS",
                f"{subject}: its certificate has expired",
                "renew it: sluice ca issue, or this machine's clock is ahead",
            )
        if code == _NOT_YET:
            return bad(
                "TLS",
                f"{subject}: its certificate is not valid yet",
                "set this machine's clock by NTP: it is behind",
            )
        if code in _NAMES:
            return bad(
                "TLS",
                f"{subject}: its certificate is not for {host}",
                "ask by a name that is in it, or issue one with this name: sluice ca issue",
            )
        if code in _UNKNOWN_CA:
            return bad(
                "TLS",
                f"{subject}: its certificate is of another CA",
                "name the pool's ca.crt by SLUICE_CA, [controller] ca or [tls] ca_file",
            )
        return bad("TLS", f"{subject}: {error.verify_message}", "issue a new one: sluice ca issue")
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return bad(
            "TLS",
            f"{subject} does not speak TLS",
            "write http:// or no scheme and no CA, or give the controller a certificate",
        )
    return bad(
        "TLS",
        f"{subject}: {error.reason or error}",
        "see the controller's log, and [tls] in controller.conf",
    )


def _network_trouble(subject: str, error: Exception) -> Finding:
    if isinstance(error, socket.gaierror):
        return bad(
            subject,
            f"its name is not known here: {error.strerror}",
            "see /etc/resolv.conf and /etc/hosts, or use its address",
        )
    if isinstance(error, ConnectionRefusedError):
        return bad(
            subject,
            "nobody listens there",
            "start sluice-controller, or see bind_addr and rest_port in controller.conf: "
            "its default is 127.0.0.1, which other machines do not reach",
        )
    if isinstance(error, (socket.timeout, TimeoutError)):
        return bad(
            subject,
            f"no answer within {PATIENCE_SECONDS:.0f} s",
            "let port 9123 through the firewalls between here and there",
        )
    if isinstance(error, OverflowError):
        return bad(subject, "has no port that there is", "write host:port, 1 to 65535")
    if isinstance(error, ConnectionError):
        return bad(
            subject,
            f"it broke the connection off: {error}",
            "it may want TLS: write https:// before the address and name the CA (SLUICE_CA)",
        )
    return bad(subject, str(error), "see that the network leads there: ip route get HOST")


def _token(
    subject: str,
    host: str,
    port: int,
    tls: Optional[ssl.SSLContext],  # noqa: UP045
    token: str,
) -> Finding:
    try:
        with _connected(host, port, tls) as line:
            answer = _ask(line, host, "/v1/pool", token)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return note("token", f"{subject} did not say whether it takes it: {error}")
    if answer.status == http.client.UNAUTHORIZED:
        return bad(
            "token",
            f"{subject} does not take it: it is revoked, expired or another pool's",
            "`sluice enrol`, or have an admin make another: sluice token create",
        )
    if answer.status in (http.client.OK, http.client.FORBIDDEN):
        seen = "" if answer.status == http.client.OK else ", for a role that does not see the pool"
        return ok("token", f"{subject} takes it{seen}")
    return note("token", f"{subject} answered {answer.status} when it was shown")
