# SPDX-License-Identifier: Apache-2.0
"""Which controllers are asked, and what is shown to them: addresses, CA, token."""

from __future__ import annotations

import os
import ssl
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.config.files import SERVER_FILE
from sluice.pool_client.errors import UnusableAccess

if TYPE_CHECKING:
    from sluice.config.server import ServerConfig

TOKEN_PATH = Path("~/.sluice/token")


def server_config() -> ServerConfig | None:
    """This host's server.conf, if it has one that the caller may read. Raises UnusableAccess."""
    if not SERVER_FILE.exists() or not os.access(SERVER_FILE, os.R_OK):
        return None
    from sluice.config.ini import ConfigError  # half of a command's time, where there is no file
    from sluice.config.server import read_server_config

    try:
        return read_server_config(SERVER_FILE)
    except ConfigError as error:
        raise UnusableAccess(str(error)) from None


@dataclass(frozen=True)
class Credentials:
    """What the caller says of them; the environment and files are looked at when asked."""

    ca_file: Path | None = None
    token_file: Path | None = None

    def ca(self) -> Path | None:
        """The CA to check the controllers with; None for plain HTTP or the system's CAs."""
        if self.ca_file:
            return self.ca_file
        if named := os.environ.get("SLUICE_CA"):
            return Path(named)
        config = server_config()
        return config.tls.ca_file if config else None

    def token(self) -> str:
        """The caller's token; "" if there is none. Raises UnusableAccess."""
        if self.token_file is None and (token := os.environ.get("SLUICE_TOKEN")):
            return token.strip()
        path = self.token_file or TOKEN_PATH.expanduser()
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                print(f"sluice: {path} can be read by others: chmod 600 {path}", file=sys.stderr)
            return path.read_text().strip()
        except OSError as error:
            if self.token_file:
                raise UnusableAccess(f"{path}: cannot be read ({error.strerror})") from None
            return ""


@dataclass(frozen=True)
class Access:
    """Addresses of controllers, `HOST:PORT` or whole, and what to show there."""

    addresses: Sequence[str]
    ca: Path | None = None
    token: str = ""

    @classmethod
    def of(cls, addresses: str, credentials: Credentials) -> Access:
        """Addresses with commas between them. Raises UnusableAccess."""
        named = [part.strip() for part in addresses.split(",")]
        return cls([each for each in named if each], credentials.ca(), credentials.token())

    @property
    def bases(self) -> list[str]:
        """What paths are put behind."""
        scheme = "https" if self.ca else "http"
        return [f"{each if '://' in each else f'{scheme}://{each}'}/v1" for each in self.addresses]

    @property
    def headers(self) -> dict[str, str]:
        """Of every request. Raises UnusableAccess."""
        if not self.token:
            return {}
        if not self.token.isascii() or not self.token.isprintable():
            raise UnusableAccess("the token has characters that no token has: is that its file?")
        return {"Authorization": f"Bearer {self.token}"}

    def tls(self) -> ssl.SSLContext | bool:
        """For httpx. Raises UnusableAccess."""
        try:
            return ssl.create_default_context(cafile=self.ca) if self.ca else True
        except (OSError, ValueError) as error:
            raise UnusableAccess(f"{self.ca}: cannot be used: {error}") from None

    def __str__(self) -> str:
        return ", ".join(self.addresses)
