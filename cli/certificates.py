# SPDX-License-Identifier: Apache-2.0
"""The pool's own certificate authority: a key and a certificate in a folder.

Used by `sluice ca`. It issues certificates for controllers (to be recognised by) and for nodes
(to be recognised by, and to show who they are: the common name is the node's name). A controller's
certificate is no client's, so that it cannot pass for a node's. Keys are P-256, readable for their
owner only; the CA's own key is needed to issue and nowhere else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_NAME = "Sluice pool CA"
CA_DAYS = 3650
BACKDATED = datetime.timedelta(minutes=5)  # clocks differ

Kind = Literal["controller", "node"]


class CertificateError(Exception):
    """A file is there already, or is not what it should be; the message says what to do."""


def make_ca(folder: Path, days: int = CA_DAYS) -> tuple[Path, Path]:
    """Writes ca.crt and ca.key into the folder and returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME)])
    usage = _usage(sign_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    return _write_pair(folder, "ca", key, certificate)


def issue(
    folder: Path, into: Path, name: str, kind: Kind, addresses: Sequence[str], days: int
) -> tuple[Path, Path]:
    """Writes NAME.crt and NAME.key, signed by the CA of the folder, and returns their paths."""
    authority, authority_key = _read_ca(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    if kind == "node":
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = list(dict.fromkeys([name, *addresses]))
    certificate = (
        _builder(subject, authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([_san(each) for each in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    into.mkdir(parents=True, exist_ok=True)
    return _write_pair(into, name, key, certificate)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _read_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except OSError as error:
        raise CertificateError(
            f"{error.filename}: cannot be read ({error.strerror}); `sluice ca init` makes a CA"
        ) from None
    except ValueError as error:
        raise CertificateError(f"{folder}: ca.crt or ca.key cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{folder}/ca.key: is no key of `sluice ca init`")
    return certificate, key


def _write_pair(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> tuple[Path, Path]:
    certificate_path, key_path = folder / f"{name}.crt", folder / f"{name}.key"
    for path in (certificate_path, key_path):
        if path.exists():
            raise CertificateError(f"{path}: is there already; move it away first")
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with os.fdopen(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate_path, key_path
