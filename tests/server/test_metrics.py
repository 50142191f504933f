# SPDX-License-Identifier: Apache-2.0
"""The server's metrics against REST's account of the same programs, on the software GPU."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from control_plane import ControlPlane, native_worker, running, wait_for
from job_process import JobProcess
from scrapes import Scrape, read_registry, scrape

from sluice.server.controller.link import GrantedVgpu
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.records import Requester
from sluice.server.workers.packets import Message

pytestmark = pytest.mark.control_plane(metrics={})

MIB = 1 << 20
COUNTERS = [
    f"sluice_channel_{name}_total"
    for name in ("received_bytes", "sent_bytes", "commands", "round_trips")
]
real = pytest.mark.skipif(native_worker() is None, reason="the native part is not built")


def program(plane: ControlPlane, **more: str) -> JobProcess:
    """A program with a session that the server's metrics show."""
    before = seen(plane).total("sluice_vgpu_sessions")
    wanted = {"SLUICE_GMEM": "256", "SLUICE_RATIO": "20", **more}
    started = JobProcess(plane.program_environment(**wanted))
    assert started.first == "ready"
    # over TCP the client has its answer before the server has been told that the worker began
    wait_for(lambda: seen(plane).total("sluice_vgpu_sessions") > before)
    return started


def work(process: JobProcess, byte: int) -> None:
    """Commands that are sent and forgotten, and some whose answer is waited for."""
    assert process.do(f"write {byte}") == "0"
    assert process.do("read") == f"{byte:02x}" * 4


def seen(plane: ControlPlane) -> Scrape:
    return scrape(plane.metrics_url)


def gpu_of(plane: ControlPlane) -> str:
    return str(plane.rest.get("/gpus").json()["gpus"][0]["uuid"])


@real
def test_a_programs_figures_are_those_of_rest_and_grow_with_its_work(plane: ControlPlane) -> None:
    gpu = gpu_of(plane)
    before = seen(plane)
    assert before.series("sluice_vgpu_memory_used_bytes") == {}
    one = program(plane)
    assert one.do("alloc 100") == "0"
    work(one, 7)
    [grant] = plane.grants()
    [session] = wait_for(lambda: [s for s in plane.sessions() if s["state"] == "running"])

    found = seen(plane)
    at = {"gpu": gpu, "vgpu": "0"}
    [vgpu] = grant["vgpus"]
    assert found.value("sluice_vgpu_memory_limit_bytes", **at) == vgpu["memory_mib"] * MIB
    assert found.value("sluice_vgpu_compute_limit_ratio", **at) == vgpu["compute_percent"] / 100
    assert found.value("sluice_vgpu_memory_used_bytes", **at) == 100 * MIB
    assert found.value("sluice_vgpu_sessions", **at) == 1
    assert found.value("sluice_server_sessions", channel=session["channel"]) == 1
    assert found.value("sluice_server_controller_connected") == 1
    pool = scrape(plane.url)
    assert pool.value("sluice_pool_memory_granted_bytes") == found.total(
        "sluice_vgpu_memory_limit_bytes"
    )
    assert pool.total("sluice_pool_sessions") == found.total("sluice_server_sessions")
    counted = {name: found.value(name, channel="shm") for name in COUNTERS}
    assert all(counted.values()), counted
    assert found.value("sluice_server_session_start_seconds_count", channel="shm") == 1

    for _ in range(5):
        work(one, 8)
    more = seen(plane)
    for name in COUNTERS:
        assert (more.value(name, channel="shm") or 0) > (counted[name] or 0), name

    assert one.quit() == 0
    wait_for(lambda: not plane.session_worker_pids())
    after = wait_for(lambda: s if not (s := seen(plane)).total("sluice_server_sessions") else None)
    assert after.series("sluice_vgpu_memory_limit_bytes") == {}
    for name in COUNTERS:
        assert (after.value(name, channel="shm") or 0) >= (more.value(name, channel="shm") or 0)
    assert after.value("sluice_server_sessions_ended_total", channel="shm") == 1


