# SPDX-License-Identifier: Apache-2.0
"""Sessions of clients elsewhere: the controller's ticket, the key, the data port."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from control_plane import ControlPlane, read_stream, running, wait_for

from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply


def ticket(plane: ControlPlane, **wanted: Any) -> dict[str, Any]:
    answer = plane.rest.post("/sessions", json=wanted)
    assert answer.status_code == 201, answer.text
    result: dict[str, Any] = answer.json()
    return result


def open_with(plane: ControlPlane, key: str) -> tuple[socket.socket, int, str]:
    connected = plane.connect_data()
    connected.sendall(pack_open_session(key=key, program="tcp_program"))
    status, session_id, message = unpack_open_reply(read_stream(connected, 512))
    return connected, status, f"{session_id:016x}" if status == 0 else message


def test_a_ticket_opens_one_session_and_closing_it_returns_everything(
    plane: ControlPlane,
) -> None:
    got = ticket(plane, gmem_mib=256, ratio_percent=20, program="tcp_program", host="elsewhere")
    assert (got["address"], got["port"]) == ("127.0.0.1", plane.data_port)
    [session] = plane.sessions()
    assert (session["state"], session["host"]) == ("opening", "elsewhere")
    connected, status, session_id = open_with(plane, got["key"])
    assert (status, session_id) == (0, got["session_id"])
    wait_for(lambda: plane.sessions()[0]["state"] == "running")
    again, status, message = open_with(plane, got["key"])
    assert status == 800
    assert "used before" in message
    again.close()
    assert len(plane.grants()) == 1
    connected.close()
    wait_for(lambda: not plane.grants())


def test_a_key_that_nobody_uses_expires_and_its_grant_returns(tmp_path: Path) -> None:
    with running(tmp_path, pool={"key_seconds": 1}) as plane:
        got = ticket(plane)
        wait_for(lambda: not plane.grants())
        _, status, message = open_with(plane, got["key"])
        assert status == 800
        assert "expired" in message
        [session] = plane.sessions("ended")
        assert "no client came with the key" in session["reason"]
        assert session["cause"] == "client-never-came"


def test_an_unused_key_survives_the_controllers_restart(plane: ControlPlane) -> None:
    got = ticket(plane)
    plane.stop("controller")
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up")
    assert len(plane.grants()) == 1
    connected, status, _ = open_with(plane, got["key"])
    assert status == 0
    connected.close()
    wait_for(lambda: not plane.grants())


def test_the_operator_ends_a_grant_whose_client_has_not_come(plane: ControlPlane) -> None:
    got = ticket(plane)
    assert plane.rest.delete(f"/grants/{got['grant_id']}").status_code == 202
    wait_for(lambda: not plane.grants())
    assert open_with(plane, got["key"])[1] == 800


def test_a_request_that_is_too_large_is_a_problem_document(plane: ControlPlane) -> None:
    answer = plane.rest.post("/sessions", json={"gmem_mib": 1 << 30, "wait_seconds": -1})
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["cuda_error"] == 2


def test_a_session_waits_for_room_and_a_hang_up_leaves_the_queue(plane: ControlPlane) -> None:
    first = plane.client(ratio_percent=100)
    body = b'{"ratio_percent": 100, "wait_seconds": -1}'
    with socket.create_connection(("127.0.0.1", plane.rest_port)) as hung:
        hung.sendall(
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        wait_for(lambda: plane.rest.get("/pool").json()["waiting"] == 1)
    wait_for(lambda: plane.rest.get("/pool").json()["waiting"] == 0, message="the queue to be left")
    first.kill()
    wait_for(lambda: not plane.grants())
    got = ticket(plane, ratio_percent=100, wait_seconds=5)
    assert open_with(plane, got["key"])[1] == 0


def test_the_worker_never_sees_the_key(fake_plane: ControlPlane) -> None:
    got = ticket(fake_plane)
    connected, _, session_id = open_with(fake_plane, got["key"])
    records = (fake_plane.folder / "run" / "workers").glob("*.json")
    assert all(got["key"] not in record.read_text() for record in records)
    assert got["key"] not in fake_plane.rest.get(f"/sessions/{session_id}/log").text
    connected.close()
