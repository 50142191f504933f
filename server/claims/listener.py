# SPDX-License-Identifier: Apache-2.0
"""The socket for the platform's part on this host: Kubernetes' node plugin.

Started by server.service. One line of JSON is a request, one is the answer, one request a
connection: {"prepare": {uid, name, label, project, count, priority, pod, pod_name, container}} has
a claim's processes let in, and is answered with the folder to mount and the token of its job;
{"release": {uid, why}} ends what runs of it; {"list": {}} names what there is, {"held": {}} says
besides of which pod and part; {"sessions": {uid}} says what runs; {"gpus": {}} says how this host's
GPUs are. Only root may ask: the socket is
mode 0600, and the peer's credentials are looked at besides.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sluice.resources.vgpu_request import RequestError
from sluice.server.claims.service import Claims, NoPlaceForClaim, as_answer
from sluice.server.claims.terms import read_terms, read_uid
from sluice.server.gpus.health import Condition
from sluice.server.listeners.json_line import JsonLineListener

SOCKET_NAME = "claims.sock"
LONGEST_REASON = 250


class ClaimsListener:
    """Listens on run_dir/claims.sock."""

    def __init__(
        self,
        run_dir: Path,
        claims: Claims,
        node_name: str,
        conditions: Callable[[], Mapping[str, Condition]],
    ) -> None:
        """`conditions`: of the GPUs that this host offers, by UUID."""
        self._claims = claims
        self._node_name = node_name
        self._conditions = conditions
        refusals = (ValueError, NoPlaceForClaim, OSError)
        self._listener = JsonLineListener(
            run_dir / SOCKET_NAME, "claims' socket", self._answer, refusals
        )

    def open(self) -> None:
        """Begins to listen; raises OSError."""
        self._listener.open()

    async def close(self) -> None:
        """Stops listening."""
        await self._listener.close()

    async def _answer(self, line: bytes, connected: socket.socket) -> dict[str, Any]:
        if _uid(connected) not in (0, os.geteuid()):
            raise RequestError("user", str(_uid(connected)), "only root may ask here")
        try:
            asked = json.loads(line)
        except ValueError:
            asked = None
        if not isinstance(asked, dict) or len(asked) != 1:
            raise ValueError("the request is no JSON object of one member in one line")
        [(verb, found)] = asked.items()
        if not isinstance(found, dict):
            raise ValueError(f'"{verb}" is no object')
        if verb == "prepare":
            terms, folder = self._claims.prepare(read_terms({**found, "job": ""}))
            return as_answer(terms, folder)
        if verb == "release":
            why = found.get("why", "")
            if not isinstance(why, str) or len(why) > LONGEST_REASON or not why.isprintable():
                raise RequestError("why", None, f"give a line of at most {LONGEST_REASON} signs")
            text = why or "its claim was released"
            return {"released": await self._claims.release(read_uid(found), text)}
        if verb == "list":
            return {"claims": {uid: terms.name for uid, terms in self._claims.terms.items()}}
        if verb == "held":
            return {
                "held": {
                    uid: {"name": terms.name, "label": terms.label, "pod": terms.pod}
                    for uid, terms in self._claims.terms.items()
                }
            }
        if verb == "sessions":
            return {"sessions": self._claims.sessions(read_uid(found))}
        if verb == "gpus":
            gpus = {uuid: asdict(condition) for uuid, condition in self._conditions().items()}
            return {"node": self._node_name, "gpus": gpus}
        allowed = "ask for prepare, release, list, held, sessions or gpus"
        raise RequestError("request", verb[:40], allowed)


def _uid(connected: socket.socket) -> int:
    size = struct.calcsize("3i")
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", found)[1])
