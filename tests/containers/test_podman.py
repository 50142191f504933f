# SPDX-License-Identifier: Apache-2.0
"""Real containers of podman and runc with `--device sluice.io/vgpu=…`: images that have nothing of
Sluice run CUDA programs, and what a container is, gets and leaves behind is its host's to say."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from tests.guest_images.program import SAYS

from .conftest import ROOTLESS, image_root
from .podman import Podman, Running

pytestmark = pytest.mark.containers

#: Passes a descriptor of the device's socket on, over a socket in a folder that both have.
GIVES = """\
import os, socket, sys
to = socket.socket(socket.AF_UNIX); to.connect('/between/s')
socket.send_fds(to, [b'x'], [os.open('/run/sluice/server.sock', os.O_PATH)])
print('given', flush=True); sys.stdin.read()
"""
TAKES = """\
import os, socket
at = socket.socket(socket.AF_UNIX); at.bind('/between/s'); at.listen(); print('waits', flush=True)
_, (there,), _, _ = socket.recv_fds(at.accept()[0], 1, 1)
own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
own.connect(f'/proc/self/fd/{there}'); own.send(open('/frame', 'rb').read())
print(own.recv(4096)[32:].split(bytes(1))[0].decode(), flush=True)
"""


def given(programs: Path, *more: str) -> tuple[str, ...]:
    """A folder of programs in the container."""
    return (f"--volume={programs}:/programs:ro", *more)


@pytest.fixture(autouse=True)
def nothing_left(plane: ControlPlane, podman: Podman, rootless: Podman) -> Any:
    yield
    podman.end_all()
    rootless.end_all()
    wait_for(lambda: not plane.sessions(), message="sessions to end")


def session_of(plane: ControlPlane, name: str = "") -> dict[str, Any]:
    """The newest session, live or not, or the live one of a program."""
    found = plane.sessions("all" if not name else "live")
    return max((s for s in found if s["program"].endswith(name)), key=lambda s: s["started"])


@pytest.mark.parametrize("image", ["bookworm", "bullseye", "noble", "rhel"])
def test_an_image_needs_nothing(
    podman: Podman, programs: Path, plane: ControlPlane, image: str
) -> None:
    done = podman.run(image_root(image), "/programs/add", device="default", options=given(programs))
    assert (done.returncode, done.stdout.strip()) == (0, SAYS)
    session = session_of(plane)
    assert (session["owner_kind"], session["container"]["engine"]) == ("container", "podman")
    assert session["container"]["device"] == "default"


def test_nvidia_smi_shows_the_containers_own(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    root = image_root("bookworm")
    ask = ("nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits")
    idle = podman.run(root, *ask, device="small")
    assert idle.stdout.strip() == "64, 0", "what it would get, in an image with Python"
    before = len(plane.sessions("all"))
    running = podman.start(root, "/programs/spin", device="small", options=given(programs))
    assert running.line() == "running"
    apps = ("--query-compute-apps=pid,process_name", "--format=csv,noheader")
    shown = podman("exec", running.name, "nvidia-smi", *apps)
    assert shown.strip() == "1, /programs/spin"
    other = podman.run(root, "nvidia-smi", *apps, device="small")
    assert other.stdout.strip() == "", "another container sees nothing of it"
    assert len(plane.sessions("all")) == before + 1, "looking opens none"


def test_nvidia_smi_says_what_a_small_python_lacks(podman: Podman) -> None:
    done = podman.run(image_root("bullseye"), "nvidia-smi", "-L", device="small")
    assert done.returncode == 255
    assert done.stdout.startswith("nvidia-smi: this Python has no module ")
    assert "python3-minimal is not enough" in done.stdout


def test_a_musl_image_is_told_why_it_finds_no_cuda(podman: Podman) -> None:
    done = podman.run(image_root("musl"), "/bin/opens-cuda", device="default")
    assert done.returncode == 1
    assert "Sluice needs glibc 2.28 or later and this image has musl" in done.stdout


def test_the_device_bounds_and_not_the_environment(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    root = image_root("bookworm")
    much = ("--env=SLUICE_GMEM=100000", "--env=SLUICE_DEBUG=1", "--env=SLUICE_JOB=" + "a" * 32)
    done = podman.run(root, "/programs/add", device="small", options=given(programs, *much))
    assert done.returncode != 0
    assert "SLUICE_GMEM asks for 100000 MiB" in done.stdout
    assert "sluice.io/vgpu=small is 64 MiB" in done.stdout
    little = ("--env=SLUICE_GMEM=1", "--env=SLUICE_RATIO=1", "--env=SLUICE_PRIORITY=0")
    holder = podman.start(root, "/programs/spin", device="small", options=given(programs, *little))
    assert holder.line() == "running"
    grant = plane.rest.get(f"/grants/{session_of(plane, 'spin')['grant_id']}").json()
    assert [(v["memory_mib"], v["compute_percent"]) for v in grant["vgpus"]] == [(64, 10)]
    assert grant["project"] == "vision"


def test_a_container_that_calls_itself_another_is_still_itself(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    """Privileged, it makes cgroups of other engines' names below its own and moves there."""
    other = "b" * 64
    script = (
        "for h in /sys/fs/cgroup/pids /sys/fs/cgroup/memory /sys/fs/cgroup; do "
        f"mkdir -p $h/docker-{other}.scope && echo $$ > $h/docker-{other}.scope/cgroup.procs; "
        f"done 2>/dev/null; hostname {other[:12]} 2>/dev/null; "
        f"grep -c docker-{other} /proc/self/cgroup; "
        "exec /programs/spin"
    )
    forged = (f"--env=HOSTNAME={other[:12]}", "--env=container=docker", "--privileged")
    running = podman.start(
        image_root("bookworm"),
        *("/bin/sh", "-c", script),
        device="shared",
        options=given(programs, *forged),
    )
    assert int(running.line()) > 0, "it could not move: this says nothing"
    assert running.line() == "running"
    assert session_of(plane, "spin")["container"]["id"] == podman.inspect(running.name)["Id"]
    podman("rm", "--force", "--time", "0", running.name)