@real
def test_vgpus_are_numbered_by_place_so_that_series_do_not_grow_with_sessions(
    plane: ControlPlane,
) -> None:
    def numbers() -> set[str]:
        return {dict(labels)["vgpu"] for labels in seen(plane).series("sluice_vgpu_sessions")}

    first, second = program(plane), program(plane, SLUICE_CHANNEL="tcp")
    assert numbers() == {"0", "1"}
    first.quit()
    wait_for(lambda: numbers() == {"1"})
    third = program(plane)
    assert second.do("alloc 2") == "0"
    work(second, 9)
    assert numbers() == {"0", "1"}
    found = seen(plane)
    assert found.value("sluice_server_sessions", channel="tcp") == 1
    assert (found.value("sluice_channel_received_bytes_total", channel="tcp") or 0) > 0
    second.quit()
    third.quit()


@real
def test_processes_of_a_job_share_one_vgpu_and_their_use_is_summed(plane: ControlPlane) -> None:
    job = {"SLUICE_JOB": "0123456789abcdef" * 2}
    one, other = program(plane, **job), program(plane, **job)
    assert (one.do("alloc 60"), other.do("alloc 80")) == ("0", "0")
    found = seen(plane)
    at = {"gpu": gpu_of(plane), "vgpu": "0"}
    assert found.series("sluice_vgpu_sessions") == {frozenset(at.items()): 2}
    assert found.value("sluice_vgpu_memory_used_bytes", **at) == 140 * MIB
    assert found.value("sluice_vgpu_memory_limit_bytes", **at) == 256 * MIB
    one.quit()
    other.quit()


@real
def test_the_software_gpu_has_no_sensors_and_none_are_made_up(plane: ControlPlane) -> None:
    found = seen(plane)
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    assert found.value("sluice_gpu_memory_bytes", gpu=gpu["uuid"]) == gpu["memory_mib"] * MIB
    [info] = found.series("sluice_gpu_info")
    assert dict(info)["software"] == "true"
    assert dict(info)["node"] == plane.node
    physical = {name for name in found.types if name.startswith("sluice_gpu_")}
    assert physical == {"sluice_gpu_info", "sluice_gpu_memory_bytes", "sluice_gpu_healthy"}


@real
def test_counters_do_not_fall_when_a_worker_is_killed_and_count_anew_after_a_restart(
    plane: ControlPlane,
) -> None:
    one, other = program(plane), program(plane)
    for _ in range(50):
        one.do("alloc 1")
    assert other.do("alloc 30") == "0"
    before = {name: seen(plane).value(name, channel="shm") or 0 for name in COUNTERS}
    one.kill()
    wait_for(lambda: len(plane.grants()) == 1)
    for name, value in before.items():
        assert (seen(plane).value(name, channel="shm") or 0) >= value, name

    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    adopted = seen(plane)
    assert adopted.total("sluice_server_sessions") == 1
    assert adopted.total("sluice_server_sessions_started_total") == 0
    assert adopted.total("sluice_vgpu_memory_used_bytes") == 30 * MIB
    # what it moved before is not this server's: a scraper sees a counter that began anew
    assert adopted.value("sluice_channel_commands_total", channel="shm") == 0
    assert other.do("write 1") == "0"
    assert (seen(plane).value("sluice_channel_commands_total", channel="shm") or 0) > 0
    other.quit()


@real
def test_a_worker_that_hangs_is_left_out_and_its_late_answer_harms_nothing(
    plane: ControlPlane,
) -> None:
    hung, well = program(plane), program(plane)
    assert (hung.do("alloc 10"), well.do("alloc 20")) == ("0", "0")
    [pid] = [r["pid"] for r in plane.worker_records() if r["session"].get("id") and _has(r, hung)]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert well.do("alloc 20") == "0"
        found = seen(plane)
        assert found.value("sluice_server_workers_silent") == 1
        assert found.total("sluice_vgpu_memory_used_bytes") == 40 * MIB, "of the one that answers"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: seen(plane).value("sluice_server_workers_silent") == 0)
    assert hung.do("alloc 6") == "0"
    assert seen(plane).total("sluice_vgpu_memory_used_bytes") == 56 * MIB
    hung.quit()
    well.quit()


