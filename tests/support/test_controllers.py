# SPDX-License-Identifier: Apache-2.0
"""Each way in which a controller cannot be reached has a line of its own."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from control_plane import ControlPlane
from free_ports import free_port
from pool_certificates import Pair, PoolCa, handshaker, listening

from sluice.guest_runtime.controller_check import Controllers, check_controllers
from sluice.guest_runtime.findings import Finding
from tests.support.findings_of import bad, noted, only_bad


def asked(addresses: str, ca: Path | None = None, token: str = "") -> list[Finding]:
    return check_controllers(Controllers(addresses, str(ca or ""), token), "0.2.0")


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PoolCa:
    return PoolCa(tmp_path_factory.mktemp("ca"))


@pytest.mark.control_plane(shared=True, guarded=True)
def test_a_real_one_is_good_and_takes_its_token(shared_plane: ControlPlane) -> None:
    address = f"127.0.0.1:{shared_plane.rest_port}"
    found = asked(address, token=shared_plane.first_token())
    assert not bad(found)
    assert "takes it" in found[-1].text
    only_bad(asked(address, token="sluice_" + "x" * 43), "does not take it", "token create")


def test_addresses_that_are_none_are_named() -> None:
    only_bad(asked(" , "), "SLUICE_CONTROLLER")
    for nonsense in ("pool", "pool:x", "ftp://pool:1", "10.0.0.1:99999999"):
        only_bad(asked(nonsense), nonsense)
    only_bad(asked("no-such-host.invalid:9123"), "resolv.conf")


def test_nobody_and_nothing_are_told_apart() -> None:
    only_bad(asked(f"127.0.0.1:{free_port()}"), "nobody listens")


def said(answer: bytes) -> Iterator[int]:
    def serve(connected: socket.socket) -> None:
        connected.recv(4096)
        connected.sendall(answer)

    with listening(serve) as port:
        yield port


def http(body: bytes, date: float | None = None) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nDate: {formatdate(date, usegmt=True)}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def controller(version: str = "0.2.0", trouble: str | None = None) -> bytes:
    return json.dumps({"version": version, "leads": True, "store_trouble": trouble}).encode()


def answered(answer: bytes) -> list[Finding]:
    port = next(ports := said(answer))
    try:
        return asked(f"127.0.0.1:{port}")
    finally:
        ports.close()  # type: ignore[attr-defined]


def test_another_service_is_none_of_ours() -> None:
    only_bad(answered(http(b"<html>hello</html>")), "9123")
    only_bad(answered(http(b"[" * 60000)), "9123")
    only_bad(answered(b"SSH-2.0-OpenSSH_9.2\r\n"), "https://")
    only_bad(answered(b""), "https://")


def test_a_store_that_takes_nothing_is_named() -> None:
    only_bad(answered(http(controller(trouble="disk full"))), "disk full", "--part controller")


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_wrong_clock_is_named(ahead: int) -> None:
    only_bad(answered(http(controller(), time.time() + ahead)), "clock", "NTP")
    noted(answered(http(controller(), time.time() + ahead / 180)), "clock")


@pytest.mark.parametrize(
    ("version", "word"),
    [("1.2.0", "major"), ("0.9.1", "more than 2")],
)
def test_releases_too_far_apart_are_named(version: str, word: str) -> None:
    only_bad(answered(http(controller(version))), version, "0.2.0", word)


def test_releases_near_by_are_noted_and_the_same_is_nothing() -> None:
    noted(answered(http(controller("0.1.3"))), "0.1.3")
    assert not bad(answered(http(controller("checkout"))))


def test_what_a_controller_says_moves_no_cursor() -> None:
    from sluice.guest_runtime.examination import one_line

    found = answered(http(controller("\x1b[2Jnew\n  ok    all is well")))
    assert all("\x1b" not in one_line(each) and "\n" not in one_line(each) for each in found)


def with_tls(pair: Pair, name: str, ca_file: Path) -> list[Finding]:
    with handshaker(pair) as seen:
        return asked(f"https://{name}:{seen.port}", ca_file)


def test_each_wrong_certificate_has_its_own_line(ca: PoolCa, tmp_path: Path) -> None:
    good = ca.issue("ctl", "127.0.0.1", kind="controller")
    # it only shakes hands, so what follows is not a controller
    assert "TLSv1.3" in with_tls(good, "127.0.0.1", ca.file)[0].text
    expired = ca.issue_expired("old", "127.0.0.1")
    only_bad(with_tls(expired, "127.0.0.1", ca.file), "expired", "sluice ca issue")
    only_bad(with_tls(good, "localhost", ca.file), "not for localhost")
    other = PoolCa(tmp_path / "other")
    only_bad(with_tls(good, "127.0.0.1", other.file), "another CA", "SLUICE_CA")
    soon = ca.issue("soon", "127.0.0.1", kind="controller", days=3)
    noted(with_tls(soon, "127.0.0.1", ca.file), "renew")


def test_a_ca_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    only_bad(asked("https://127.0.0.1:1", tmp_path / "none.crt"), "none.crt")
    (tmp_path / "not.crt").write_text("hello")
    only_bad(asked("https://127.0.0.1:1", tmp_path / "not.crt"), "not.crt", "PEM")


def test_tls_against_plain_is_named_on_either_side(ca: PoolCa) -> None:
    port = next(ports := said(http(controller())))
    only_bad(asked(f"https://127.0.0.1:{port}", ca.file), "does not speak TLS")
    ports.close()  # type: ignore[attr-defined]
    good = ca.issue("ctl2", "127.0.0.1", kind="controller")
    with handshaker(good) as seen:
        only_bad(asked(f"http://127.0.0.1:{seen.port}"), "https://")
        assert not any(b"Bearer" in heard for heard in seen.heard)


def test_a_token_does_not_go_to_who_is_not_the_controller(ca: PoolCa, tmp_path: Path) -> None:
    other = PoolCa(tmp_path / "other")
    with handshaker(other.issue("ctl", "127.0.0.1", kind="controller")) as seen:
        only_bad(asked(f"https://127.0.0.1:{seen.port}", ca.file, "sluice_secret"), "another CA")
    assert not any(b"sluice_secret" in heard for heard in seen.heard)
