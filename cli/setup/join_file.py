# SPDX-License-Identifier: Apache-2.0
"""The file with which a further host joins a pool: addresses, CA, certificate, one-time secret.

`sluice invite` writes it on the controller's host and `sluice init --join` reads it on the new one.
It is as secret as a key: it holds one, and an enrolment that is good once. What is read is checked
whole before anything is done with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sluice.cli.rest import CommandError
from sluice.cli.setup.answers import NAME
from sluice.config.sections import HostPort, IpAddress

MOST_BYTES = 1 << 20
Pem = Field("", max_length=65536)


class JoinFile(BaseModel):
    """The whole file, JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["sluice-join-1"] = "sluice-join-1"
    controllers: list[HostPort] = Field(min_length=1, max_length=16)
    node: str = Field(pattern=NAME, max_length=120)
    address: IpAddress
    secret: str = Field(pattern=r"^sluice_[A-Za-z0-9_-]{20,120}$")
    ca: str = Pem
    certificate: str = Pem
    key: str = Pem

    @model_validator(mode="after")
    def _whole(self) -> JoinFile:
        if bool(self.certificate) != bool(self.key) or (self.certificate and not self.ca):
            raise ValueError(
                "certificate, key and ca go together, or ca is alone, or none is there"
            )
        if self.ca:
            check_pair(self.ca, self.certificate, self.key, self.node)
        return self


def check_pair(ca: str, certificate: str, key: str, node: str) -> None:
    """Raises ValueError where they do not belong together."""
    try:
        authority = x509.load_pem_x509_certificate(ca.encode())
    except ValueError as error:
        raise ValueError(f"ca is no PEM certificate ({error})") from None
    if not certificate:
        return
    try:
        own = x509.load_pem_x509_certificate(certificate.encode())
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"certificate or key is not PEM ({error})") from None
    try:
        own.verify_directly_issued_by(authority)
    except Exception as error:
        raise ValueError(f"certificate is not of ca ({type(error).__name__})") from None
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    der = serialization.Encoding.DER
    if private.public_key().public_bytes(der, form) != own.public_key().public_bytes(der, form):
        raise ValueError("key is not the certificate's")
    names = [name.value for name in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [node]:
        raise ValueError(f"certificate is {names}'s, and node is {node}")


def read_join_file(path: Path) -> JoinFile:
    """The file, checked. Raises CommandError."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CommandError(f"--join {path}: cannot be read ({error.strerror})", 2) from None
    if len(content) > MOST_BYTES:
        raise CommandError(f"--join {path}: is larger than {MOST_BYTES} bytes: no join file", 2)
    try:
        return JoinFile.model_validate_json(content)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"
            for problem in error.errors(include_input=False)[:5]
        )
        raise CommandError(
            f"--join {path}: {said}; have `sluice invite` write another on the controller's host", 2
        ) from None
