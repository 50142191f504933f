# SPDX-License-Identifier: Apache-2.0
"""The command `sluice` against a real controller: what it prints and how it exits."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from control_plane import PYTHON_PATH, ControlPlane, wait_for
from forks import run_command

from sluice.cli.application import application
from sluice.cli.top_command import used_gpu_rows, vgpu_rows

pytestmark = pytest.mark.control_plane(shared=True)


def sluice(*words: str, controller: str = "") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "ORION_"))}
    environment |= {"PYTHONPATH": str(PYTHON_PATH), "COLUMNS": "200"}
    if controller:
        environment["SLUICE_CONTROLLER"] = controller
    return run_command(*words, environment=environment)


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
        (("grant", "list"), [grant["id"], "1 of 123 MiB 25 %", client.session_id]),
        (("vgpu", "list"), [f"{grant['id']}.0", "123", "on-demand", "train.py"]),
        (("vgpu", "show", f"{grant['id']}.0"), ["memory_mib", "123", client.session_id]),
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


def test_top_shows_what_each_vgpu_uses(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=64, ratio_percent=10)
    address = f"127.0.0.1:{plane.rest_port}"
    try:
        (vgpu,) = plane.rest.get("/vgpus").json()["vgpus"]
        for words in (("--once", "--json"), ("-n", "1", "-o", "json")):
            (line,) = sluice("top", *words, controller=address).stdout.splitlines()
            shown = json.loads(line)["vgpu_list"]
            assert [v["id"] for v in shown] == [vgpu["id"]]
            assert {"gpu_seconds", "waited_seconds", "share_1s", "share_60s"} <= shown[0].keys()
        picture = sluice("top", "--once", controller=address).stdout
        assert vgpu["id"] in picture
        for heading in ("GPU TIME", "WAITED", "60 S"):
            assert heading in picture
    finally:
        client.kill()
        wait_for(lambda: not plane.grants())


def test_top_adds_up_what_is_used_of_a_gpu() -> None:
    gpu = {"id": "n:GPU-1", "uuid": "GPU-1", "granted_mib": 1, "memory_mib": 2, "mode": "pooled"}
    gpus = [{**gpu, "granted_percent": 50, "held_by": "", "software": False}]
    vgpu = {"gpu": "n:GPU-1", "compute_percent": 50, "created": "2026-01-01T00:00:00Z"}
    vgpus = [
        {**vgpu, "id": "a.0", "share_1s": 0.25, "share_60s": 0.125, "gpu_seconds": 7.25,
         "waited_seconds": 3700.0},
        {**vgpu, "id": "b.0", "share_1s": 0.5, "share_60s": 1.0, "gpu_seconds": 90.0,
         "waited_seconds": 0.0},
        {**vgpu, "id": "c.0", "share_1s": None, "share_60s": None, "gpu_seconds": None,
         "waited_seconds": None},
    ]  # fmt: skip
    (row,) = used_gpu_rows(gpus, vgpus)
    assert (row["used_1s"], row["used_60s"]) == ("75.0 %", "100.0 %")
    (row,) = used_gpu_rows(gpus, vgpus[2:])
    assert row["used_1s"] == "-", "nothing is known"
    rows = vgpu_rows(gpus, vgpus)
    assert [r["id"] for r in rows] == ["b.0", "a.0", "c.0"]
    assert [r["used"] for r in rows] == ["1m", "7.2s", "-"]
    assert [r["waited"] for r in rows] == ["0.0s", "1h01m", "-"]


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


# what takes long


def test_what_is_waited_for_is_said_and_ends_in_time(plane: ControlPlane) -> None:
    address = f"127.0.0.1:{plane.rest_port}"
    client = plane.client(gmem_mib=64, ratio_percent=10)
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    for words, said in (
        (("gpu", "drain", gpu["uuid"][:12]), "waits for 1 grant(s) to end"),
        (("drain", gpu["id"]), "waits for 1 grant(s) to end"),
        (("pool", "switch", gpu["id"], "--to", "native"), "waits for 1 grant(s) to end"),
        (("node", "drain", "node-a"), "1 session(s) to end"),
    ):
        done = sluice(*words, "--wait", "0.3", controller=address)
        assert done.returncode == 1, words
        assert said in done.stderr
        assert "not within 0.3 s" in done.stderr
    with subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", "pool", "switch", gpu["id"], "--to", "native",
         "--wait", "60"],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH), "SLUICE_CONTROLLER": address},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as waiting:  # fmt: skip
        assert waiting.stderr
        assert "GPU" in waiting.stderr.readline()
        client.kill()
        out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (0, f"GPU {gpu['id']} is native: one VM's alone\n")
    done = sluice("undrain", "node-a", controller=address)
    assert done.returncode == 0
    back = sluice("pool", "switch", gpu["id"], "--to", "pooled", "--wait", "60", controller=address)
    assert back.returncode == 0, back.stderr


def test_a_reservation_is_waited_for(plane: ControlPlane) -> None:
    address = f"127.0.0.1:{plane.rest_port}"
    client = plane.client(gmem_mib=64, ratio_percent=100)
    words = ("reservation", "create", "project:vision", "--memory", "64", "--compute", "100")
    refused = sluice(*words, controller=address)
    assert (refused.returncode, "--queue" in refused.stderr) == (1, True)
    late = sluice(*words, "--wait", "0.3", controller=address)
    assert (late.returncode, "it queues for room" in late.stderr) == (1, True)
    queued = sluice(*words, "--queue", "-o", "json", controller=address)
    assert json.loads(queued.stdout)["state"] == "waiting"
    client.kill()
    wait_for(lambda: plane.rest.get("/reservations").json()["reservations"][0]["state"] == "held")
    for reservation in plane.rest.get("/reservations").json()["reservations"]:
        gone = sluice("reservation", "delete", reservation["id"], controller=address)
        assert gone.returncode == 0


# terminals and shells


def in_terminal(columns: int, *words: str, controller: str) -> str:
    """What a terminal of that width shows."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment |= {
        "PYTHONPATH": str(PYTHON_PATH), "SLUICE_CONTROLLER": controller, "TERM": "xterm"
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", *words],
        stdin=follower, stdout=follower, stderr=follower, env=environment,
    ) as process:  # fmt: skip
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # how a terminal says that nobody has it open any more
                break
            if not part:
                break
            shown += part
    os.close(leader)
    assert process.returncode == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_narrow_terminal_shows_whole_ids_in_whole_lines(
    plane: ControlPlane, columns: int
) -> None:
    client = plane.client(gmem_mib=64, ratio_percent=10, program="a-program-with-a-long-name")
    address = f"127.0.0.1:{plane.rest_port}"
    for words in (("session", "list"), ("grant", "list"), ("vgpu", "list"), ("gpu", "list")):
        lines = in_terminal(columns, *words, controller=address).splitlines()
        assert max(map(len, lines)) <= columns, words
        assert len(lines) <= 4, "a row is a line, and a note stands below"
        left_out = any("not shown for want of width" in line for line in lines)
        assert left_out == (columns < 200), words
    assert client.session_id in in_terminal(columns, "session", "list", controller=address)
    picture = in_terminal(columns, "top", "--times", "1", controller=address)
    assert client.session_id in picture
    client.kill()
    wait_for(lambda: not plane.grants())