def _has(record: dict[str, object], process: JobProcess) -> bool:
    session = record["session"]
    assert isinstance(session, dict)
    return bool(session["asker"]["pid"] == process.process.pid)


@real
def test_scrapers_and_resizes_at_once_get_each_their_own_answers(plane: ControlPlane) -> None:
    one = program(plane)
    [grant] = plane.grants()
    with ThreadPoolExecutor(8) as threads:
        scrapes = [threads.submit(seen, plane) for _ in range(30)]
        for percent in (30, 40, 50):
            answer = plane.rest.patch(f"/grants/{grant['id']}", json={"compute_percent": percent})
            assert answer.status_code == 200, answer.text
        assert all(s.result().total("sluice_vgpu_sessions") == 1 for s in scrapes)
    assert seen(plane).total("sluice_vgpu_compute_limit_ratio") == 0.5
    one.quit()


def test_a_server_without_controller_says_so(plane: ControlPlane) -> None:
    plane.stop("controller")
    wait_for(lambda: seen(plane).value("sluice_server_controller_connected") == 0)
    plane.start_controller()
    wait_for(lambda: seen(plane).value("sluice_server_controller_connected") == 1)


def test_there_is_metrics_for_who_has_the_token_and_nothing_else(tmp_path: Path) -> None:
    token = tmp_path / "scraper.token"
    token.write_text("open sesame\n")
    with running(tmp_path, fake=True, metrics={"token_file": token}) as plane:
        url = plane.metrics_url
        assert httpx.get(f"{url}/metrics").status_code == 401
        wrong = {"Authorization": "Bearer open sesam"}
        assert httpx.get(f"{url}/metrics", headers=wrong).status_code == 401
        right = {"Authorization": "Bearer open sesame"}
        connected = "sluice_server_controller_connected"
        wait_for(lambda: scrape(url, "open sesame").value(connected) == 1)
        assert httpx.get(f"{url}/v1/nodes", headers=right).status_code == 404
        assert httpx.post(f"{url}/metrics", headers=right).status_code == 405


def test_a_server_serves_on_where_its_metrics_cannot_be_opened(tmp_path: Path) -> None:
    with running(tmp_path, fake=True, metrics={"token_file": tmp_path / "missing"}) as plane:
        assert plane.node_state() == "up"
        assert "there are no metrics" in plane.log("server")
        assert "missing" in plane.log("server")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{plane.metrics_url}/metrics")


