# SPDX-License-Identifier: Apache-2.0
"""The data port under TLS: real programs through it, and everybody who must not get through.

Skipped where the native part is not built.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import PYTHON_PATH, ControlPlane, read_stream, running, wait_for
from network_program import built, run, start
from pool_certificates import Pair, PoolCa, handshaker, listening

from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "programs"

pytestmark = [
    pytest.mark.skipif(not built(), reason="the native part is not built"),
    pytest.mark.control_plane(shared=True),
]


@pytest.fixture(scope="module")
def plane_options(ca: PoolCa) -> dict[str, Any]:
    """A node whose data port has TLS; its controller, on this host, has none."""
    pair = ca.issue("node-a")
    tls = {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}
    return {"folder": ca.folder.parent, "server_tls": tls}


@pytest.fixture
def reach(plane: ControlPlane, ca: PoolCa) -> dict[str, object]:
    return {"SLUICE_CONTROLLER": f"http://127.0.0.1:{plane.rest_port}", "SLUICE_CA": ca.file}


def ticket(plane: ControlPlane) -> dict[str, Any]:
    answer = plane.rest.post("/sessions", json={"gmem_mib": 64})
    assert answer.status_code == 201, answer.text
    result: dict[str, Any] = answer.json()
    return result


@contextlib.contextmanager
def controller_that_says(**ticket: object) -> Iterator[dict[str, object]]:
    """The settings of a client whose controller names this place."""
    body = json.dumps({"address": "127.0.0.1", "key": "k" * 32, "tls": True, **ticket}).encode()

    def answer(connected: socket.socket) -> None:
        connected.recv(65536)
        head = f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n"
        connected.sendall(head.encode() + body)

    with listening(answer) as port:
        yield {"SLUICE_CONTROLLER": f"http://127.0.0.1:{port}"}


def trusting(ca: PoolCa) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def secure(plane: ControlPlane, ca: PoolCa) -> ssl.SSLSocket:
    return trusting(ca).wrap_socket(plane.connect_data(), server_hostname="node-a")


def test_a_ticket_says_that_tls_is_spoken(plane: ControlPlane) -> None:
    got = ticket(plane)
    assert (got["tls"], got["tls_name"]) == (True, "node-a")
    plane.rest.delete(f"/grants/{got['grant_id']}")
    wait_for(lambda: not plane.grants())
    assert "data port: 127.0.0.1" in plane.log("server")
    assert "with TLS" in plane.log("server")


@pytest.mark.parametrize(
    ("name", "argument"), [("vector_add", ""), ("bulk_copies", "24"), ("threads8", "10")]
)
def test_programs_compute_the_same(
    plane: ControlPlane, reach: dict[str, object], tmp_path: Path, name: str, argument: str
) -> None:
    program = PROGRAMS / name
    if not program.exists():
        pytest.skip(f"{name} is not built")
    words = filter(None, [argument])
    process = start(tmp_path, program, *words, SLUICE_GMEM=1024, **reach)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, out + error
    wait_for(lambda: not plane.grants())


def test_a_program_with_openssl_of_its_own_ends_in_order(
    plane: ControlPlane, reach: dict[str, object], tmp_path: Path
) -> None:
    """It has been using the same library, which is torn down before our last words."""
    text = (
        "import ssl, ctypes; ssl.create_default_context(); cuda = ctypes.CDLL('libcuda.so.1');"
        "assert cuda.cuInit(0) == 0; n = ctypes.c_int(); assert cuda.cuDeviceGetCount("
        "ctypes.byref(n)) == 0; c = ctypes.c_void_p();"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == 0; print(n.value);"
        "ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())"
    )
    before = {session["id"] for session in plane.sessions("ended")}
    process = start(tmp_path, sys.executable, "-c", text, **reach)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "1\n"), error
    wait_for(lambda: not plane.grants())
    [session] = [s for s in plane.sessions("ended") if s["id"] not in before]
    assert session["reason"] == "the client closed its session"
    assert session["cause"] == "client-ended"


def test_a_session_outlives_its_server_and_its_controller(
    plane: ControlPlane, reach: dict[str, object], tmp_path: Path
) -> None:
    process = start(tmp_path, **reach)
    assert process.stdout
    assert process.stdin
    assert process.stdout.readline() == "ready\n"
    wait_for(lambda: [s["state"] for s in plane.sessions()] == ["running"])
    plane.stop("server")
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "0\n"
    plane.start_server()
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "0\n"
    process.kill()
    process.communicate()
    wait_for(lambda: not plane.grants(), message="the grant to return")


@pytest.mark.parametrize("other", ["authority", "name", "time"])
def test_a_client_takes_no_others_certificate(ca: PoolCa, tmp_path: Path, other: str) -> None:
    pair: Pair
    if other == "authority":
        pair, what = PoolCa(tmp_path / "other").issue("node-z"), "certificate is not accepted"
    elif other == "name":
        pair, what = ca.issue("node-y", "127.0.0.1"), "hostname mismatch"
    else:
        pair, what = ca.issue_expired("node-z"), "certificate has expired"
    with (
        handshaker(pair) as server,
        controller_that_says(port=server.port, tls_name="node-z") as settings,
    ):
        ok, said = run(tmp_path, SLUICE_CA=ca.file, **settings)
    assert not ok
    assert what in said.lower()
    assert not server.heard, "the key was shown"


def test_a_server_without_tls_is_no_partner_of_one_that_wants_it(
    ca: PoolCa, tmp_path: Path
) -> None:
    with (
        running(tmp_path) as plain,
        controller_that_says(port=plain.data_port, tls_name="node-a") as settings,
    ):
        ok, said = run(tmp_path, SLUICE_CA=ca.file, **settings)
    assert not ok
    assert "does not speak TLS here" in said


def test_a_connection_cut_in_the_handshake_is_told(ca: PoolCa, tmp_path: Path) -> None:
    with (
        listening(lambda connected: connected.recv(10)) as port,
        controller_that_says(port=port, tls_name="node-a") as settings,
    ):
        ok, said = run(tmp_path, SLUICE_CA=ca.file, **settings)
    assert not ok
    assert f"sluice-server at 127.0.0.1:{port}" in said


def test_a_plain_client_is_told_what_is_wanted(
    plane: ControlPlane, ca: PoolCa, tmp_path: Path
) -> None:
    with plane.connect_data() as connected:
        connected.sendall(pack_open_session(key="k" * 32))
        status, _, message = unpack_open_reply(read_stream(connected, 512))
    assert status == 800
    assert "wants TLS" in message
    with controller_that_says(port=plane.data_port, tls=False) as settings:
        ok, said = run(tmp_path, **settings)
    assert not ok
    assert "wants TLS" in said


def test_a_wrong_key_is_refused_inside(plane: ControlPlane, ca: PoolCa) -> None:
    with secure(plane, ca) as connected:
        connected.sendall(pack_open_session(key="k" * 32))
        data = b""
        while len(data) < 512 and (part := connected.recv(512)):
            data += part
    status, _, message = unpack_open_reply(data)
    assert status == 800
    assert "the key is unknown" in message


def test_older_versions_and_foreign_names_have_no_handshake(
    plane: ControlPlane, ca: PoolCa
) -> None:
    old = ssl.create_default_context(cafile=ca.file)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        old.wrap_socket(plane.connect_data(), server_hostname="node-a")
    with pytest.raises(ssl.SSLCertVerificationError):
        trusting(ca).wrap_socket(plane.connect_data(), server_hostname="node-b")


@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_hold_nobody_up(
    plane: ControlPlane, ca: PoolCa, reach: dict[str, object], tmp_path: Path, seed: int
) -> None:
    """Noise, half a handshake, a handshake of nonsense, records that are too long."""
    noise = os.urandom(600)
    begin = [noise, b"\x16\x03\x01\x02\x00" + noise[:100], b"\x16\x03\x01\x02\x00" + noise[:512],
             b"\x16\x03\x01\xff\xff" + noise][seed]  # fmt: skip
    held = [plane.connect_data() for _ in range(20)]
    for connected in held:
        connected.sendall(begin)
    ok, said = run(tmp_path, **reach)
    assert ok, said
    for connected in held:
        connected.settimeout(20)  # the server's patience is ten seconds
        with contextlib.suppress(ConnectionError):
            while connected.recv(4096):
                pass
        connected.close()
    assert "serving a connection failed" not in plane.log("server")
    wait_for(lambda: not plane.grants())


@pytest.mark.parametrize("after", ["noise", "more", "half a record"])
def test_what_is_no_record_ends_its_session_only(
    plane: ControlPlane, ca: PoolCa, after: str
) -> None:
    got = ticket(plane)
    connected = secure(plane, ca)
    opened = pack_open_session(key=got["key"], gmem_mib=64)
    if after == "more":  # the first record has more than the first frame
        connected.sendall(opened + b"x" * 64)
        assert connected.recv(512) == b""
        assert plane.rest.delete(f"/grants/{got['grant_id']}").status_code == 202
    else:
        connected.sendall(opened)
        data = b""
        while len(data) < 512:
            data += connected.recv(512 - len(data))
        assert unpack_open_reply(data)[0] == 0
        wait_for(lambda: [s["state"] for s in plane.sessions()] == ["running"])
        raw = socket.socket(fileno=os.dup(connected.fileno()))
        raw.sendall(os.urandom(4096) if after == "noise" else b"\x17\x03\x03\x40\x00" + bytes(99))
        if after != "noise":
            raw.shutdown(socket.SHUT_RDWR)
        raw.close()
    wait_for(lambda: not plane.grants(), message="the grant to return")
    connected.close()


def test_secrets_stand_in_no_log_and_no_record(
    plane: ControlPlane, reach: dict[str, object], tmp_path: Path
) -> None:
    process = start(tmp_path, **reach)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    texts = [p.read_text(errors="replace") for p in plane.folder.rglob("*.json")]
    texts += [p.read_text(errors="replace") for p in plane.folder.rglob("*.log")]
    assert not any("tls_in" in text or "TRAFFIC_SECRET" in text for text in texts)
    process.communicate("", timeout=60)
    wait_for(lambda: not plane.grants())


@pytest.mark.parametrize("wrong", ["name", "file"])
def test_a_server_whose_certificate_nobody_would_take_does_not_start(
    ca: PoolCa, tmp_path: Path, wrong: str
) -> None:
    pair = (
        ca.issue("someone") if wrong == "name" else Pair(tmp_path / "no.crt", tmp_path / "no.key")
    )
    conf = tmp_path / "server.conf"
    conf.write_text(
        f"[log]\nlog_dir = {tmp_path}\n[server]\nnode_name = node-a\nrun_dir = {tmp_path}/run\n"
        f"driver = softgpu\nlisten_port = 0\nenable_kvm = false\n[tls]\ndata_plane = true\n"
        f"data_cert_file = {pair.cert}\ndata_key_file = {pair.key}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sluice.server", "--config", conf],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "[tls] data_plane" in done.stderr
    assert "Traceback" not in done.stderr
    assert ("is for someone" in done.stderr) == (wrong == "name")
    assert not (tmp_path / "run" / "arbiter.sock").exists(), "no process of it is left"
