# SPDX-License-Identifier: Apache-2.0
"""The line to the pool's controller: the REST calls that an adapter makes, with patience.

Used by service.py and the commands. Of several controllers it speaks to the one that leads, which
the others name; it waits when it is told that it asks too often. What is refused is an error with
the controller's own words; what is not answered is Unreachable, and may have been done: so whoever
calls looks at the lists again before it tries anew.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpx

from sluice.cli.rest import CommandError, detail_of, leader_of, type_of
from sluice.config.ini import ConfigError
from sluice.config.vsphere import ControllerSection, placed
from sluice.hypervisor.vsphere.errors import ControllerRefused, Unreachable

PATIENCE_SECONDS = 30.0
MOST_WAITS = 60  # of a second or so each, when it asks too often
PAGE = 1000
AT_ONCE = 16  # calls; those that come at a time share the controller's writes


class ControllerLine:
    """One service's access; close() ends it."""

    def __init__(self, section: ControllerSection) -> None:
        """Reads token and CA; raises ConfigError."""
        scheme = "https" if section.ca_file else "http"
        self._bases = [f"{scheme}://{address}/v1" for address in section.addresses]
        self.addresses = ", ".join(section.addresses)
        headers = {}
        try:
            if path := placed(section.token_file):
                token = path.read_text().strip()
                headers["Authorization"] = f"Bearer {token}"
            tls = ssl.create_default_context(cafile=section.ca_file) if section.ca_file else True
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"[controller] token_file or ca_file cannot be used: {error}"
            ) from None
        self._client = httpx.AsyncClient(
            timeout=PATIENCE_SECONDS, headers=headers, verify=tls, trust_env=False
        )
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.calls = 0

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.aclose()

    async def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of a GET."""
        return await self._ask("GET", path, params=parameters)

    async def post(self, path: str, body: Any) -> Any:
        """The JSON of a POST."""
        return await self._ask("POST", path, json=body)

    async def patch(self, path: str, body: Any) -> Any:
        """The JSON of a PATCH."""
        return await self._ask("PATCH", path, json=body)

    async def put(self, path: str) -> Any:
        """The JSON of a PUT without body."""
        return await self._ask("PUT", path)

    async def delete(self, path: str) -> bool:
        """Deletes; False if there was no such thing, or it had ended already."""
        try:
            await self._ask("DELETE", path)
        except ControllerRefused as refused:
            if refused.is_over:
                return False
            raise
        return True

    async def every(self, path: str, key: str, **parameters: Any) -> list[Any]:
        """A list's pages, put together."""
        found: list[Any] = []
        marker: dict[str, str] = {}
        while True:
            part = await self.get(path, limit=PAGE, **parameters, **marker)
            found += part[key]
            if not part.get("next_marker"):
                return found
            marker = {"marker": part["next_marker"]}

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        async with self._turns:
            return await self._answer(method, path, **options)

    async def _answer(self, method: str, path: str, **options: Any) -> Any:
        trouble = ""
        for _ in range(MOST_WAITS):
            for base in list(self._bases):
                self.calls += 1
                try:
                    answer = await self._client.request(method, base + path, **options)
                    if leader := leader_of(base, answer):
                        # the address has the parameters; the next base is to be told them again
                        asked = {**options, "params": None}
                        answer = await self._client.request(method, leader, **asked)
                except (httpx.HTTPError, httpx.InvalidURL, CommandError) as error:
                    trouble = str(error) or type(error).__name__
                    if method != "GET" and not isinstance(error, httpx.ConnectError):
                        raise self._unreachable(trouble) from None  # it may have been done
                    continue
                if answer.status_code == 429:
                    break
                if answer.status_code == 503 and len(self._bases) > 1:
                    trouble = "no controller leads"
                    continue
                if answer.status_code >= 400:
                    raise ControllerRefused(
                        detail_of(answer, self.addresses), answer.status_code, type_of(answer)
                    )
                return answer.json() if answer.content else None
            else:
                raise self._unreachable(trouble)
            await asyncio.sleep(_seconds(answer.headers.get("retry-after", "1")))
        raise self._unreachable("it says that this service asks too often")

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(f"the controller at {self.addresses} does not answer ({why})")


def _seconds(text: str) -> float:
    return min(30.0, float(text)) if text.isascii() and text.isdigit() else 1.0