class FakeSession:
    """A session as far as its figures are concerned."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.grant_id = f"grant of {session_id}"
        self.vgpus = (GrantedVgpu("GPU-1", 1024, 25),)
        self.requester = Requester("shm", "host", "program")
        self.part = None
        self.places = (0,)
        self.started = time.time()
        self.opening = False
        self.disconnected_since = 0.0
        self.gone = asyncio.Event()


def test_what_a_session_moved_is_counted_with_the_channel_that_it_had_then() -> None:
    figures = SessionFigures()
    session = FakeSession("s")
    session.requester.channel = "rdma"
    figures.begin(session)  # type: ignore[arg-type]

    def bytes_in(number: int, channel: str) -> None:
        figures.hear("s", Message("status", {"bytes_in": str(number)}))
        if channel != session.requester.channel:
            figures.moved("s", channel)
            session.requester.channel = channel

    def counted(channel: str) -> float:
        found = read_registry(figures.registry)
        return found.value("sluice_channel_received_bytes_total", channel=channel)

    bytes_in(100, "rdma")
    assert (counted("rdma"), counted("tcp")) == (100, 0)
    bytes_in(150, "tcp")
    assert (counted("rdma"), counted("tcp")) == (150, 0)
    bytes_in(170, "tcp")
    bytes_in(180, "rdma")
    bytes_in(185, "rdma")
    assert (counted("rdma"), counted("tcp")) == (155, 30)
    figures.moved("nobody", "tcp")
    found = read_registry(figures.registry)
    assert found.value("sluice_server_sessions", channel="rdma") == 1
    assert found.value("sluice_server_sessions", channel="tcp") == 0
    figures.end("s")
    assert (counted("rdma"), counted("tcp")) == (155, 30)


def test_what_a_taken_over_worker_says_cannot_spoil_a_scrape() -> None:
    now = [0.0]
    figures = SessionFigures(lambda: now[0])
    session = FakeSession("s")
    figures.begin(session)  # type: ignore[arg-type]
    now[0] = 5.0
    figures.hear("s", Message("status", {"commands": "70", "bytes_in": "9", "gpu_busy_ms": "4000"}))
    figures.times.look()
    absurd = {"commands": "-5", "bytes_in": "9" * 400, "bytes_out": "x", "vgpu.0.used_mib": "1e9"}
    figures.hear("s", Message("status", absurd))
    found = read_registry(figures.registry)
    assert found.value("sluice_channel_commands_total", channel="shm") == 70, "it does not fall"
    assert found.value("sluice_channel_received_bytes_total", channel="shm") == 2**62
    assert found.value("sluice_channel_sent_bytes_total", channel="shm") == 0
    assert found.value("sluice_vgpu_busy_seconds_total", gpu="GPU-1", vgpu="0") == 4
    assert found.value("sluice_vgpu_share_ratio", gpu="GPU-1", vgpu="0", window="60s") == 0.8
    figures.hear("s", Message("status", {"vgpu.0.busy_us": "9" * 400}))
    assert (
        read_registry(figures.registry).value(
            "sluice_vgpu_busy_seconds_total", gpu="GPU-1", vgpu="0"
        )
        == 5
    ), "what passed"
    figures.end("s")
    figures.end("s")
    again = read_registry(figures.registry)
    assert again.value("sluice_server_sessions_ended_total", channel="shm") == 1
    assert again.value("sluice_vgpu_busy_seconds_total", gpu="GPU-1", vgpu="0") == 5
    assert again.total("sluice_vgpu_share_ratio") == 0


def test_what_a_session_has_on_another_gpu_is_counted_there_from_then_on() -> None:
    now = [0.0]
    figures = SessionFigures(lambda: now[0])
    session = FakeSession("s")
    figures.begin(session)  # type: ignore[arg-type]

    def counted(busy_us: int) -> list[float]:
        """The seconds of both GPUs."""
        now[0] += 10
        figures.hear("s", Message("status", {"vgpu.0.busy_us": str(busy_us)}))
        found = read_registry(figures.registry)
        name = "sluice_vgpu_busy_seconds_total"
        return [found.value(name, gpu=gpu, vgpu="0") or 0 for gpu in ("GPU-1", "GPU-2")]

    assert counted(4_000_000) == [4, 0]
    session.vgpus = (GrantedVgpu("GPU-2", 1024, 25),)
    figures.change_gpu(session, "GPU-2")  # type: ignore[arg-type]
    assert counted(7_000_000) == [4, 3]
    session.vgpus = (GrantedVgpu("GPU-1", 1024, 25),)
    figures.change_gpu(session, "GPU-1")  # type: ignore[arg-type]
    assert counted(9_000_000) == [6, 3]
    figures.end("s")
    figures.change_gpu(session, "GPU-2")  # type: ignore[arg-type]
    found = read_registry(figures.registry)
    assert found.total("sluice_vgpu_busy_seconds_total") == 9


def test_a_worker_that_exits_before_its_session_is_said_to_have_begun_leaves_nothing() -> None:
    figures = SessionFigures()
    session = FakeSession("s")
    session.gone.set()
    figures.begin(session)  # type: ignore[arg-type]
    assert read_registry(figures.registry).total("sluice_server_sessions") == 0


def test_refusals_are_counted_by_names_that_there_are() -> None:
    figures = SessionFigures()
    for status in (46, 46, 123456):
        figures.refused(status)
    found = read_registry(figures.registry)
    assert found.value("sluice_server_refusals_total", error="device_unavailable") == 2
    assert found.value("sluice_server_refusals_total", error="other") == 1


READ = """
import asyncio, ctypes, json, sys
from sluice.server.gpus.figures import GpuReader
from sluice.server.gpus.discovery import Driver
async def read():
    reader = GpuReader(Driver(sys.argv[1], software=False))
    found = [await reader.read(["GPU-0", "GPU-1", "GPU-gone"]), await reader.read(["GPU-1"])]
    library = ctypes.CDLL("libnvidia-ml.so.1")
    print(json.dumps([*found, reader.silent, library.fake_open_count()]))
