# SPDX-License-Identifier: Apache-2.0
"""The sockets of CDI devices on a real server: who is served there, as whom, and with what.

What an engine does for a container, unshare and mount do here; test_podman.py has real containers.
"""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import HARNESS, Client, ControlPlane, receive_reply, running, wait_for
from open_files import file_of, has_open

from sluice.protocol.cuda_status import CudaStatus
from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts and namespaces")

DEVICES = "small=memory:64 compute:10 project:vision, shared=memory:32 processes:4"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("p")
    with running(folder, fake=True, containers={"devices": DEVICES}) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_left(plane: ControlPlane) -> Iterator[None]:
    yield
    plane.end_clients()
    wait_for(lambda: not plane.sessions(), message="sessions to end")


def socket_of(plane: ControlPlane, device: str) -> Path:
    return plane.folder / "run/containers" / device / "socket/server.sock"


def contained(
    plane: ControlPlane, device: str, *words: str, at: Path | None = None, **wanted: Any
) -> Client:
    """A client with a device's folder mounted, in namespaces of its own."""
    place = at or plane.folder / "inside"
    place.mkdir(exist_ok=True)
    source = socket_of(plane, device).parent
    script = f'mount --bind "{source}" "{place}" && exec "$@"'
    client = [sys.executable, str(HARNESS / "unix_client.py"), str(place / "server.sock")]
    process = subprocess.Popen(
        [
            *("unshare", "--mount", *words),
            *("sh", "-c", script, "sh", *client, json.dumps(wanted)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = Client(process)
    plane.clients.append(found)
    found.first = found.read()
    return found


PIDS = ("--pid", "--fork", "--kill-child")


def test_a_container_is_shown_with_its_device(plane: ControlPlane) -> None:
    client = contained(plane, "small", *PIDS)
    assert client.first["status"] == 0, client.first
    (session,) = plane.sessions()
    assert session["owner_kind"] == "container"
    container = session["container"]
    assert (container["engine"], container["device"]) == ("namespace", "small")
    assert container["name"].startswith("namespace pid-4")
    (grant,) = plane.grants()
    assert grant["project"] == "vision"
    assert [(v["memory_mib"], v["compute_percent"]) for v in grant["vgpus"]] == [(64, 10)]
    shown = plane.rest.get("/sessions", params={"container": container["id"]}).json()
    assert [s["id"] for s in shown["sessions"]] == [session["id"]]
    assert not plane.rest.get("/sessions", params={"container": "x"}).json()["sessions"]
    assert not plane.rest.get("/sessions", params={"container": ""}).json()["sessions"]


def test_the_containers_processes_share_one_grant_and_another_container_does_not(
    plane: ControlPlane,
) -> None:
    """Also one in a pid namespace that it made inside of its container."""
    place = plane.folder / "inside"
    place.mkdir(exist_ok=True)
    client = [sys.executable, str(HARNESS / "unix_client.py"), str(place / "server.sock"), "{}"]
    nested = ["unshare", "--pid", "--fork", "--kill-child", *client]
    script = (
        "import json, subprocess, sys\n"
        "children = [subprocess.Popen(c, stdin=subprocess.PIPE) for c in json.loads(sys.argv[1])]\n"
        "sys.stdin.read()\n"
    )
    inner = [sys.executable, "-c", script, json.dumps([client, nested])]
    mount = f'mount --bind "{socket_of(plane, "shared").parent}" "{place}" && exec "$@"'
    with subprocess.Popen(
        ["unshare", "--mount", *PIDS, "sh", "-c", mount, "sh", *inner], stdin=subprocess.PIPE
    ) as process:
        try:
            wait_for(lambda: len(plane.sessions()) == 2, message="both sessions")
            one, other = plane.sessions()
            assert one["grant_id"] == other["grant_id"]
            assert one["container"] == other["container"]
            stranger = contained(plane, "small", *PIDS)
            assert stranger.first["status"] == 0, stranger.first
            assert len({session["grant_id"] for session in plane.sessions()}) == 2
            assert len({session["container"]["id"] for session in plane.sessions()}) == 2
        finally:
            process.kill()


def test_who_asks_for_more_than_the_device_is_told_what_it_is(plane: ControlPlane) -> None:
    client = contained(plane, "small", *PIDS, gmem_mib=65)
    assert client.first["status"] == CudaStatus.NOT_PERMITTED
    assert "SLUICE_GMEM asks for 65 MiB" in client.first["message"]
    assert "sluice.io/vgpu=small is 64 MiB" in client.first["message"]


def test_another_project_than_the_devices_is_refused(plane: ControlPlane) -> None:
    client = contained(plane, "small", *PIDS, request_lines=["project=default"])
    assert client.first["status"] == CudaStatus.NOT_PERMITTED
    assert "may use vision" in client.first["message"]


def test_a_process_without_the_devices_mount_is_refused(plane: ControlPlane) -> None:
    """Such as one to which a descriptor of the socket was passed."""
    command = [
        sys.executable,
        str(HARNESS / "unix_client.py"),
        str(socket_of(plane, "small")),
        "{}",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    answer = json.loads(done.stdout)
    assert answer["status"] == CudaStatus.NOT_PERMITTED
    assert "is in no container with the device sluice.io/vgpu=small" in answer["message"]


def test_the_mount_of_one_device_does_not_open_another(plane: ControlPlane) -> None:
    place = plane.folder / "both"
    place.mkdir()
    # it has `shared`, and reaches the socket of `small` through a path that it was not given
    source, foreign = socket_of(plane, "shared").parent, socket_of(plane, "small")
    client = [sys.executable, str(HARNESS / "unix_client.py"), str(foreign), "{}"]
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c"),
            f'mount --bind "{source}" "{place}" && exec "$@"',
            *("sh", *client),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert json.loads(done.stdout)["status"] == CudaStatus.NOT_PERMITTED


def test_a_connection_that_is_passed_on_serves_nobody(plane: ControlPlane) -> None:
    """One process connects; another, which has the descriptor, sends."""
    with plane.connect_unix() as connected:
        script = (
            "import socket, sys; s = socket.socket(fileno=0); s.send(bytes.fromhex(sys.argv[1]))"
        )
        frame = pack_open_session().hex()
        subprocess.run(
            [sys.executable, "-c", script, frame], stdin=connected.fileno(), timeout=60, check=True
        )
        packet, descriptors = receive_reply(connected)
    assert not descriptors
    status, _, message = unpack_open_reply(packet)
    assert status == CudaStatus.NOT_PERMITTED
    assert "was made by another process" in message


def test_a_sender_cannot_name_the_connector_as_itself(plane: ControlPlane) -> None:
    """The kernel lets nobody send in another process's name who might not."""
    with plane.connect_unix() as connected:
        script = (
            "import os, socket, struct, sys\n"
            "s = socket.socket(fileno=0)\n"
            "os.setuid(65534)\n"
            "creds = struct.pack('3i', int(sys.argv[1]), 65534, 65534)\n"
            "try:\n"
            "    s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, creds)])\n"
            "except PermissionError:\n"
            "    sys.exit(7)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(os.getpid())],
            stdin=connected.fileno(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 7


def test_descriptors_beside_the_request_are_closed(plane: ControlPlane) -> None:
    assert plane.server
    server = plane.server.pid
    reader, writer = os.pipe()
    given = {file_of(reader)}
    for _ in range(4):
        with plane.connect_unix() as connected:
            beside = array.array("i", [reader] * 8)
            connected.sendmsg(
                [pack_open_session(magic=1)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, beside)]
            )
            packet, _ = receive_reply(connected)
            assert unpack_open_reply(packet)[0] == CudaStatus.INVALID_VALUE
    os.close(reader)
    os.close(writer)
    wait_for(lambda: not has_open(server, given), message="descriptors to be closed")


def test_containers_that_run_find_the_next_servers_socket(plane: ControlPlane) -> None:
    place = plane.folder / "restarted"
    place.mkdir()
    mount = f'mount --bind "{socket_of(plane, "shared").parent}" "{place}"'
    script = f'{mount} && echo on && read x && exec "$@"'
    client = [sys.executable, str(HARNESS / "unix_client.py"), str(place / "server.sock"), "{}"]
    process = subprocess.Popen(
        ["unshare", "--mount", *PIDS, "sh", "-c", script, "sh", *client],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "on\n"
    plane.stop("server")
    plane.start_server()
    process.stdin.write("x\n")
    process.stdin.flush()
    found = Client(process)
    plane.clients.append(found)
    assert found.read()["status"] == 0


def test_sessions_of_containers_are_known_to_the_next_server(plane: ControlPlane) -> None:
    contained(plane, "small", *PIDS)
    (before,) = plane.sessions()
    plane.stop("server")
    plane.start_server()
    (after,) = plane.sessions()
    assert (after["id"], after["container"]) == (before["id"], before["container"])


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach; pytest's are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_only_a_devices_group_passes_its_folder(open_folder: Path) -> None:
    containers = {"devices": "ours=memory:32 group:daemon", "restrict_all": "daemon"}
    with running(open_folder, fake=True, containers=containers) as plane:
        for device, mode in (("ours", 0o750), ("all", 0o750), ("default", 0o755)):
            folder = socket_of(plane, device).parent
            assert folder.parent.stat().st_mode & 0o777 == mode
            assert folder.stat().st_mode & 0o777 == 0o755

        def reaches(*words: str) -> bool:
            command = ["setpriv", "--reuid=65534", *words, "ls", socket_of(plane, "ours").parent]
            return not subprocess.run(command, capture_output=True, check=False).returncode

        assert reaches("--regid=daemon", "--clear-groups")
        assert not reaches("--regid=65534", "--clear-groups")


def test_a_server_that_reads_no_namespaces_serves_its_hosts_users(tmp_path: Path) -> None:
    """As with a unit of before, which left it no CAP_SYS_PTRACE."""
    script = (
        "import os, subprocess, sys\n"
        "from sluice.server.containers.identity import ContainerIdentities\n"
        "from sluice.server.listeners.peers import Peer, start_time_of\n"
        "child = subprocess.Popen(['setpriv', '--reuid=65534', 'cat'], stdin=subprocess.PIPE)\n"
        "while os.stat(f'/proc/{child.pid}').st_uid != 65534: pass\n"
        "peer = Peer(child.pid, 65534, 0, start_time_of(child.pid), os.pidfd_open(child.pid))\n"
        "print(bool(ContainerIdentities().of(peer)))\n"
        "child.kill()\n"
    )
    drop = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    done = subprocess.run(
        [*drop, sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(HARNESS.parents[1] / "python")},
        check=False,
    )
    assert done.stdout == "False\n", done.stderr
    assert "CAP_SYS_PTRACE is missing" in done.stderr
