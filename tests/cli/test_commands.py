# SPDX-License-Identifier: Apache-2.0
"""The command `sluice` against a real controller: what it prints and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from control_plane import PYTHON_PATH, ControlPlane, running, wait_for


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with running(tmp_path_factory.mktemp("cli")) as control_plane:
        yield control_plane


def sluice(*words: str, controller: str = "") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    environment |= {"PYTHONPATH": str(PYTHON_PATH), "COLUMNS": "200"}
    if controller:
        environment["SLUICE_CONTROLLER"] = controller
    return subprocess.run(
        [sys.executable, "-m", "sluice.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_list_shows_what_there_is(plane: ControlPlane) -> None:
    address = f"127.0.0.1:{plane.rest_port}"
    client = plane.client(gmem_mib=123, program="train.py")
    wait_for(lambda: plane.sessions()[0]["state"] == "running")
    [grant] = plane.grants()
    for words, expected in (
        (("status",), ["1 of 1 nodes up", "1 grants", "1 sessions"]),
        (("node", "list"), ["node-a", "up"]),
        (("node", "show", "node-a"), ["generation"]),
        (("gpu", "list"), ["node-a", "MiB", "25 %"]),
        (("grant", "list"), [grant["id"], "123 MiB 25 %", client.session_id]),
        (("grant", "show", grant["id"]), ["live"]),
        (("session", "list"), [client.session_id, "train.py", f"pid {client.process.pid}"]),
        (("session", "show", client.session_id), ["running"]),
        (("logs", client.session_id), [f"session={client.session_id}", "started: train.py"]),
    ):
        done = sluice(*words, controller=address)
        assert done.returncode == 0, done.stderr
        for text in expected:
            assert text in done.stdout, words
    client.kill()
    wait_for(lambda: not plane.grants())


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("status",), "nodes_up"),
        (("node", "list"), "nodes"),
        (("gpu", "list"), "gpus"),
        (("grant", "list", "-a"), "grants"),
        (("session", "list", "--all"), "sessions"),
    ],
)
def test_json_is_what_rest_answered(plane: ControlPlane, words: tuple[str, ...], key: str) -> None:
    done = sluice(*words, "-o", "json", "--controller", f"127.0.0.1:{plane.rest_port}")
    assert done.returncode == 0
    assert key in json.loads(done.stdout)


def test_yaml_is_the_same(plane: ControlPlane) -> None:
    address = f"127.0.0.1:{plane.rest_port}"
    [as_json, as_yaml] = [
        sluice("node", "show", "node-a", "-o", form, controller=address).stdout
        for form in ("json", "yaml")
    ]
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_top_shows_the_pool_once(plane: ControlPlane) -> None:
    done = sluice("top", "--times", "1", controller=f"127.0.0.1:{plane.rest_port}")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 nodes up" in done.stdout


def test_events_are_listed_and_followed_over_a_restart(plane: ControlPlane) -> None:
    address = f"127.0.0.1:{plane.rest_port}"
    listed = sluice("events", "--kind", "node.up", "-o", "json", controller=address)
    first = json.loads(listed.stdout)["events"][-1]
    assert first["subject"] == "node-a"
    command = [sys.executable, "-m", "sluice.cli", "events", "--follow", "--kind", "node.up"]
    environment = {
        **os.environ, "PYTHONPATH": str(PYTHON_PATH), "SLUICE_CONTROLLER": address
    }  # fmt: skip
    since = str(first["number"] - 1)
    with subprocess.Popen(
        [*command, "--since", since, "-o", "json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as follower:  # fmt: skip
        assert follower.stdout
        assert json.loads(follower.stdout.readline()) == first
        plane.stop("controller")
        plane.start_controller()
        assert json.loads(follower.stdout.readline())["number"] > first["number"]
        follower.kill()
    wait_for(lambda: plane.node_state() == "up")


def test_grant_end_waits_when_told(plane: ControlPlane) -> None:
    plane.client()
    [grant] = plane.grants()
    address = f"127.0.0.1:{plane.rest_port}"
    done = sluice("grant", "end", grant["id"], "--wait", "20", controller=address)
    assert (done.returncode, done.stdout) == (0, f"grant {grant['id']} has ended\n")
    assert plane.grants() == []


def test_grant_end_ends_it(plane: ControlPlane) -> None:
    plane.client()
    [grant] = plane.grants()
    address = f"127.0.0.1:{plane.rest_port}"
    done = sluice("grant", "end", grant["id"], controller=address)
    assert (done.returncode, done.stdout) == (0, f"grant {grant['id']} is ending\n")
    wait_for(lambda: not plane.grants())
    again = sluice("grant", "end", grant["id"], controller=address)
    assert again.returncode == 1
    assert "has ended already" in again.stderr


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("node", "show", "nobody"), 3, "there is no node nobody"),
        (("grant", "show", "0"), 3, "there is no grant 0"),
        (("logs", "0"), 3, "there is no session 0"),
        (("status", "-o", "xml"), 2, "xml"),
        (("nonsense",), 2, "No such command"),
        (("run",), 2, ""),
    ],
)
def test_exit_statuses(plane: ControlPlane, words: tuple[str, ...], status: int, text: str) -> None:
    done = sluice(*words, controller=f"127.0.0.1:{plane.rest_port}")
    assert done.returncode == status, done.stderr
    assert text in done.stderr


def test_an_absent_controller_is_named_with_the_way_out() -> None:
    done = sluice("status", "--controller", "127.0.0.1:1")
    assert done.returncode == 4
    assert "the controller at 127.0.0.1:1 does not answer" in done.stderr
    assert "SLUICE_CONTROLLER" in done.stderr
    assert "Traceback" not in done.stderr


def test_units_name_this_installation_and_systemd_accepts_them(tmp_path: Path) -> None:
    done = sluice("units", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    server = (tmp_path / "sluice-server.service").read_text()
    assert "KillMode=process" in server
    assert "sluice-server --config /etc/sluice/server.conf" in server
    for name in ("sluice-server", "sluice-controller"):
        try:
            checked = subprocess.run(
                ["systemd-analyze", "verify", str(tmp_path / f"{name}.service")],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            pytest.skip("systemd-analyze is not installed")
        complaints = [line for line in checked.stderr.splitlines() if f"{name}.service" in line]
        assert checked.returncode == 0, checked.stderr
        assert complaints == []
