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
    """One controller, or none."""

    def __init__(self, address: str, ca: str = "", token: str = "") -> None:
        scheme = "https" if ca else "http"
        self._base = address if not address or "://" in address else f"{scheme}://{address}"
        self._verify: str | bool = ca or True
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def is_named(self) -> bool:
        """Whether there is a controller to ask."""
        return bool(self._base)

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
        self.need()
        try:
            answer = requests.get(
                f"{self._base}/v1{path}",
                params=parameters,
                headers=self._headers,
                verify=self._verify,
                timeout=SECONDS,
            )
            body = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise exceptions.CommandError(
                f"the controller at {self._base} does not answer: {type(error).__name__}"
            ) from None
        if answer.status_code >= 400:
            raise exceptions.CommandError(f"the controller: {body.get('detail', answer.reason)}")
        return body
