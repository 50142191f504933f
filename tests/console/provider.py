# SPDX-License-Identifier: Apache-2.0
"""A real OpenID Connect provider as a process: Canaille, with people of a test.

`make test-console` installs it into an environment of its own, as its requirements are not ours.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from control_plane import wait_for
from free_ports import free_port
from joserfc.jwk import RSAKey
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "console" / "provider" / "bin" / "python"
PASSWORD = "correct horse battery"
CLIENT, SECRET = "sluice", "a secret / of the client + %"


class RealProvider:
    """People with groups, and one client; start() and stop() as often as wanted."""

    def __init__(self, folder: Path, redirect: str, people: dict[str, list[str]]) -> None:
        self.folder = folder
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        self._redirect = redirect
        self._process: subprocess.Popen[bytes] | None = None
        self.people = people
        self.keys = [self._key("one")]

    @staticmethod
    def _key(name: str) -> dict[str, Any]:
        key = RSAKey.generate_key(2048, {"kid": name, "use": "sig", "alg": "RS256"})
        return dict(key.as_dict(private=True))

    def sign_with_another_key(self) -> None:
        """From the next start on; the old one is withdrawn."""
        self.keys = [self._key("two")]

    def settings(self) -> dict[str, Any]:
        """What controller.conf says of it, without groups."""
        secret = self.folder / "client.secret"
        secret.write_text(SECRET)
        return {
            "issuer": self.issuer,
            "client_id": CLIENT,
            "client_secret_file": secret,
            "scopes": "openid, profile, email, groups",
            "title": "Canaille",
        }

    def start(self) -> None:
        description = self.folder / "provider.json"
        people = {
            name: {"password": PASSWORD, "groups": groups} for name, groups in self.people.items()
        }
        client = {"id": CLIENT, "secret": SECRET, "redirect": self._redirect}
        description.write_text(
            json.dumps({"port": self.port, "keys": self.keys, "client": client, "people": people})
        )
        with (self.folder / "provider.log").open("ab") as log:
            self._process = subprocess.Popen(
                [PYTHON, Path(__file__).with_name("canaille_provider.py"), description],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait_for(self._answers, seconds=60)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self.folder / "provider.log").read_text()
        try:
            address = f"{self.issuer}/.well-known/openid-configuration"
            return bool(urllib.request.urlopen(address, timeout=5).status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


def log_in(page: Page, name: str) -> None:
    """On the provider's own pages."""
    page.locator("[name=login]").fill(name)
    page.locator("button[type=submit]").first.click()
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("button[type=submit]").first.click()