COMPLETE = """
source <(sluice completion bash)
complete -p sluice >&2
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_sluice_completion sluice
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_commands_options_and_names(plane: ControlPlane, tmp_path: Path) -> None:
    command = tmp_path / "sluice"
    command.write_text(
        f"#!{sys.executable}\n"
        "import os, runpy\n"
        "from sluice.cli import completion\n"
        "completion.PATIENCE_SECONDS = float(os.environ['PATIENCE'])\n"
        "runpy.run_module('sluice.cli', run_name='__main__', alter_sys=True)\n"
    )
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(PYTHON_PATH),
        "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
        "PATIENCE": "60",  # of a machine that stands still at times
    }
    client = plane.client(gmem_mib=64)
    [grant] = plane.grants()
    [gpu] = plane.rest.get("/gpus").json()["gpus"]

    def completed(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", COMPLETE, "bash", "sluice", *words],
            env=environment, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout.split()

    assert completed("gr") == ["grant"]
    assert {"list", "show", "end", "resize"} <= set(completed("grant", ""))
    assert completed("grant", "end", "") == [grant["id"]]
    assert completed("grant", "list", "--pro") == ["--project"]
    assert completed("node", "show", "no") == ["node-a"]
    assert completed("gpu", "drain", "GPU") == [gpu["uuid"]]
    assert client.session_id in completed("logs", "")
    environment |= {"SLUICE_CONTROLLER": "127.0.0.1:1", "PATIENCE": "1"}
    assert completed("grant", "end", "") == [], "nothing is said where nobody answers"
    client.kill()
    wait_for(lambda: not plane.grants())


def test_every_command_that_shows_something_takes_o() -> None:
    command: Any = typer.main.get_command(application(optional=False))
    own_words = {"run", "check", "doctor", "enrol", "units", "completion", "ca", "vm", "init"}
    own_words |= {"invite", "cdi", "smi"}  # what they write has formats of its own, or none

    def without(group: Any, path: str) -> list[str]:
        found = []
        for name, each in group.commands.items():
            if path == "" and name in own_words:
                continue
            if hasattr(each, "commands"):
                found += without(each, f"{path} {name}")
            elif not any("--output" in parameter.opts for parameter in each.params):
                found.append(f"{path} {name}".strip())
        return found

    assert without(command, "") == []


def test_who_may_not_is_told_so_with_status_5(plane: ControlPlane) -> None:
    done = sluice("audit", controller=f"127.0.0.1:{plane.rest_port}")
    assert done.returncode == 5
    assert "is for admin" in done.stderr
    wrong = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "status"],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH), "SLUICE_TOKEN": "sluice_nobodys",
             "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert wrong.returncode == 5


def test_ctrl_c_ends_top_with_130(plane: ControlPlane) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", "top", "--every", "0.2", "-o", "json"],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH),
             "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # a test run in the background of a script ignores it, and would pass that on
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert process.stdout
        assert b"nodes_up" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
