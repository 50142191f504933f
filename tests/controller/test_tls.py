# SPDX-License-Identifier: Apache-2.0
"""TLS with the pool's own CA: made by the command, used by real controllers and servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from control_plane import PYTHON_PATH, ControlPlane, wait_for
from forks import run_command
from scrapes import scrape

from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

pytestmark = pytest.mark.control_plane(
    shared=True, as_admin=True, fake=True, auth={"required": "yes"}, metrics={}
)


def sluice(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    return run_command(*words, environment={**clean, "PYTHONPATH": str(PYTHON_PATH), **environment})


def make_ca(folder: Path) -> None:
    assert sluice("ca", "init", "--dir", str(folder)).returncode == 0


def issue(folder: Path, name: str, *words: str) -> dict[str, Any]:
    done = sluice("ca", "issue", name, "--dir", str(folder), "--san", "127.0.0.1", *words)
    assert done.returncode == 0, done.stderr
    certificate, key = done.stdout.split()
    return {"cert_file": certificate, "key_file": key}


@pytest.fixture(scope="module")
def plane_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tls")
    make_ca(folder / "ca")
    ca = folder / "ca" / "ca.crt"
    controller = issue(folder / "ca", "controller", "--for", "controller")
    return {
        "folder": folder,
        "tls": {**controller, "node_ca_file": ca},
        "server_tls": {**issue(folder / "ca", "node-a"), "ca_file": ca},
    }


def test_both_services_are_scraped_over_tls_only(plane: ControlPlane) -> None:
    ca = plane.folder / "ca" / "ca.crt"
    pool = scrape(plane.url, plane.first_token(), ca)
    assert pool.value("sluice_pool_nodes", state="up") == 1
    node = scrape(plane.metrics_url, ca=ca)
    assert node.value("sluice_server_controller_connected") == 1
    with pytest.raises(httpx.TransportError):
        httpx.get(plane.metrics_url.replace("https:", "http:") + "/metrics")


def test_a_server_with_its_certificate_is_in_and_serves(plane: ControlPlane) -> None:
    client = plane.client()
    assert client.first["status"] == 0
    client.kill()
    wait_for(lambda: not plane.grants())


def test_keys_are_their_owners_only(plane: ControlPlane) -> None:
    for key in (plane.folder / "ca").glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0, key
    again = sluice("ca", "init", "--dir", str(plane.folder / "ca"))
    assert (again.returncode, "is there already" in again.stderr) == (1, True)


def test_the_command_checks_whose_controller_it_is(plane: ControlPlane, tmp_path: Path) -> None:
    address = f"127.0.0.1:{plane.rest_port}"
    ours, token = str(plane.folder / "ca" / "ca.crt"), plane.first_token()
    make_ca(tmp_path / "other")
    theirs = str(tmp_path / "other" / "ca.crt")
    environment = {"SLUICE_CONTROLLER": address, "SLUICE_TOKEN": token}
    assert "node-a" in sluice("--ca", ours, "node", "list", **environment).stdout
    assert sluice("status", **environment, SLUICE_CA=ours).returncode == 0
    wrong = sluice("--ca", theirs, "status", **environment)
    assert (wrong.returncode, "certificate" in wrong.stderr.lower()) == (4, True)
    assert sluice("status", **environment).returncode == 4, "plain HTTP has no answer there"
    with pytest.raises(httpx.ConnectError):
        plane.rest_as(token, verify=True).get("/pool")


def certificates(plane: ControlPlane, pair: dict[str, Any] | None) -> grpc.ChannelCredentials:
    def read(name: str) -> bytes | None:
        return Path(pair[name]).read_bytes() if pair else None

    ca = (plane.folder / "ca" / "ca.crt").read_bytes()
    return grpc.ssl_channel_credentials(ca, read("key_file"), read("cert_file"))


def register(plane: ControlPlane, credentials: grpc.ChannelCredentials | None, node: str) -> Any:
    address = f"127.0.0.1:{plane.grpc_port}"
    with (
        grpc.secure_channel(address, credentials)
        if credentials
        else grpc.insecure_channel(address) as channel
    ):
        report = rpc.NodeReport(inventory=rpc.Inventory(node=node, vgpu_count=4))
        with pytest.raises(grpc.RpcError) as refused:
            list(pool_pb2_grpc.PoolStub(channel).Register(iter([report]), timeout=10))
        return refused.value.code()


def test_who_shows_no_certificate_of_the_ca_is_not_heard(
    plane: ControlPlane, tmp_path: Path
) -> None:
    make_ca(tmp_path / "other")
    foreign = certificates(plane, issue(tmp_path / "other", "node-a"))
    a_controllers = certificates(plane, issue(plane.folder / "ca", "node-x", "--for", "controller"))
    unavailable = grpc.StatusCode.UNAVAILABLE
    assert register(plane, None, "node-x") is unavailable
    assert register(plane, certificates(plane, None), "node-x") is unavailable
    assert register(plane, foreign, "node-a") is unavailable
    assert register(plane, a_controllers, "node-x") is unavailable, "it is no client's"
    assert plane.rest.get("/nodes/node-x").status_code == 404
    assert plane.node_state() == "up"


def test_a_certificate_speaks_for_its_own_node_only(plane: ControlPlane) -> None:
    of_b = certificates(plane, issue(plane.folder / "ca", "node-b"))
    assert register(plane, of_b, "node-a") is grpc.StatusCode.PERMISSION_DENIED
    assert plane.node_state() == "up"
    [line] = plane.rest.get("/audit", params={"token": "certificate node-b"}).json()["events"]
    assert "spoke for node node-a" in line["text"]


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text(
        f"[log]\nlog_dir = {tmp_path}\n[controller]\nrest_port = 0\ngrpc_port = 0\n"
        f"store = {tmp_path}/s.db\n[tls]\ncert_file = {conf}\nkey_file = {conf}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sluice.controller", "--config", str(conf)],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "[tls] cert_file" in done.stderr
    assert "Traceback" not in done.stderr
