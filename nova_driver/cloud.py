# SPDX-License-Identifier: Apache-2.0
"""One OpenStack cloud, spoken to through openstacksdk. Blocking; the service calls it in threads.

Used by placement.py, grants.py, flavors.py and the commands. Credentials are those of every
OpenStack client: clouds.yaml or OS_* variables. It promises that whatever goes wrong is a
CloudError in one line that says what was asked, and that no password is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import openstack
import requests
from keystoneauth1 import exceptions as keystone_errors
from openstack import exceptions as sdk_errors

#: Embeds the flavor with its extra specs (2.47) and shows servers of cells that are down (2.69).
COMPUTE_VERSION = "2.79"
#: Hypervisors by UUID, which are their providers' (2.53), in pages (2.33).
HYPERVISOR_VERSION = "2.53"
#: The version from which on Nova asks extra-spec validators.
FLAVOR_VERSION = "2.86"
PAGE = 1000
TIMEOUT_SECONDS = 30.0

Answer = TypeVar("Answer")


class CloudError(Exception):
    """OpenStack does not answer, or refuses; the message is for the operator."""


class NotThere(CloudError):
    """OpenStack says that there is no such thing."""


class Cloud:
    """A connection; made without speaking to anybody."""

    def __init__(self, name: str = "", region: str = "") -> None:
        where: dict[str, Any] = {"region_name": region} if region else {}
        try:
            self._connection = openstack.connect(
                cloud=name or None,
                **where,
                app_name="sluice",
                api_timeout=TIMEOUT_SECONDS,
            )
        except (sdk_errors.SDKException, keystone_errors.ClientException) as error:
            raise CloudError(f"clouds.yaml or OS_*: {_line(error)}") from None
        self.region = str(self._connection.config.get_region_name() or "")

    @property
    def connection(self) -> Any:
        """openstacksdk's own, for what has no method here."""
        return self._connection

    def placement(self, method: str, path: str, version: str, **options: Any) -> requests.Response:
        """A request to Placement."""
        return self._ask(
            f"Placement {method} {path}",
            lambda: self._connection.placement.request(
                path, method, microversion=version, raise_exc=False, **options
            ),
        )

    def compute(
        self, method: str, path: str, version: str = COMPUTE_VERSION, **options: Any
    ) -> requests.Response:
        """A request to Nova."""
        return self._ask(
            f"Nova {method} {path}",
            lambda: self._connection.compute.request(
                path, method, microversion=version, raise_exc=False, **options
            ),
        )

    def computes(self) -> dict[str, str]:
        """The names of compute hosts by their UUID, which is that of their provider."""
        found = self._pages("/os-hypervisors", "hypervisors", HYPERVISOR_VERSION)
        return {each["id"]: each["hypervisor_hostname"] for each in found}

    def servers(self, changes_since: str = "") -> Iterator[dict[str, Any]]:
        """Every project's servers; with a time, those that changed or went since then."""
        query = {"all_tenants": "1"}
        if changes_since:
            query["changes-since"] = changes_since
        yield from self._pages("/servers/detail", "servers", COMPUTE_VERSION, query)

    def server(self, server_id: str) -> dict[str, Any] | None:
        """One server; None where Nova says that there is none."""
        path = f"/servers/{server_id}"
        try:
            found: dict[str, Any] = self.checked(self.compute("GET", path), path)["server"]
        except NotThere:
            return None
        return found

    def flavors(self) -> Iterator[dict[str, Any]]:
        """Every flavor with its extra specs."""
        query = {"is_public": "None"}
        yield from self._pages("/flavors/detail", "flavors", COMPUTE_VERSION, query)

    def checked(self, answer: requests.Response, what: str) -> Any:
        """The answer's JSON (None where it has none); raises NotThere, CloudError."""
        if answer.status_code < 400:
            try:
                return answer.json() if answer.content else None
            except ValueError:
                raise CloudError(f"{what}: the answer is no JSON") from None
        kind = NotThere if answer.status_code == 404 else CloudError
        raise kind(f"{what}: {answer.status_code} {_explanation(answer)}")

    def _pages(
        self, path: str, key: str, version: str, query: dict[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        marker: dict[str, str] = {}
        while True:
            parameters = {**(query or {}), "limit": str(PAGE), **marker}
            answer = self.checked(self.compute("GET", path, version, params=parameters), path)
            yield from answer[key]
            if len(answer[key]) == 0 or not answer.get(f"{key}_links"):
                return
            marker = {"marker": answer[key][-1]["id"]}

    def _ask(self, what: str, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except (
            sdk_errors.SDKException,
            keystone_errors.ClientException,
            requests.RequestException,
        ) as error:
            raise CloudError(f"{what}: {_line(error)}") from None


def _explanation(answer: requests.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return str(answer.reason)
    if isinstance(body, dict):
        if errors := body.get("errors"):
            return _short(str(errors[0].get("detail", errors[0])))
        for value in body.values():
            if isinstance(value, dict) and "message" in value:
                return _short(str(value["message"]))
    return str(answer.reason)


def _line(error: Exception) -> str:
    return _short(str(error) or type(error).__name__)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 400 else words[:397] + "..."
