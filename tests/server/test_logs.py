# SPDX-License-Identifier: Apache-2.0
"""Log lines as JSON: a session can be followed by its ids from client to worker and back."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from control_plane import ControlPlane, read_stream, wait_for

from sluice.server.sessions.open_session import FRAME_BYTES, pack_open_session, unpack_open_reply

pytestmark = pytest.mark.control_plane(log={"log_format": "json"})

Line = dict[str, Any]


def lines(plane: ControlPlane, service: str) -> list[Line]:
    """Every line of a service's log; each is one JSON object."""
    text = (plane.folder / "log" / f"{service}.log").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        assert {"time", "level", "service", "logger", "message"} <= set(line), line
        assert line["service"] == service
    return found


def about(plane: ControlPlane, service: str, **ids: str) -> list[Line]:
    """The lines that carry these ids."""
    return [line for line in lines(plane, service) if ids.items() <= line.items()]


def said(found: list[Line], words: str) -> list[Line]:
    """Those of them whose message has the words."""
    return [line for line in found if words in line["message"]]


def test_a_local_session_is_followed_from_its_client_to_its_worker(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=256, program="followed")
    session_id = client.session_id  # all that the client knows

    [started] = said(about(plane, "server", session_id=session_id), "started: followed")
    grant_id, request_id = started["grant_id"], started["request_id"]
    asked = about(plane, "server", request_id=request_id)
    assert said(asked, "open: followed"), "before there was a grant, its request has a name"

    wait_for(lambda: about(plane, "controller", session_id=session_id))
    [made] = [
        line
        for line in about(plane, "controller", request_id=request_id)
        if line.get("event") == "grant.made"
    ]
    assert made["grant_id"] == made["subject"] == grant_id
    [running_] = about(plane, "controller", session_id=session_id, event="session.running")
    assert running_["grant_id"] == grant_id

    log = (plane.folder / "log" / "session" / f"{session_id}.log").read_text()
    if not plane.fake:
        workers = [line for line in log.splitlines() if " worker session=" in line]
        assert workers
        assert all(f"session={session_id} grant={grant_id}" in line for line in workers)

    client.kill()
    wait_for(lambda: said(about(plane, "server", session_id=session_id), "ended: "))
    [ended] = said(about(plane, "server", session_id=session_id), "ended: ")
    assert ended["request_id"] == request_id
    wait_for(lambda: about(plane, "controller", grant_id=grant_id, event="grant.ended"))


def test_the_next_session_of_a_gpu_does_not_carry_the_ids_of_the_last(plane: ControlPlane) -> None:
    # the second worker was started while the first session was being opened
    ids = []
    for _ in range(3):
        client = plane.client(gmem_mib=128)
        wait_for(lambda: len(plane.worker_pids()) == 2, message="the next worker to wait")
        client.kill()
        wait_for(lambda c=client: said(about(plane, "server", session_id=c.session_id), "ended: "))  # type: ignore[misc]
        found = about(plane, "server", session_id=client.session_id)
        assert len({line["request_id"] for line in found}) == 1
        assert len({line["grant_id"] for line in found}) == 1
        ids.append(found[0]["request_id"])
    assert len(set(ids)) == 3


def test_a_network_clients_request_id_reaches_the_node(plane: ControlPlane) -> None:
    ticket = plane.rest.post(
        "/sessions", json={"gmem_mib": 128}, headers={"X-Request-ID": "from-afar"}
    ).json()
    with socket.create_connection((ticket["address"], ticket["port"]), timeout=10) as connected:
        connected.sendall(pack_open_session(key=ticket["key"], program="afar"))
        assert unpack_open_reply(read_stream(connected, FRAME_BYTES))[0] == 0
        session_id, grant_id = ticket["session_id"], ticket["grant_id"]
        assert about(plane, "controller", request_id="from-afar", event="grant.made")
        wait_for(lambda: about(plane, "server", session_id=session_id, request_id="from-afar"))

        plane.rest.delete(f"/grants/{grant_id}", headers={"X-Request-ID": "operator-1"})
        wait_for(lambda: said(about(plane, "server", request_id="operator-1"), "ending: "))
        [ending] = said(about(plane, "server", request_id="operator-1"), "ending: ")
        assert ending["session_id"] == session_id
    [audit] = said(about(plane, "controller", request_id="operator-1"), "audit.delete")
    assert "request operator-1" in audit["message"]
