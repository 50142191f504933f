# SPDX-License-Identifier: Apache-2.0
"""The first accounts of a pool: secrets in files of their owners, hashes for the controller.

Used by steps.py. An account is a file `accounts/NAME.token`: `admin` for the pool, a project's name
for its tenants; the node's own is `node.token` beside the configuration. A new pool's controller
takes their hashes from `first-tokens.json`; later accounts are made through a controller that runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sluice.cli.rest import CommandError
from sluice.resources.first_tokens import (
    FirstToken,
    FirstTokens,
    FirstTokensError,
    hash_of,
    new_secret,
    read_first_tokens,
)

FIRST_TOKENS = "first-tokens.json"
NODE_TOKEN = "node.token"
ADMIN = "admin"

RoleName = Literal["admin", "tenant", "node"]


@dataclass(frozen=True)
class Account:
    """One token: whose, and the file of its secret."""

    file: Path
    role: RoleName
    name: str
    project: str = ""
    node: str = ""

    @property
    def is_there(self) -> bool:
        """Whether its secret was made."""
        return self.file.exists()

    def words(self) -> dict[str, str | None]:
        """As REST wants it."""
        return {
            "role": self.role,
            "name": self.name,
            "project": self.project or None,
            "node": self.node or None,
        }


def accounts_of(folder: Path, projects: Sequence[str], node: str) -> list[Account]:
    """What a controller's host has; `node` is its own name where a server runs there too."""
    found = [Account(folder / "accounts" / f"{ADMIN}.token", "admin", "sluice init")]
    if node:
        found.append(Account(folder / NODE_TOKEN, "node", "sluice init", node=node))
    for project in projects:
        file = folder / "accounts" / f"{project}.token"
        found.append(Account(file, "tenant", "sluice init", project=project))
    return found


def first_tokens(folder: Path, wanted: Sequence[Account]) -> tuple[str, dict[Path, str]]:
    """The text of first-tokens.json with these accounts in it, and the secrets of new ones.

    Raises CommandError where the file that is there cannot be read.
    """
    path, known = folder / FIRST_TOKENS, list[FirstToken]()
    if path.exists():
        try:
            known = read_first_tokens(path).tokens
        except FirstTokensError as error:
            raise CommandError(f"{error}; move it away to begin anew") from None
    secrets: dict[Path, str] = {}
    for account in wanted:
        if not account.is_there:
            secrets[account.file] = new_secret()
            known.append(
                FirstToken(
                    hash=hash_of(secrets[account.file]),
                    role=account.role,
                    name=account.name,
                    project=account.project,
                    node=account.node,
                )
            )
    tokens = FirstTokens(tokens=known).model_dump()
    return json.dumps(tokens, indent=1) + "\n", secrets
