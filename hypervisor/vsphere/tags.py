# SPDX-License-Identifier: Apache-2.0
"""Tags, which vCenter keeps beside its inventory and does not report changes of.

Used by service.py and the commands, only where `[vcenter] category` is set. Read over vCenter's
REST with the same checked TLS as everything else: one session, and a call for each tag.
"""

from __future__ import annotations

import contextlib
from typing import Any

import httpx

from sluice.config.vsphere import Credentials
from sluice.hypervisor.vsphere.connection import Vcenter
from sluice.hypervisor.vsphere.errors import BadLogin, Unreachable, VsphereError

SESSION_HEADER = "vmware-api-session-id"
PATIENCE_SECONDS = 30.0


class TagReader:
    """Reads one category's tags; close() ends its session."""

    def __init__(self, vcenter: Vcenter, credentials: Credentials, category: str) -> None:
        self._category = category
        self._credentials = credentials
        self._address = vcenter.address
        self._rest = httpx.Client(
            base_url=f"https://{vcenter.address}/rest/com/vmware/cis",
            verify=vcenter.tls,
            timeout=PATIENCE_SECONDS,
            trust_env=False,
        )

    def close(self) -> None:
        """Ends the session."""
        with contextlib.suppress(httpx.HTTPError):
            if SESSION_HEADER in self._rest.headers:
                self._rest.delete("/session")
        self._rest.close()

    def read(self) -> dict[str, str]:
        """The names of tags by the ids of their VMs; raises VsphereError."""
        category = next(
            (
                identity
                for identity in self._ask("GET", "/tagging/category") or ()
                if self._ask("GET", f"/tagging/category/id:{identity}")["name"] == self._category
            ),
            None,
        )
        if category is None:
            return {}
        found: dict[str, str] = {}
        listed = self._ask("POST", f"/tagging/tag/id:{category}", "list-tags-for-category")
        for tag in listed or ():
            name = str(self._ask("GET", f"/tagging/tag/id:{tag}")["name"])
            association = f"/tagging/tag-association/id:{tag}"
            for each in self._ask("POST", association, "list-attached-objects") or ():
                if each.get("type") == "VirtualMachine":
                    found[str(each["id"])] = name
        return found

    def _ask(self, method: str, path: str, action: str = "") -> Any:
        parameters = {"~action": action} if action else {}
        try:
            for _ in range(2):
                if SESSION_HEADER not in self._rest.headers:
                    self._log_in()
                body: dict[str, str] | None = {} if method == "POST" else None
                answer = self._rest.request(method, path, params=parameters, json=body)
                if answer.status_code != 401:
                    break
                del self._rest.headers[SESSION_HEADER]  # it has expired
            answer.raise_for_status()
            return answer.json()["value"]
        except httpx.HTTPStatusError as error:
            raise VsphereError(
                f"vCenter {self._address} does not show tags ({error.response.status_code} of "
                f"{method} {path}); leave [clients] category empty, or give the user the right"
            ) from None
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise Unreachable(
                f"vCenter {self._address}: tags cannot be read ({type(error).__name__})"
            ) from None

    def _log_in(self) -> None:
        auth = (self._credentials.user, self._credentials.password)
        answer = self._rest.post("/session", auth=auth)
        if answer.status_code == 401:
            raise BadLogin(f"vCenter {self._address} does not take the user for tags")
        answer.raise_for_status()
        self._rest.headers[SESSION_HEADER] = answer.json()["value"]
