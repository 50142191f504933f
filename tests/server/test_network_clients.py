# SPDX-License-Identifier: Apache-2.0
"""CUDA programs that ask the controller themselves: which of several, with what token, whose CA.

Real programs, client library, controller, server, worker and software GPU. Skipped where the native
part is not built.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, wait_for
from free_ports import free_port
from network_program import built, run, start
from pool_certificates import PoolCa, handshaker, listening

pytestmark = [
    pytest.mark.skipif(not built(), reason="the native part is not built"),
    pytest.mark.control_plane(
        shared=True, as_admin=True, auth={"required": "yes"}, pool={"waiting_line_seconds": 1}
    ),
]


@pytest.fixture(scope="module")
def plane_options(ca: PoolCa) -> dict[str, Any]:
    """A controller with TLS that wants a token from everybody."""
    controller = ca.issue("controller", "127.0.0.1", kind="controller")
    return {
        "folder": ca.folder.parent,
        "tls": {**controller.setting(), "node_ca_file": ca.file},
        "server_tls": {**ca.issue("node-a").setting(), "ca_file": ca.file},
    }


def tenant(plane: ControlPlane) -> tuple[str, str]:
    """A new token's id and secret."""
    answer = plane.rest.post("/tokens", json={"name": "t", "role": "tenant", "project": "p"})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    return made["id"], made["secret"]


@pytest.fixture
def controllers(plane: ControlPlane) -> str:
    return f"https://127.0.0.1:{plane.rest_port}"


def test_a_program_with_a_token_and_the_ca_computes(
    plane: ControlPlane, ca: PoolCa, controllers: str, tmp_path: Path
) -> None:
    _, secret = tenant(plane)
    ok, said = run(tmp_path, SLUICE_CONTROLLER=controllers, SLUICE_CA=ca.file, SLUICE_TOKEN=secret)
    assert ok, said
    assert secret not in said
    wait_for(lambda: not plane.grants())
    [session] = [s for s in plane.sessions("ended") if s["channel"] == "tcp"][:1]
    assert session["program"].startswith("python")


def test_settings_may_stand_in_the_file(plane: ControlPlane, ca: PoolCa, tmp_path: Path) -> None:
    """With a CA named, an address is one with TLS."""
    _, secret = tenant(plane)
    folder = tmp_path / ".sluice"
    folder.mkdir()
    token = tmp_path / "a token"
    token.write_text(f"{secret}\n")
    token.chmod(0o600)
    (folder / "client.conf").write_text(
        f"[controller]\ncontroller_addr = 127.0.0.1:{plane.rest_port}\nca = {ca.file}\n"
        f"token_file = {token}\n"
    )
    ok, said = run(tmp_path)
    assert ok, said
    token.chmod(0o644)
    ok, said = run(tmp_path)
    assert not ok
    assert f"{token} is open to others" in said
    assert secret not in said


def test_no_token_and_a_revoked_one_are_refused_with_the_controllers_word(
    plane: ControlPlane, ca: PoolCa, controllers: str, tmp_path: Path
) -> None:
    ok, said = run(tmp_path, SLUICE_CONTROLLER=controllers, SLUICE_CA=ca.file)
    assert not ok
    assert "this controller wants a token" in said
    token_id, secret = tenant(plane)
    assert plane.rest.delete(f"/tokens/{token_id}").status_code == 200
    ok, said = run(tmp_path, SLUICE_CONTROLLER=controllers, SLUICE_CA=ca.file, SLUICE_TOKEN=secret)
    assert not ok
    assert f"token {token_id} is revoked" in said
    ok, said = run(
        tmp_path, SLUICE_CONTROLLER=controllers, SLUICE_CA=ca.file, SLUICE_TOKEN="a\r\nb: c"
    )
    assert not ok
    assert "is none" in said
    assert not plane.grants()


def test_a_waiting_program_says_where_it_stands(
    plane: ControlPlane, ca: PoolCa, controllers: str, tmp_path: Path
) -> None:
    _, secret = tenant(plane)
    wanted = {
        "SLUICE_CONTROLLER": controllers, "SLUICE_CA": ca.file, "SLUICE_TOKEN": secret,
        "SLUICE_RATIO": 100,
    }  # fmt: skip
    first = start(tmp_path, **wanted)
    assert first.stdout
    assert first.stdout.readline() == "ready\n"
    second = start(tmp_path, **wanted)
    assert second.stdin
    assert second.stdout
    assert second.stderr
    for _ in range(2):
        line = second.stderr.readline()
        assert line.startswith("sluice: waiting for 1 vGPU"), line
        assert "position 1 of 1 in the queue" in line
    third = start(tmp_path, **wanted)
    assert third.stderr
    assert "position 2 of 2" in third.stderr.readline()
    third.kill()
    third.communicate()
    first.communicate("go\n", timeout=60)
    assert second.stdout.readline() == "ready\n"
    second.communicate("go\n", timeout=60)
    wait_for(lambda: not plane.grants())


