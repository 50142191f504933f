# SPDX-License-Identifier: Apache-2.0
"""Asks this host's sluice-server about claims, over run_dir/claims.sock (server.claims.listener).

Used by node_plugin.py, device_health.py and device_plugin.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 20.0
MOST_BYTES = 4 << 20


class ServerError(Exception):
    """The server did not do it; the text says why and what to do."""


@dataclass(frozen=True)
class Prepared:
    """Where a claim's processes find the server, and the token of their job."""

    folder: str
    job: str


@dataclass(frozen=True)
class HeldClaim:
    """A claim that the server has: namespace/name, its part's label, and the UID of its pod."""

    name: str
    label: str
    pod: str  # "": of a DRA claim


@dataclass(frozen=True)
class HostCondition:
    """How a GPU of this host is, as the host itself sees it; empty texts: well."""

    node: str  # what the pool calls this host
    fault: str
    held: str  # it takes nothing new, and what runs goes on
    note: str


class ServerSocket:
    """The server of this host. Every method raises ServerError."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = run_dir / "claims.sock"

    def folder_of(self, uid: str) -> str:
        """What `prepare` will answer for that claim."""
        return str(self._run_dir / "claims" / uid / "socket")

    async def prepare(self, **terms: Any) -> Prepared:
        """Has a claim's processes let in; asked again, it answers the same."""
        answer = await self._ask("prepare", terms)
        return Prepared(answer["folder"], answer["job"])

    async def release(self, uid: str, why: str) -> None:
        """Has what runs of a claim ended; one that is not there is as good."""
        await self._ask("release", {"uid": uid, "why": why})

    async def claims(self) -> dict[str, str]:
        """Names of the claims that are prepared, by UID."""
        found: dict[str, str] = (await self._ask("list", {}))["claims"]
        return found

    async def held(self) -> dict[str, HeldClaim]:
        """The claims that are prepared, by UID, with what each is of."""
        found = (await self._ask("held", {}))["held"]
        return {uid: HeldClaim(**terms) for uid, terms in found.items()}

    async def conditions(self) -> dict[str, HostCondition]:
        """How each GPU of this host is, by UUID; only those that it offers."""
        found = await self._ask("gpus", {})
        return {uuid: HostCondition(found["node"], **each) for uuid, each in found["gpus"].items()}

    async def _ask(self, verb: str, what: dict[str, Any]) -> dict[str, Any]:
        try:
            line = await asyncio.wait_for(self._line({verb: what}), ANSWER_SECONDS)
            answer = json.loads(line)
        except (OSError, TimeoutError, ValueError) as error:
            raise ServerError(
                f"sluice-server at {self._path} does not answer ({error or 'too late'}): start it, "
                "or set [node] server_run_dir"
            ) from None
        if "error" in answer:
            raise ServerError(f"sluice-server: {answer['error']}")
        found: dict[str, Any] = answer
        return found

    async def _line(self, request: dict[str, Any]) -> bytes:
        reading, writing = await asyncio.open_unix_connection(str(self._path), limit=MOST_BYTES)
        try:
            writing.write(json.dumps(request).encode() + b"\n")
            await writing.drain()
            return await reading.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raise OSError("it hung up") from error
        finally:
            writing.close()
