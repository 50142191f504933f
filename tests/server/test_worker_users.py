# SPDX-License-Identifier: Apache-2.0
"""Workers of different grants are different users, whom the kernel keeps apart by itself."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, native_worker, running, wait_for
from job_process import JobProcess
from pydantic import ValidationError

from sluice.config.native_files import find_native
from sluice.config.server import ServerSection
from sluice.server.workers.users import NoUserLeftError, User, WorkerUsers, unusable

ROOT = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has users to give")
needs_native = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


class Host:
    """A /proc and a /dev/shm of one's own."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.shared_memory = folder / "proc", folder / "shm"
        self.proc.mkdir()
        self.shared_memory.mkdir()

    def runs(self, pid: int, uid: int) -> None:
        """A process whose saved user is this one."""
        (self.proc / str(pid)).mkdir()
        text = f"Name:\tworker\nUid:\t0\t0\t{uid}\t0\nGid:\t0\t0\t0\t0\n"
        (self.proc / str(pid) / "status").write_text(text)

    def users(self, first: int, count: int, *, per_project: bool = False) -> WorkerUsers:
        return WorkerUsers(
            range(first, first + count),
            per_project=per_project,
            proc=self.proc,
            shared_memory=self.shared_memory,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def uid_of(user: User | None) -> int:
    assert user is not None
    return user.uid


def test_grants_have_users_of_their_own_and_a_jobs_sessions_share_one(host: Host) -> None:
    users = host.users(5000, 10)
    one = users.join("w1", users.key_of("g1", "project"))
    assert one == User(uid_of(one), uid_of(one), own=True)
    assert users.join("w2", users.key_of("g1", "project")) == one
    assert users.join("w3", users.key_of("g2", "project")) != one
    assert users.ranks_of_others(one, 2) == 2
    assert users.ranks_of_others(None, 2) == 0, "the worker stays who it is, as all others do"


def test_a_project_may_share_a_user(host: Host) -> None:
    users = host.users(5000, 10, per_project=True)
    one = users.join("w1", users.key_of("g1", "blue"))
    assert users.join("w2", users.key_of("g2", "blue")) == one
    assert users.join("w3", users.key_of("g3", "red")) != one
    assert users.join("w4", users.key_of("g4", "")) != one
    assert users.ranks_of_others(one, 2) == 0, "ranks of other grants are the same user"


def test_no_id_is_given_again_while_a_process_of_it_lives(host: Host) -> None:
    host.runs(77, 5001)  # left by an earlier server
    users = host.users(5000, 4)
    users.adopt("old", "grant g0", 5003)
    given = {uid_of(users.join(f"w{n}", f"grant g{n}")) for n in (1, 2)}
    assert given == {5000, 5002}
    with pytest.raises(NoUserLeftError, match=r"all 4 user ids of .* worker_uids \(5000-5003\)"):
        users.join("w3", "grant g3")
    users.leave("w1")
    uid = uid_of(users.join("w3", "grant g3"))
    assert uid in given
    users.leave("w3")
    host.runs(78, uid)  # a child that outlived it
    with pytest.raises(NoUserLeftError):
        users.join("w4", "grant g4")
    assert uid_of(users.join("w5", "grant g0")) == 5003, "it joins the adopted worker's grant"
    users.leave("old")
    assert uid_of(users.join("w6", "grant g0")) == 5003, "w5 has it still"


def test_ids_come_again_as_late_as_can_be(host: Host) -> None:
    users = host.users(5000, 20)
    given = []
    for n in range(20):
        given.append(uid_of(users.join(f"w{n}", f"grant g{n}")))
        users.leave(f"w{n}")
    assert sorted(given) == list(range(5000, 5020))


@needs_root
def test_what_a_worker_left_in_shared_memory_goes_with_its_user(host: Host) -> None:
    users = host.users(5000, 10)
    uid = uid_of(users.join("w1", "grant g1"))
    users.join("w2", "grant g1")
    left, kept = host.shared_memory / "nccl-x", host.shared_memory / "nccl-y"
    for path, owner in ((left, uid), (kept, 4999)):
        path.touch()
        os.chown(path, owner, owner)
    link = host.shared_memory / "link"
    link.symlink_to(kept)
    os.chown(link, uid, uid, follow_symlinks=False)
    users.leave("w1")
    assert left.exists(), "the other session of its grant lives"
    users.leave("w2")
    assert sorted(path.name for path in host.shared_memory.iterdir()) == ["nccl-y"]


def test_ids_that_are_somebodys_are_not_given(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:5003:5003::/:/bin/sh\n")
    (tmp_path / "subuid").write_text("bob:100000:65536\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "uid_map").write_text("         0     100000      65536\n")

    def why(first: int, last: int) -> str | None:
        return unusable(range(first, last + 1), tmp_path, tmp_path)

    assert why(5000, 5002) is None
    assert why(5000, 5003) == "5003 is the account alice"
    assert "bob's containers" in str(why(90000, 100000))
    assert "user namespace" in str(why(65000, 70000))


@pytest.mark.parametrize(
    "text", ["5000", "5000-", "a-b", "6000-5000", "0-70000", "999-2000", "60000-70000", "1-2-3"]
)
def test_a_range_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="worker_uids"):
        ServerSection(worker_uids=text)


def test_ranges_are_read_as_written() -> None:
    assert ServerSection(worker_uids="5000 - 5999").worker_uids == (5000, 5999)
    assert ServerSection(worker_uids="").worker_uids is None
    assert ServerSection().worker_uids == (2100000000, 2100065535)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def user_of(pid: int) -> int:
    [uid] = set(status_of(pid)["Uid"].split())
    return int(uid)


#: What a worker that was taken over, and got past the filter, would try at another process.
REACH = """
import ctypes, os, resource, sys
uid, gid, pid = (int(word) for word in sys.argv[1:])
os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
libc = ctypes.CDLL(None, use_errno=True)

def ioprio(pid):
    if libc.syscall(251, 1, pid, 0x4007):
        raise OSError(ctypes.get_errno(), "ioprio_set")

for what, ask in {
    "kill": lambda: os.kill(pid, 0),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "prlimit": lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)),
    "sched_setaffinity": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    "sched_setscheduler": lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
    "ioprio_set": lambda: ioprio(pid),
}.items():
    try:
        ask()
        print(what, "done")
    except PermissionError:
        print(what, "refused")
"""


def reached(pid: int, uid: int, gid: int) -> dict[str, str]:
    """What a process of this user may do to another."""
    argv = [sys.executable, "-c", REACH, str(uid), str(gid), str(pid)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@needs_root
@needs_native
def test_two_workers_are_out_of_each_others_reach(plane: ControlPlane) -> None:
    clients = [plane.client(gmem_mib=64) for _ in range(2)]
    one, other = plane.session_worker_pids()
    for pid in (one, other):
        fields = status_of(pid)
        assert user_of(pid) in range(2100000000, 2100065536)
        assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert len(fields["Groups"].split()) == 1
    assert user_of(one) != user_of(other)
    gid = int(status_of(one)["Gid"].split()[0])
    at_other = reached(other, user_of(one), gid)
    assert set(at_other.values()) == {"refused"}, at_other
    at_itself = reached(one, user_of(one), gid)
    assert at_itself["kill"] == at_itself["setpriority"] == "done", "the questions mean something"
    for client in clients:
        client.kill()
    wait_for(lambda: not plane.grants())


@needs_root
@needs_native
def test_warm_workers_hear_of_no_client_before_they_have_a_user(plane: ControlPlane) -> None:
    client = plane.client(gmem_mib=64)
    [worker] = plane.session_worker_pids()
    wait_for(lambda: len(plane.worker_pids()) == 2, message="the next warm worker")
    [warm] = set(plane.worker_pids()) - {worker}
    assert (user_of(warm), user_of(worker) != 0) == (0, True)
    client.kill()
    wait_for(lambda: not plane.grants())


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[ControlPlane]:
    with running(tmp_path, pool={"job_linger_seconds": 2}) as plane:
        yield plane


@needs_root
@needs_native
def test_a_jobs_workers_share_a_user_over_a_restart_of_the_server(shared: ControlPlane) -> None:
    job = shared.program_environment(
        HOME=str(shared.folder),
        PYTHONPATH=str(ROOT / "python"),
        SLUICE_LIBRARIES=str(find_native("libcuda.so.1").parent),
        SLUICE_GMEM="128",
        SLUICE_JOB=secrets.token_hex(16),
    )
    first = JobProcess(job)
    [worker] = shared.session_worker_pids()
    uid = user_of(worker)
    shared.stop("server", signal.SIGKILL)
    shared.start_server()
    wait_for(lambda: shared.node_state() == "up")
    stranger = shared.client(gmem_mib=64)
    second = JobProcess(job)
    assert (first.first, second.first) == ("ready", "ready")
    found = sorted(user_of(pid) == uid for pid in shared.session_worker_pids())
    assert found == [False, True, True]
    left = Path("/dev/shm") / f"sluice-test-{os.getpid()}"
    left.touch()
    os.chown(left, uid, uid)
    stranger.kill()
    assert first.quit() == 0
    assert left.exists()
    assert second.quit() == 0
    wait_for(lambda: not left.exists(), message="what the job's workers left to go")
    wait_for(lambda: not shared.grants())
