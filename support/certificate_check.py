# SPDX-License-Identifier: Apache-2.0
"""Judges the certificates, keys and secrets that a host's configuration names, as files.

Used by server_check and controller_host_check. What is in a key or a secret is in no finding.
"""

from __future__ import annotations

import datetime
import os
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from sluice.cli.setup.answers import FILE as ANSWERS
from sluice.guest_runtime.findings import Finding, bad, note, ok

RENEW_DAYS = 14


def check_ca(setting: str, path: Path) -> Finding:
    """A CA's file: readable, PEM, not expired."""
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        return bad(setting, f"{path}: {error.strerror}", "put the pool's ca.crt there")
    except ValueError:
        return bad(setting, f"{path} holds no certificate in PEM", "put the pool's ca.crt there")
    ends = min(each.not_valid_after_utc for each in certificates)
    if ends < _now():
        return bad(
            setting,
            f"{path} has expired on {ends:%Y-%m-%d}",
            "make a CA anew (sluice ca init) and issue what it signed again",
        )
    return ok(setting, f"{path}, good until {ends:%Y-%m-%d}")


def check_pair(
    setting: str,
    cert_file: Path,
    key_file: Path,
    *,
    names: Sequence[str] = (),
    ca_file: Path | None = None,
    days: int = RENEW_DAYS,
    kind: str = "node",
) -> list[Finding]:
    """A certificate and its key: do they fit, until when, for which of `names`, of which CA.

    `kind` is what `sluice ca issue --for` is told.
    """
    renew = _renewal(cert_file, kind, names[0] if names else "NAME")
    try:
        certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
    except OSError as error:
        return [bad(setting, f"{cert_file}: {error.strerror}", f"put it there: {renew}")]
    except ValueError:
        return [bad(setting, f"{cert_file} holds no certificate in PEM", f"put it there: {renew}")]
    has = names_in(certificate)
    renew = _renewal(cert_file, kind, (*names, *has, "NAME")[0])
    found = []
    if trouble := private_file(f"{setting} key", key_file):
        found.append(trouble)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, lambda: "")
    except ssl.SSLError:
        found.append(
            bad(
                setting,
                f"{key_file} is not the key of {cert_file}, or has a password",
                f"name the two files that belong together, or: {renew}",
            )
        )
    except OSError as error:
        found.append(
            bad(
                setting,
                f"{key_file}: {error.strerror}",
                f"chmod 600 and chown it to the service's account, or: {renew}",
            )
        )
    starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = (ends - _now()).days
    if ends < _now():
        found.append(bad(setting, f"{cert_file} has expired on {ends:%Y-%m-%d}", renew))
    elif starts > _now():
        found.append(
            bad(
                setting,
                f"{cert_file} is good from {starts:%Y-%m-%d %H:%M} UTC on",
                "set this host's clock by NTP: it is behind",
            )
        )
    elif left < days:
        found.append(note(setting, f"{cert_file} ends in {left} days", renew))
    for name in names:
        if name not in has:
            found.append(
                bad(
                    setting,
                    f"{cert_file} is for {', '.join(has) or 'nobody'}, and others look for {name}",
                    _renewal(cert_file, kind, name),
                )
            )
    if ca_file and (trouble := _of_other_ca(setting, cert_file, certificate, ca_file, renew)):
        found.append(trouble)
    return found or [ok(setting, f"{cert_file}, for {', '.join(has)}, {left} more days")]


def _renewal(cert_file: Path, kind: str, name: str) -> str:
    """What issues it anew: `sluice init` where it made it, in a folder beside its answers."""
    by_hand = f"sluice ca issue {'--for controller ' if kind == 'controller' else ''}{name}"
    if any((folder / ANSWERS).exists() for folder in cert_file.parents[1:3]):
        return f"sluice init, which issues it anew; by hand: {by_hand}"
    return by_hand


def private_file(setting: str, path: Path) -> Finding | None:
    """What is wrong with a secret's file; None: nothing."""
    try:
        about = path.stat()
    except OSError as error:
        return bad(setting, f"{path}: {error.strerror}", "put it there, readable for the service")
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o007:
        return bad(
            setting,
            f"{path} has mode {mode:04o}: anybody here may read it",
            f"chmod 600 {path}, and replace what it holds",
        )
    if not os.access(path, os.R_OK):
        return note(setting, f"{path} is not yours to read", "run this as root to look into it")
    return None


def check_secret(setting: str, path: Path) -> Finding:
    """A file that holds a token or a password, on one line."""
    if trouble := private_file(setting, path):
        return trouble
    try:
        lines = path.read_text().strip().splitlines()
    except (OSError, UnicodeDecodeError):
        return bad(setting, f"{path} is no text", "write the secret into it anew")
    if len(lines) != 1:
        return bad(
            setting,
            f"{path} has {len(lines)} lines, and a secret has one",
            "write the secret into it anew",
        )
    return ok(setting, str(path))


def names_in(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that it is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]


def _of_other_ca(
    setting: str, cert_file: Path, certificate: x509.Certificate, ca_file: Path, renew: str
) -> Finding | None:
    try:
        authorities = x509.load_pem_x509_certificates(ca_file.read_bytes())
    except (OSError, ValueError):
        return None  # check_ca says so
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError):
            continue
        except Exception:
            continue
        return None
    return note(
        setting,
        f"{cert_file} is not signed by {ca_file} itself",
        f"fine with a CA between them; else: {renew}",
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