def test_where_a_request_stands_is_told_to_its_asker_alone(plane: ControlPlane) -> None:
    def place_of(key: str, secret: str) -> httpx.Response:
        return plane.rest_as(secret).get("/queue/mine", headers={"Idempotency-Key": key})

    _, secret = tenant(plane)
    _, others = tenant(plane)
    held = plane.rest_as(secret).post("/sessions", json={"ratio_percent": 100}).json()
    body = {"ratio_percent": 100, "wait_seconds": 60}

    def ask() -> httpx.Response:
        key = {"Idempotency-Key": "k1"}
        return plane.rest_as(secret).post("/sessions", json=body, headers=key, timeout=60)

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask)
        wait_for(lambda: place_of("k1", secret).status_code == 200)
        place = place_of("k1", secret).json()
        assert (place["position"], place["waiting"], place["line_seconds"]) == (1, 1, 1)
        for key, who in (("k1", others), ("k2", secret), ("", secret)):
            refused = place_of(key, who)
            assert refused.status_code == 404, refused.text
            assert "with this Idempotency-Key" in refused.json()["detail"]
        assert place_of("k" * 256, secret).status_code == 422
        assert plane.rest.delete(f"/grants/{held['grant_id']}").status_code == 202
        given = asking.result()
    assert given.status_code == 201
    assert place_of("k1", secret).status_code == 404
    plane.rest.delete(f"/grants/{given.json()['grant_id']}")
    wait_for(lambda: not plane.grants())


def test_a_controller_of_another_ca_is_not_spoken_to(
    plane: ControlPlane, controllers: str, tmp_path: Path
) -> None:
    other = PoolCa(tmp_path / "other")
    for words in ({"SLUICE_CA": other.file}, {}):
        ok, said = run(tmp_path, SLUICE_CONTROLLER=controllers, SLUICE_TOKEN="sluice_x", **words)
        assert not ok
        assert "certificate is not accepted" in said
    ok, said = run(
        tmp_path, SLUICE_CONTROLLER=controllers, SLUICE_CA=tmp_path / "none", SLUICE_TOKEN="x"
    )
    assert not ok
    assert f"the CA file {tmp_path / 'none'} cannot be used" in said


@pytest.mark.parametrize(
    ("kind", "what"), [("name", "address mismatch"), ("expired", "certificate has expired")]
)
def test_a_certificate_of_the_wrong_name_or_time_gets_no_token(
    ca: PoolCa, tmp_path: Path, kind: str, what: str
) -> None:
    pair = (
        ca.issue(f"elsewhere-{kind}", "10.1.2.3")
        if kind == "name"
        else ca.issue_expired("late", "127.0.0.1")
    )
    with handshaker(pair) as server:
        ok, said = run(
            tmp_path,
            SLUICE_CONTROLLER=f"https://127.0.0.1:{server.port}",
            SLUICE_CA=ca.file,
            SLUICE_TOKEN="sluice_secret",
        )
    assert not ok
    assert what in said.lower()
    assert not server.heard


def test_dead_and_wrong_controllers_are_passed_over(
    plane: ControlPlane, ca: PoolCa, tmp_path: Path
) -> None:
    """Nobody there, one that never answers, one that talks nonsense, then the right one."""
    _, secret = tenant(plane)
    silent = socket.create_server(("127.0.0.1", 0))

    def nonsense(connected: socket.socket) -> None:
        connected.sendall(b"\x00" * 4096)
        connected.recv(4096)

    with silent, listening(nonsense) as loud:
        ports = [free_port(), silent.getsockname()[1], loud, plane.rest_port]
        begin = time.monotonic()
        ok, said = run(
            tmp_path,
            SLUICE_CONTROLLER=", ".join(f"https://127.0.0.1:{port}" for port in ports),
            SLUICE_CA=ca.file,
            SLUICE_TOKEN=secret,
        )
        assert ok, said
        assert time.monotonic() - begin < 20
        ok, said = run(
            tmp_path,
            SLUICE_CONTROLLER=",".join(f"https://127.0.0.1:{port}" for port in ports[:3]),
            SLUICE_CA=ca.file,
        )
    assert not ok
    assert "no sluice-controller at" in said
    for port, trouble in zip(
        ports, ("Connection refused", "does not answer in time", "is no TLS"), strict=False
    ):
        assert f"https://127.0.0.1:{port}: " in said
        assert trouble in said


def refer_to(place: str) -> bytes:
    return (
        f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n"
    ).encode()


