# SPDX-License-Identifier: Apache-2.0
"""Reads the pool's REST API for `openstack vgpu`.

Used by commands.py. It changes nothing. Errors are osc_lib's CommandError, in one line.
"""

from __future__ import annotations

from typing import Any

import requests
from osc_lib import exceptions

SECONDS = 15.0


class PoolLine:
    """One controller, several with commas between their addresses, or none."""

    def __init__(self, addresses: str, ca: str = "", token: str = "") -> None:
        scheme = "https" if ca else "http"
        named = [address.strip() for address in addresses.split(",") if address.strip()]
        self._bases = [each if "://" in each else f"{scheme}://{each}" for each in named]
        self._verify: str | bool = ca or True
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def is_named(self) -> bool:
        """Whether there is a controller to ask."""
        return bool(self._bases)

    def need(self) -> None:
        """Raises CommandError where no controller is named."""
        if not self.is_named:
            raise exceptions.CommandError(
                "this is the pool's to say: name its controller with --os-vgpu-controller or "
                "SLUICE_CONTROLLER"
            )

    def reservations(self) -> dict[str, dict[str, Any]]:
        """Live reservations of VMs, by the VM's UUID."""
        found: dict[str, dict[str, Any]] = {}
        marker: dict[str, str] = {}
        while True:
            page = self._get("/reservations", {"limit": "1000", **marker})
            for each in page["reservations"]:
                if each["owner_kind"] == "vm":
                    found[each["owner"]] = each
            if not page.get("next_marker"):
                return found
            marker = {"marker": page["next_marker"]}

    def quota(self, project: str) -> dict[str, Any]:
        """A project's limits and what it holds."""
        found: dict[str, Any] = self._get(f"/quotas/{project}", {})
        return found

    def _get(self, path: str, parameters: dict[str, str]) -> Any:
        """What the first says that answers for the pool: one leads, and the others name it."""
        self.need()
        trouble = ""
        for base in self._bases:
            try:
                answer = self._ask(f"{base}/v1{path}", parameters)
                body = answer.json()
            except (requests.RequestException, ValueError) as error:
                trouble = f"the controller at {base} does not answer: {type(error).__name__}"
                continue
            if answer.status_code < 400:
                return body
            trouble = f"the controller: {body.get('detail', answer.reason)}"
            if answer.status_code != 503:
                break
        raise exceptions.CommandError(trouble)

    def _ask(self, url: str, parameters: dict[str, str]) -> requests.Response:
        ways: dict[str, Any] = {
            "headers": self._headers,
            "verify": self._verify,
            "allow_redirects": False,  # which would leave the token behind
        }
        answer = requests.get(url, params=parameters, timeout=SECONDS, **ways)
        leader = answer.headers.get("location", "") if answer.status_code == 307 else ""
        if not leader:
            return answer
        if url.startswith("https:") and not leader.startswith("https:"):
            raise exceptions.CommandError(f"{url} names {leader}, where the token would be seen")
        return requests.get(leader, timeout=SECONDS, **ways)
