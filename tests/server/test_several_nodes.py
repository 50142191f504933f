# SPDX-License-Identifier: Apache-2.0
"""One process with vGPUs of several nodes (SLUICE_CROSS_NODE): real programs on two real servers.

Skipped where the native part is not built.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import devices_holder
import pytest
from control_plane import ControlPlane, running, wait_for
from free_ports import free_port
from network_program import built, start
from node_pair import clean, of_both, two_nodes
from pool_certificates import PoolCa
from static_pool import build_programs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = ROOT / "tests" / "programs"
DEVICES_HOLDER = Path(devices_holder.__file__)

pytestmark = pytest.mark.skipif(not built(), reason="the native part is not built")


def make_libraries(folder: Path) -> None:
    """The stand-ins for NVIDIA's libraries, where there is a C compiler."""
    folder.chmod(0o755)  # workers have accounts of their own
    sources = {"libnccl.so.2": "fake_nccl.c", "libcublas.so.13": "fake_cublas.c"}
    for soname, source in sources.items() if shutil.which("cc") else ():
        options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}"]
        made = [str(folder / soname), str(HERE / source)]
        subprocess.run(["cc", *options, "-o", *made, "-ldl"], check=True)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A controller and two servers, each with one software GPU."""
    with tempfile.TemporaryDirectory() as libraries:
        make_libraries(Path(libraries))
        folder = tmp_path_factory.mktemp("nodes")
        with two_nodes(folder, {"cuda_libraries": libraries}) as both:
            yield both


def run_program(plane: ControlPlane, home: Path, name: str) -> tuple[int, str, str]:
    program = build_programs(name) / name
    with start(home, program, **of_both(plane)) as process:
        out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def test_a_program_sees_two_devices_and_computes_on_both(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, _ = nodes
    code, out, error = run_program(first, tmp_path, "two_nodes")
    assert code == 0, out + error
    said = [line for line in out.splitlines() if not line.startswith("# ")]
    assert said == (PROGRAMS / "expected" / "two_nodes.out").read_text().splitlines()
    told = [line for line in out.splitlines() if line.startswith("# ")]
    assert told == [
        "# peers: 0 0",
        "# a copy behind all work: 1000",
        "# a graph that fills the other's memory: cudaErrorInvalidValue",
        "# peer access: cudaErrorPeerAccessUnsupported",
        "# IPC: cudaErrorNotSupported",
        "# a capture that waits: cudaErrorStreamCaptureUnsupported",
    ]
    assert "CUDA IPC" in error
    wait_for(lambda: not first.grants())


def test_streams_of_two_nodes_wait_for_one_another_and_copies_go_straight(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    """The program opens the gate that all of its work waits for only after all was asked for."""
    first, second = nodes
    program = build_programs("across_nodes") / "across_nodes"
    told = of_both(first, SLUICE_STATS="1", SLUICE_GMEM="256")
    with start(tmp_path, program, **told) as process:
        out, error = process.communicate(timeout=120)
    assert out == (PROGRAMS / "expected" / "across_nodes.out").read_text(), error
    assert "asynchronous commands of NodeSend" in error
    assert "round trips of EventSynchronize" not in error
    assert "not connected to each other" not in error
    wait_for(lambda: clean(first, second))


class Holder:
    """A process with a device of each node."""

    def __init__(self, plane: ControlPlane, home: Path, **more: str) -> None:
        command = (sys.executable, DEVICES_HOLDER)
        self.process = start(home, *command, **of_both(plane, **more))
        self.said = self.read()

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def works(self, device: int) -> bool:
        """Whether the device does what it is told."""
        assert self.process.stdin
        self.process.stdin.write(f"{device}\n")
        self.process.stdin.flush()
        return self.read() == "0"

    def close(self) -> str:
        """Ends the process in good order; returns what it said on standard error."""
        _, error = self.process.communicate(timeout=60)
        return error


def test_it_is_one_grant_with_a_session_on_each_node(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    holder = Holder(first, tmp_path)
    assert holder.said == "2"
    [grant] = first.grants()
    assert [vgpu["gpu"].split(":")[0] for vgpu in grant["vgpus"]] == ["node-a", "node-b"]
    assert [vgpu["compute_percent"] for vgpu in grant["vgpus"]] == [100, 100]
    wait_for(lambda: {s["state"] for s in first.sessions()} == {"running"})
    assert {(s["node"], s["channel"]) for s in first.sessions()} == {
        ("node-a", "tcp"),
        ("node-b", "tcp"),
    }
    for node in ("node-a", "node-b"):
        found = first.rest.get("/grants", params={"node": node}).json()["grants"]
        assert [g["id"] for g in found] == [grant["id"]]
    resized = first.rest.patch(f"/grants/{grant['id']}", json={"memory_mib": 32})
    assert resized.status_code == 409
    assert "vGPUs of 2 nodes, which keep their size" in resized.text
    assert holder.works(0)
    assert holder.works(1)
    holder.close()
    wait_for(lambda: clean(first, second))


def test_a_lost_worker_costs_its_own_device_only(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    holder = Holder(first, tmp_path)
    assert holder.works(0)
    assert holder.works(1)
    [worker] = second.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not holder.works(1))
    assert holder.works(0)
    assert not holder.works(1)
    wait_for(lambda: [s["node"] for s in first.sessions()] == ["node-a"])
    assert len(first.grants()) == 1
    assert holder.works(0)
    error = holder.close()
    assert "node node-b is lost to this process" in error
    assert "node-a is lost" not in error
    wait_for(lambda: clean(first, second))


def test_what_the_operator_ends_ends_on_every_node(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    holder = Holder(first, tmp_path)
    assert holder.works(1)
    [grant] = first.grants()
    assert first.rest.delete(f"/grants/{grant['id']}").status_code == 202
    wait_for(lambda: clean(first, second))
    assert not holder.works(0)
    assert not holder.works(1)
    assert "ended by the operator" in holder.close()


def test_a_killed_process_leaves_nothing_on_any_node(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    holder = Holder(first, tmp_path)
    assert holder.works(1)
    holder.process.kill()
    holder.close()
    wait_for(lambda: clean(first, second))


def test_servers_that_restart_end_nothing(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    holder = Holder(first, tmp_path)
    assert holder.works(1)
    second.stop("server")
    assert holder.works(1)
    second.start_server()
    first.stop("controller")
    first.start_controller()
    for node in nodes:
        wait_for(lambda node=node: node.node_state() == "up")
    assert {s["node"] for s in first.sessions()} == {"node-a", "node-b"}
    assert len(first.grants()) == 1
    assert holder.works(0)
    assert holder.works(1)
    holder.close()
    wait_for(lambda: clean(first, second))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"SLUICE_VGPU": "3"}, "the pool has 2 such GPU(s) in all; set SLUICE_VGPU to at most 2"),
        ({"SLUICE_RATIO": "50"}, "which are given whole; unset SLUICE_RATIO or set it to 100"),
        ({"SLUICE_CROSS_NODE": "0"}, "on one node"),
    ],
    ids=["too many", "a part of GPUs", "not asked for"],
)
def test_what_cannot_be_is_refused_with_the_reason(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path, wanted: dict[str, str], reason: str
) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    holder = Holder(first, tmp_path, SLUICE_WAIT="0", **wanted)
    assert holder.said.startswith("failed ")
    assert reason in holder.close()


def test_a_near_channel_is_refused_with_the_way_out(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    near = {"SLUICE_CHANNEL": "shm", "SLUICE_SERVER_SOCKET": str(first.socket_path)}
    holder = Holder(first, tmp_path, SLUICE_WAIT="0", **near)
    assert holder.said.startswith("failed ")
    assert "a client by shm has a session on one node" in (error := holder.close())
    assert "set SLUICE_CHANNEL=tcp" in error


def test_what_is_near_is_asked_where_no_controller_answers(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    near = {
        "SLUICE_CHANNEL": "auto",
        "SLUICE_SERVER_SOCKET": str(first.socket_path),
        "SLUICE_CONTROLLER": f"127.0.0.1:{free_port()}",
        "SLUICE_WAIT": "0",
    }
    holder = Holder(first, tmp_path, **near)
    assert holder.said.startswith("failed ")
    assert "a client by shm has a session on one node" in holder.close()


def test_an_older_client_is_told_to_update(nodes: tuple[ControlPlane, ControlPlane]) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    body = {"vgpu_count": 2, "gmem_mib": 64, "cross_node": True}
    answer = first.rest.post("/sessions", json=body)
    assert answer.status_code == 409
    assert "update its client library" in answer.json()["detail"]


def test_a_ticket_names_each_node(nodes: tuple[ControlPlane, ControlPlane]) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    body = {"vgpu_count": 2, "gmem_mib": 64, "cross_node": True, "takes_parts": True}
    ticket = first.rest.post("/sessions", json=body).json()
    assert [(p["node"], p["port"], p["vgpus"]) for p in ticket["parts"]] == [
        ("node-a", first.data_port, 1),
        ("node-b", second.data_port, 1),
    ]
    assert len({p["key"] for p in ticket["parts"]}) == 2
    assert ticket["key"] == ticket["parts"][0]["key"]
    assert first.rest.delete(f"/grants/{ticket['grant_id']}").status_code == 202
    wait_for(lambda: clean(first, second))


def test_a_node_that_does_not_take_its_part_leaves_nothing_with_the_others(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    first, second = nodes
    wait_for(lambda: clean(first, second))
    assert second.server
    second.server.send_signal(signal.SIGSTOP)
    try:
        body = {"vgpu_count": 2, "gmem_mib": 64, "cross_node": True, "takes_parts": True}
        answer = first.rest.post("/sessions", json=body, timeout=60)
        assert answer.status_code == 503
        assert "node node-b did not take session" in answer.json()["detail"]
    finally:
        second.server.send_signal(signal.SIGCONT)
    wait_for(lambda: clean(first, second))
    holder = Holder(first, tmp_path)
    assert holder.said == "2"
    holder.close()


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "nccl_nodes_program.py",
            "ncclAllReduce was given memory of another node than that of vGPU 0",
        ),
        ("cublas_nodes_program.py", "was used while vGPU 0 of another node is current"),
    ],
    ids=["NCCL", "cuBLAS"],
)
def test_libraries_are_each_nodes_own(
    nodes: tuple[ControlPlane, ControlPlane], tmp_path: Path, program: str, told: str
) -> None:
    """A group of NCCL's goes to each node as one; a handle of cuBLAS is good on its own only."""
    first, second = nodes
    wait_for(lambda: clean(first, second))
    with start(tmp_path, sys.executable, HERE / program, **of_both(first)) as process:
        out, error = process.communicate(timeout=60)
    assert out == "all of it\n", error
    assert told in error
    wait_for(lambda: clean(first, second))


def test_the_data_ports_may_have_tls(tmp_path: Path, ca: PoolCa) -> None:
    """Each node's certificate has its own name."""

    def tls(name: str) -> dict[str, object]:
        pair = ca.issue(name)
        return {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}

    (tmp_path / "b").mkdir()
    with running(tmp_path, server_tls=tls("node-a")) as first:
        second = ControlPlane(
            tmp_path / "b",
            server={"node_name": "node-b"},
            server_tls=tls("node-b"),
            pool_of=first,
        )
        try:
            second.start_server()
            address = f"http://127.0.0.1:{first.rest_port}"
            named = {"SLUICE_CA": str(ca.file), "SLUICE_CONTROLLER": address}
            holder = Holder(first, tmp_path, **named)
            assert holder.said == "2", holder.close()
            assert holder.works(0)
            assert holder.works(1)
            holder.close()
            wait_for(lambda: clean(first, second))
        finally:
            second.close()
