# SPDX-License-Identifier: Apache-2.0
"""XID errors and lost cards: out of the pool, sessions ended with the reason, back when cleared.

Everything is real but the card that fails: the software GPU's two devices, beside a
libnvidia-ml.so.1 of the tests' own (fake_nvml_events.c) that NVIDIA's Python for NVML loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import Client, ControlPlane, running, wait_for
from faulty_driver import make_faulty_driver
from holder import Holder
from scrapes import scrape

from sluice.config.native_files import NativeFileMissing

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

GPUS = [f"GPU-536c7569-6365-4000-8073-6f66746770{index:02x}" for index in range(2)]
WHOLE = {"ratio_percent": 100, "gmem_mib": 1024}


class Faults:
    """A pool of two GPUs, and what their NVML says."""

    def __init__(self, plane: ControlPlane, script: Path) -> None:
        self.plane = plane
        self._script = script

    def say(self, line: str) -> None:
        with self._script.open("a") as file:
            file.write(line + "\n")

    def gpu(self, uuid: str) -> dict[str, Any]:
        result: dict[str, Any] = self.plane.rest.get(f"/gpus/{uuid}").json()
        return result

    def until(self, uuid: str, health: str) -> dict[str, Any]:
        wait_for(lambda: self.gpu(uuid)["health"] == health, message=f"{uuid} to be {health}")
        return self.gpu(uuid)

    def client(self, **wanted: Any) -> tuple[Client, str]:
        """A session on a GPU of its own, and which that is."""
        client = self.plane.client(**WHOLE, **wanted)
        assert client.first["status"] == 0, client.first
        [grant] = [g for g in self.plane.grants() if client.session_id in g["sessions"]]
        return client, grant["vgpus"][0]["gpu"].rpartition(":")[2]

    def ended(self, client: Client) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [s for s in self.plane.sessions("ended") if s["id"] == client.session_id]

        result: dict[str, Any] = wait_for(found, message="the session to end")[0]
        return result

    def events(self, kind: str) -> list[dict[str, Any]]:
        answer = self.plane.rest.get("/events", params={"limit": 1000}).json()
        return [event for event in answer["events"] if event["kind"] == kind]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The software GPU under the name of NVIDIA's driver, beside the tests' NVML."""
    try:
        return make_faulty_driver(tmp_path_factory.mktemp("driver"))
    except NativeFileMissing:
        pytest.skip("the native part is not built")


@pytest.fixture
def start(tmp_path: Path, driver: Path) -> Iterator[Callable[..., Faults]]:
    script = tmp_path / "nvml"
    script.touch()
    environment = {"SLUICE_SOFTGPU_COUNT": "2", "SLUICE_FAKE_NVML": str(script)}
    planes = []

    def begin(**health: Any) -> Faults:
        context = running(
            tmp_path,
            server={"driver": driver},
            health=health,
            environment=environment,
            metrics={},
        )
        plane = context.__enter__()
        planes.append(context)
        wait_for(lambda: "watching GPUs" in plane.log("server"), message="the watch to begin")
        return Faults(plane, script)

    yield begin
    for context in planes:
        context.__exit__(None, None, None)


def test_a_card_that_falls_off_the_bus_leaves_the_pool_until_it_is_cleared(
    start: Callable[..., Faults],
) -> None:
    pool = start()
    victim, sick = pool.client()
    other, well = pool.client()
    assert {sick, well} == set(GPUS)
    waiting = pool.plane.client(**WHOLE, wait_seconds=-1)
    assert waiting.first["status"] == 600, "both GPUs are taken"

    pool.say(f"xid {GPUS.index(sick)} 79")
    reason = pool.ended(victim)["reason"]
    assert f"GPU {sick} has failed: XID 79, the GPU has fallen off the bus" in reason
    assert pool.until(sick, "fault")["fault"].startswith("XID 79")
    assert pool.gpu(well)["health"] == "ok"
    log = pool.plane.rest.get(f"/sessions/{victim.session_id}/log").text
    assert f"GPU {sick} reported XID 79" in log
    [event] = wait_for(lambda: pool.events("gpu.fault"))  # stored after it is known
    assert event["subject"] == f"node-a:{sick}"
    position = pool.plane.rest.get("/queue").json()["waiting"]
    assert len(position) == 1, "the sick card's room is nobody's"

    other.kill()
    reply = waiting.read()
    while reply["status"] == 600:
        reply = waiting.read()
    assert reply["status"] == 0
    [grant] = pool.plane.grants()
    assert grant["vgpus"][0]["gpu"] == f"node-a:{well}"

    cleared = pool.plane.rest.delete(f"/gpus/{sick}/fault")
    assert cleared.status_code == 202, cleared.text
    assert pool.until(sick, "ok")["fault"] == ""
    _, again = pool.client()
    assert again == sick
    [event] = wait_for(lambda: pool.events("gpu.well"))
    assert event["subject"] == f"node-a:{sick}"


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_the_victims_standard_error_names_the_cause(
    start: Callable[..., Faults], channel: str
) -> None:
    pool = start()
    program = Holder(pool.plane.program_environment(SLUICE_CHANNEL=channel))
    assert program.work() == 0
    [grant] = pool.plane.grants()
    gpu = grant["vgpus"][0]["gpu"].rpartition(":")[2]
    pool.say(f"xid {GPUS.index(gpu)} 79")
    wait_for(lambda: not pool.plane.grants(), message="the session to end")
    assert program.work() == 802
    errors = program.kill()
    cause = f"GPU {gpu} has failed: XID 79, the GPU has fallen off the bus"
    assert f"sluice: the session was ended by the pool: {cause}; every further" in errors
    assert errors.count("ended by the pool") == 1


