# SPDX-License-Identifier: Apache-2.0
"""Secrets of tokens, and the file that makes a new pool's first tokens known to its controller.

`sluice init` makes the secrets and writes their hashes; the controller that first opens a new store
takes them over (`[auth] first_tokens_file`) and never reads the file again. A secret is 256 random
bits, so its SHA-256 tells nobody anything: the file may be read by others.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PREFIX = "sluice_"  # so that people and scanners of repositories see what it is
MOST_BYTES = 1 << 20


class FirstTokensError(Exception):
    """The file cannot be read; the message names it, the field and the fix."""


class FirstToken(BaseModel):
    """One token; `hash` is the SHA-256 of its secret, in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    role: Literal["admin", "operator", "viewer", "node", "tenant"]
    name: str = Field("", max_length=200)
    project: str = Field("", max_length=120)
    node: str = Field("", max_length=120)

    @model_validator(mode="after")
    def _whose(self) -> FirstToken:
        if (self.role == "tenant") != bool(self.project):
            raise ValueError("a tenant's token has a project, and no other has: give `project`")
        if (self.role == "node") != bool(self.node):
            raise ValueError("a node's token has the node's name, and no other has: give `node`")
        return self


class FirstTokens(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: list[FirstToken] = Field(min_length=1, max_length=256)

    @model_validator(mode="after")
    def _whole(self) -> FirstTokens:
        if len({token.hash for token in self.tokens}) < len(self.tokens):
            raise ValueError("two tokens have the same hash: make them anew")
        if all(token.role != "admin" for token in self.tokens):
            raise ValueError("none is an admin's, who alone makes tokens: add one")
        return self


def read_first_tokens(path: Path) -> FirstTokens:
    """The tokens of a file. Raises FirstTokensError."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise FirstTokensError(f"{path}: is larger than {MOST_BYTES} bytes: no such file")
        return FirstTokens.model_validate_json(content)
    except OSError as error:
        raise FirstTokensError(
            f"{path}: cannot be read ({error.strerror}); `sluice init` writes it"
        ) from None
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"
            for problem in error.errors()[:5]
        )
        raise FirstTokensError(f"{path}: {said}; `sluice init` writes it") from None


def new_secret() -> str:
    """256 random bits as a token's secret."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What is kept of a secret, of tokens and of enrolments."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