def test_two_containers_have_two_grants_whatever_token_they_share(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    token = "--env=SLUICE_JOB=" + "c" * 32
    namespaces = ("--pid=host", "--ipc=host")
    root, options = image_root("bookworm"), given(programs, token, *namespaces)
    first = podman.start(root, "/programs/spin", device="all", options=options)
    assert first.line() == "running"
    second = podman.run(root, "/programs/spin", device="all", options=options)
    assert second.returncode != 0
    assert "belongs to another user, container, VM or address" in second.stdout
    assert len(plane.sessions()) == 1
    podman("rm", "--force", "--time", "0", first.name)
    with_devices = [
        podman.start(
            image_root("bookworm"),
            "/programs/spin",
            device="small",
            options=given(programs, token, *namespaces),
        )
        for _ in "12"
    ]
    assert [each.line() for each in with_devices] == ["running", "running"]
    sessions = plane.sessions()
    assert len({s["grant_id"] for s in sessions}) == 2
    assert len({s["container"]["id"] for s in sessions}) == 2


def test_the_processes_of_a_container_have_one_grant(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    """Of several users, too."""
    options = given(programs, "--cap-add=all")
    first = podman.start(image_root("bookworm"), "/programs/spin", device="shared", options=options)
    assert first.line() == "running"
    second = Running(
        first.name,
        # engines give `exec` no variables of devices
        podman.execute(first.name, "--user=4321", "/opt/sluice/bin/sluice-run", "/programs/spin"),
    )
    assert second.line() == "running"
    one, other = plane.sessions()
    assert one["grant_id"] == other["grant_id"]
    assert {one["client_uid"], other["client_uid"]} == {0, 4321}
    podman("rm", "--force", "--time", "0", first.name)


def test_a_socket_that_is_passed_on_opens_nothing(
    podman: Podman, plane: ControlPlane, tmp_path: Path
) -> None:
    from sluice.server.sessions.open_session import pack_open_session

    (tmp_path / "frame").write_bytes(pack_open_session())
    between = f"--volume={tmp_path}:/between"
    frame = f"--volume={tmp_path / 'frame'}:/frame:ro"
    root = image_root("bookworm")
    taker = podman.start(root, "python3", "-c", TAKES, options=(between, frame))
    assert taker.line() == "waits"
    giver = podman.start(root, "python3", "-c", GIVES, device="small", options=(between,))
    assert giver.line() == "given"
    assert "is in no container with the device sluice.io/vgpu=small" in taker.line()
    podman("rm", "--force", "--time", "0", giver.name)
    taker.process.wait(60)
    assert not plane.sessions()


def test_a_container_removed_in_mid_kernel_leaves_nothing(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    before = set(Path("/dev/shm").iterdir())
    running = podman.start(
        image_root("bookworm"), "/programs/spin", device="shared", options=given(programs)
    )
    assert running.line() == "running"
    workers = plane.session_worker_pids()
    assert len(workers) == 1
    podman("rm", "--force", "--time", "0", running.name)
    wait_for(lambda: not plane.sessions(), message="the session to end")
    wait_for(lambda: not plane.session_worker_pids(), message="the worker to end")
    # the container's grant is kept for its next process, and goes back after [pool] job_linger
    wait_for(lambda: not plane.grants(), message="the grant to come back")
    assert not Path(f"/proc/{workers[0]}").exists()
    assert set(Path("/dev/shm").iterdir()) <= before
    (gpu,) = plane.rest.get("/gpus").json()["gpus"]
    assert gpu["granted_mib"] == 0


HARDENED = ("--user=1234:1234", "--cap-drop=all", "--security-opt=no-new-privileges")
READ_ONLY = (*HARDENED, "--read-only")
MAPPED = ("--uidmap=0:300000:65536", "--gidmap=0:300000:65536")


@pytest.mark.parametrize("options", [READ_ONLY, MAPPED, (*HARDENED, *MAPPED)])
def test_unprivileged_and_user_namespaced_containers_work(
    podman: Podman, programs: Path, plane: ControlPlane, options: tuple[str, ...]
) -> None:
    root = podman.copy_of(image_root("bookworm"), owner="300000" if MAPPED[0] in options else "")
    done = podman.run(root, "/programs/add", device="small", options=given(programs, *options))
    assert (done.returncode, done.stdout.strip()) == (0, SAYS), done.stdout
    container = session_of(plane)["container"]
    assert (container["engine"], container["owner_uid"]) == ("podman", 0)


@pytest.mark.parametrize("options", [(), READ_ONLY, MAPPED])
def test_programs_that_look_for_a_device_file_find_one(
    podman: Podman, options: tuple[str, ...]
) -> None:
    """JAX computes on the processor where there is none, without a word."""
    root = podman.copy_of(image_root("bookworm"), owner="300000" if MAPPED[0] in options else "")
    look = ("/bin/sh", "-c", "ls /dev/nvidia*; test ! -s /dev/nvidiactl && echo empty")
    done = podman.run(root, *look, device="small", options=options)
    assert done.stdout.split() == ["/dev/nvidiactl", "empty"], done.stdout


def test_a_rootless_container_is_its_users(
    rootless: Podman, programs: Path, plane: ControlPlane
) -> None:
    root = rootless.copy_of(image_root("bookworm"))
    running = rootless.start(root, "/programs/spin", device="shared", options=given(programs))
    said = [running.line()]
    while said[-1] not in ("", "running"):  # podman's own warnings
        said.append(running.line())
    assert said[-1] == "running", said
    session = session_of(plane, "spin")
    assert session["container"]["owner_uid"] == pwd.getpwnam(ROOTLESS).pw_uid
    grant = plane.rest.get(f"/grants/{session['grant_id']}").json()
    assert grant["project"] == "speech"
    rootless("rm", "--force", "--time", "0", running.name)


def test_without_the_device_there_is_no_way_to_the_server(
    podman: Podman, programs: Path, plane: ControlPlane
) -> None:
    assert plane.socket_path.exists()
    done = podman.run(image_root("bookworm"), "/programs/add", options=given(programs))
    assert done.returncode != 0
    assert SAYS not in done.stdout


def test_the_hosts_own_socket_knows_a_container_too(
    podman: Podman, plane: ControlPlane, programs: Path
) -> None:
    """Mounted by hand, as nobody has to."""
    mounted = (
        f"--volume={plane.socket_path}:/s",
        "--env=SLUICE_SERVER_SOCKET=/s",
        "--env=SLUICE_GMEM=32",
    )
    done = podman.run(
        image_root("bookworm"), "/programs/add", device="all", options=given(programs, *mounted)
    )
    assert (done.returncode, done.stdout.strip()) == (0, SAYS)
    session = session_of(plane)
    assert (session["owner_kind"], session["container"]["device"]) == ("container", "")
    assert plane.rest.get(f"/grants/{session['grant_id']}").json()["project"] == "default"