asyncio.run(read())
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver and an NVML beside it."""
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml_figures.c")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source], check=True
    )
    return folder


def read_nvml(folder: Path, code: str = READ, **environment: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "libcuda.so.1")],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found: list[object] = json.loads(done.stdout)
    return found


def test_what_nvml_says_is_told_in_base_units_and_what_it_does_not_say_is_not(nvml: Path) -> None:
    found, second_alone, silent, open_count = read_nvml(nvml)
    assert isinstance(found, dict)
    assert isinstance(second_alone, dict)
    first = {(name, *labels): value for name, value, labels in found["GPU-0"]}
    assert first == {
        ("sluice_gpu_utilization_ratio",): 0.75,
        ("sluice_gpu_memory_utilization_ratio",): 0.2,
        ("sluice_gpu_memory_used_bytes",): 300,
        ("sluice_gpu_memory_free_bytes",): 600,
        ("sluice_gpu_memory_reserved_bytes",): 100,
        ("sluice_gpu_temperature_celsius",): 61,
        ("sluice_gpu_power_watts",): 512.5,
        ("sluice_gpu_power_limit_watts",): 700,
        ("sluice_gpu_energy_joules_total",): 9,
        ("sluice_gpu_clock_hertz", "sm"): 1.98e9,
        ("sluice_gpu_clock_hertz", "memory"): 2.619e9,
        ("sluice_gpu_ecc_errors_total", "corrected", "volatile"): 0,
        ("sluice_gpu_ecc_errors_total", "corrected", "aggregate"): 1,
        ("sluice_gpu_ecc_errors_total", "uncorrected", "volatile"): 10,
        ("sluice_gpu_ecc_errors_total", "uncorrected", "aggregate"): 11,
        ("sluice_gpu_remapped_rows", "corrected"): 1,
        ("sluice_gpu_remapped_rows", "uncorrected"): 2,
        ("sluice_gpu_row_remap_failed",): 0,
        ("sluice_gpu_pcie_replays_total",): 7,
    }
    assert {name for name, _, _ in found["GPU-1"]} == {
        "sluice_gpu_memory_used_bytes",
        "sluice_gpu_memory_free_bytes",
        "sluice_gpu_memory_reserved_bytes",
    }
    assert set(found) == {"GPU-0", "GPU-1"}
    assert set(second_alone) == {"GPU-1"}
    assert (silent, open_count) == (False, 0), "NVML is closed again, so that GPUs can be let go"


READ_USE = """
import asyncio, ctypes, json, sys
from sluice.server.gpus.process_use import ProcessUseReader
from sluice.server.gpus.discovery import Driver
async def read():
    reader = ProcessUseReader(Driver(sys.argv[1], software=False))
    found = await reader.read(["GPU-0", "GPU-1"])
    library = ctypes.CDLL("libnvidia-ml.so.1")
    shares = {uuid: [use.shares, use.never] for uuid, use in found.items()}
    print(json.dumps([shares, library.fake_open_count()]))
asyncio.run(read())
"""


def test_what_processes_use_is_read_where_nvml_tells_it(nvml: Path) -> None:
    found, open_count = read_nvml(nvml, READ_USE)
    assert found == {"GPU-0": [{"41": 0.35}, ""], "GPU-1": [None, "Not Supported"]}
    assert open_count == 0


def test_an_nvml_that_never_answers_is_left_behind(nvml: Path) -> None:
    found, again, silent, _ = read_nvml(nvml, SLUICE_FAKE_NVML_HANGS="1")
    assert (found, again, silent) == ({}, {}, True)