def test_an_applications_own_error_condemns_no_card(start: Callable[..., Faults]) -> None:
    pool = start()
    client, gpu = pool.client()
    for number in (13, 31, 43, 45, 68, 9999):
        pool.say(f"xid {GPUS.index(gpu)} {number}")
    wait_for(lambda: "XID 9999, not in Sluice's catalogue" in pool.plane.log("server"))
    assert pool.gpu(gpu)["health"] == "ok"
    assert [session["id"] for session in pool.plane.sessions()] == [client.session_id]
    log = pool.plane.rest.get(f"/sessions/{client.session_id}/log").text
    assert "reported XID 31, a page fault in GPU memory" in log
    shown = httpx.get(f"{pool.plane.metrics_url}/metrics").text
    assert f'sluice_gpu_xid_errors_total{{gpu="{gpu}",xid="31"}} 1.0' in shown


def test_a_worn_card_takes_nothing_new_and_ends_nothing(start: Callable[..., Faults]) -> None:
    pool = start()
    client, gpu = pool.client()
    pool.say(f"xid {GPUS.index(gpu)} 63")
    assert "rows of memory are to be remapped" in pool.until(gpu, "held")["held"]
    assert client.session_id in [session["id"] for session in pool.plane.sessions()]
    client.kill()
    wait_for(lambda: not pool.plane.grants())
    _, other = pool.client()
    assert other != gpu
    assert pool.plane.client(**WHOLE).first["status"] != 0, "the worn card takes nothing new"


@pytest.mark.parametrize("line", ["lost {}", "dbe {}"])
def test_lost_cards_and_uncorrectable_errors_are_faults(
    start: Callable[..., Faults], line: str
) -> None:
    pool = start()
    client, gpu = pool.client()
    pool.say(line.format(GPUS.index(gpu)))
    assert f"GPU {gpu} has failed" in pool.ended(client)["reason"]
    assert pool.ended(client)["cause"] == "gpu-failed"
    pool.until(gpu, "fault")


def test_a_card_that_is_still_lost_is_at_fault_again_when_cleared(
    start: Callable[..., Faults],
) -> None:
    pool = start()
    pool.say("lost 0")
    pool.until(GPUS[0], "fault")
    assert pool.plane.rest.delete(f"/gpus/{GPUS[0]}/fault").status_code == 202
    wait_for(lambda: len(pool.events("gpu.fault")) == 2, message="the second fault")
    pool.say("back 0")
    assert pool.plane.rest.delete(f"/gpus/{GPUS[0]}/fault").status_code == 202
    pool.until(GPUS[0], "ok")


def test_a_fault_outlives_server_and_controller(start: Callable[..., Faults]) -> None:
    pool = start()
    pool.say("xid 1 48")
    pool.until(GPUS[1], "fault")
    for service in ("server", "controller"):
        pool.plane.stop(service)
    pool.plane.start_controller()
    assert pool.gpu(GPUS[1])["health"] == "fault"
    pool.plane.start_server()
    assert pool.gpu(GPUS[1])["fault"].startswith("XID 48")
    assert pool.client()[1] == GPUS[0]
    assert pool.plane.client(**WHOLE).first["status"] != 0


def test_sessions_of_a_card_that_failed_while_the_controller_was_away_are_not_kept(
    start: Callable[..., Faults],
) -> None:
    pool = start()
    client, gpu = pool.client()
    pool.plane.stop("controller")
    pool.say(f"xid {GPUS.index(gpu)} 119")
    wait_for(lambda: not pool.plane.session_worker_pids(), message="the worker to end")
    pool.plane.start_controller()
    wait_for(lambda: pool.plane.node_state() == "up")
    assert pool.until(gpu, "fault")
    assert pool.ended(client)
    assert pool.plane.grants() == []


def test_the_operator_says_which_numbers_matter(start: Callable[..., Faults]) -> None:
    pool = start(fault_xids="31, 9999", ignored_xids=79)
    pool.say("xid 0 79")
    pool.say("xid 1 9999")
    pool.until(GPUS[1], "fault")
    assert pool.gpu(GPUS[0])["health"] == "ok"


def test_an_xid_is_counted_where_it_was_seen_and_its_card_where_it_is_missed(
    start: Callable[..., Faults],
) -> None:
    pool = start()
    before = scrape(pool.plane.metrics_url)
    assert before.series("sluice_gpu_xid_errors_total") == {}
    assert [before.value("sluice_gpu_healthy", gpu=uuid) for uuid in GPUS] == [1, 1]
    pool.say("xid 1 79")
    pool.until(GPUS[1], "fault")
    node = scrape(pool.plane.metrics_url)
    assert node.value("sluice_gpu_xid_errors_total", gpu=GPUS[1], xid="79") == 1
    assert [node.value("sluice_gpu_healthy", gpu=uuid) for uuid in GPUS] == [1, 0]
    found = scrape(pool.plane.url)
    assert found.value("sluice_pool_gpus", mode="pooled", health="faulty") == 1
    assert found.value("sluice_pool_gpus", mode="pooled", health="healthy") == 1