def test_a_follower_refers_to_its_leader(plane: ControlPlane, ca: PoolCa, tmp_path: Path) -> None:
    _, secret = tenant(plane)
    heard: list[bytes] = []

    def follow(connected: socket.socket) -> None:
        heard.append(connected.recv(4096))
        connected.sendall(refer_to(f"https://127.0.0.1:{plane.rest_port}/v1/sessions"))

    with listening(follow) as port:
        ok, said = run(
            tmp_path,
            SLUICE_CONTROLLER=f"http://127.0.0.1:{port}",
            SLUICE_CA=ca.file,
            SLUICE_TOKEN=secret,
        )
    assert ok, said
    assert b"POST /v1/sessions " in heard[0]


def test_a_redirect_out_of_tls_is_not_followed(ca: PoolCa, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = ca.issue("follower", "127.0.0.1", kind="controller")
    context.load_cert_chain(pair.cert, pair.key)
    heard: list[bytes] = []

    def leader(connected: socket.socket) -> None:
        heard.append(connected.recv(4096))

    with listening(leader) as plain:

        def follow(connected: socket.socket) -> None:
            with context.wrap_socket(connected, True) as secure:
                secure.recv(4096)
                secure.sendall(refer_to(f"http://127.0.0.1:{plain}/v1/sessions"))

        with listening(follow) as port:
            ok, said = run(
                tmp_path,
                SLUICE_CONTROLLER=f"https://127.0.0.1:{port}",
                SLUICE_CA=ca.file,
                SLUICE_TOKEN="sluice_secret",
            )
    assert not ok
    assert "where nothing is protected" in said
    assert not heard


@pytest.mark.parametrize("lost", ["answer", "request", "grant"])
def test_what_broke_off_is_asked_again_and_granted_once(
    plane: ControlPlane, ca: PoolCa, tmp_path: Path, lost: str
) -> None:
    """Between client and controller, one loses the first answer, or the first request.

    Or the answer comes, and what it granted is taken back before the client is at the node, as by a
    controller that was killed meanwhile: that is asked for anew, once.
    """
    _, secret = tenant(plane)
    before = len(plane.sessions("all"))
    losses = [lost]

    def pass_on(connected: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", plane.rest_port)) as upstream:
            connected.setblocking(False)
            upstream.settimeout(0.05)
            lose, passed = bool(losses), 0
            while True:
                try:
                    if not (data := connected.recv(65536)):
                        return
                    passed += len(data)
                    if lose and lost == "request" and passed > 600:
                        losses.clear()
                        return
                    upstream.sendall(data)
                except BlockingIOError:
                    pass
                try:
                    if not (data := upstream.recv(65536)):
                        return
                    # TLS 1.3: handshake, tickets, then what the controller answers
                    if losses and lost != "request" and len(plane.sessions("all")) > before:
                        # a request whose client leaves before it is answered is taken back, which
                        # is another story: all of the answer comes here, and is lost here
                        upstream.settimeout(5.0)
                        with contextlib.suppress(TimeoutError):
                            while more := upstream.recv(65536):
                                data += more
                        upstream.settimeout(0.05)
                        losses.clear()
                        if lost == "answer":
                            return
                        (grant,) = plane.grants()
                        assert plane.rest.delete(f"/grants/{grant['id']}").status_code == 202
                        wait_for(lambda: not plane.grants())
                    connected.sendall(data)
                except TimeoutError:
                    pass

    with listening(pass_on) as port:
        process = start(
            tmp_path,
            SLUICE_CONTROLLER=f"https://127.0.0.1:{port}",
            SLUICE_CA=ca.file,
            SLUICE_TOKEN=secret,
        )
        assert process.stdout
        line = process.stdout.readline()
        if line == "ready\n":
            assert len(plane.grants()) == 1
        _, said = process.communicate("go\n", timeout=60)
    assert line == "ready\n", said
    assert not losses, "nothing was lost"
    assert len(plane.sessions("all")) == before + (2 if lost == "grant" else 1)
    wait_for(lambda: not plane.grants())


def test_a_plain_client_of_a_controller_with_tls_is_told(
    plane: ControlPlane, tmp_path: Path
) -> None:
    ok, said = run(tmp_path, SLUICE_CONTROLLER=f"http://127.0.0.1:{plane.rest_port}")
    assert not ok
    assert "no sluice-controller at" in said


def test_without_openssl_a_program_is_told(ca: PoolCa, controllers: str, tmp_path: Path) -> None:
    ok, said = run(
        tmp_path,
        SLUICE_CONTROLLER=controllers,
        SLUICE_CA=ca.file,
        SLUICE_LIBSSL=tmp_path / "libssl.so",
    )
    assert not ok
    assert "there is no OpenSSL here" in said
