# SPDX-License-Identifier: Apache-2.0
"""Looking without a session: a real controller and server, a guest's region, and bounds."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import looker
import pytest
from control_plane import ControlPlane, wait_for
from fake_controller_link import FakeControllerLink
from guest_host import guest_host
from network_program import built
from region_slots import FREE, slot_states
from relay_host import relay_host
from vgpu_user import VgpuUser

from sluice.config.native_files import find_native
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.request import DomainRequest
from sluice.protocol import frames
from sluice.protocol.frames import OpenFlags
from sluice.resources.vgpu_view import Process, view_text
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu
from sluice.server.gpus import view_figures
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.open_session import (
    RefusalError,
    pack_open_session,
    parse_open_session,
)
from sluice.server.sessions.records import Requester, Session
from sluice.server.sessions.views import GpusHere, Views
from sluice.server.workers.packets import Message
from sluice.server.workers.worker import WorkerError

OWNER = RegionOwner("11111111-2222-3333-4444-555555555555", "guest")
REQUEST = DomainRequest(memory_mib=256, compute_percent=25, region_mib=64, slots=2)
GPU = LocalGpu("GPU-0", "A GPU", 8192, True, 0, 0, attributes="75=9 76=0", cuda_version=13000)
LOOKS = OpenFlags.VIEW | OpenFlags.HOLD_JOB

native = pytest.mark.skipif(not built(), reason="the native part is not built")


# a real controller and server


@native
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_who_looks_takes_nothing_and_waits_for_nobody(plane: ControlPlane, channel: str) -> None:
    environment = plane.program_environment(SLUICE_CHANNEL=channel)
    (default,) = looker.look(environment)
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    assert default["name"] == gpu["model"]
    assert 0 < default["total"] < gpu["memory_mib"], "a slice, and not the card"
    (sized,) = looker.look({**environment, "SLUICE_GMEM": "256"})
    assert (sized["total"], sized["used"], sized["processes"]) == (256, 0, {})
    # all that there is, in one program's hands
    whole = plane.program_environment(SLUICE_CHANNEL=channel, SLUICE_GMEM="256", SLUICE_RATIO="100")
    with VgpuUser(whole) as user:
        (own,) = looker.look(environment)
        assert own["uuid"] == user.uuid
        assert list(own["processes"]) == [str(user.pid)]
        assert own["used"] >= 64
        # somebody else sees what he would get once it is free, and does not queue for it
        answer = plane.rest.post("/views", json={"host": "elsewhere", "gmem_mib": 128})
        assert answer.status_code == 200, answer.text
        [idle] = answer.json()["vgpus"]
        assert (idle["idle"], idle["memory_mib"], idle["processes"]) == (True, 128, [])
        assert plane.rest.get("/queue").json()["waiting"] == []
        assert len(plane.grants()) == 1
    wait_for(lambda: not plane.grants())
    assert len(plane.sessions("all")) == 1, "the program's"


@native
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_what_can_never_be_had_is_said(plane: ControlPlane, channel: str) -> None:
    done = looker.run_looker(
        plane.program_environment(SLUICE_CHANNEL=channel, SLUICE_GMEM="99999999"),
        "n.nvmlInit(); print(refused(n.nvmlDeviceGetName, n.nvmlDeviceGetHandleByIndex(0)))",
    )
    assert done.stdout.strip() == "-9"  # NVML_ERROR_DRIVER_NOT_LOADED
    assert "no vGPU can be shown: wanted 99999999 MiB in one vGPU" in done.stderr


@native
def test_views_go_on_while_the_controller_is_away(plane: ControlPlane) -> None:
    environment = plane.program_environment(SLUICE_CHANNEL="shm", SLUICE_GMEM="256")
    with VgpuUser(environment) as user:
        plane.stop("controller")
        (own,) = looker.look(environment)
        assert own["uuid"] == user.uuid, "what runs here its own server knows"
        plane.start_controller()
        plane.stop("server")
        plane.start_server()
        (adopted,) = looker.look(environment)
        assert adopted["uuid"] == user.uuid
        assert list(adopted["processes"]) == [str(user.pid)]


@native
def test_what_is_on_another_node_is_seen_through_the_controller(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with relay_host(plane, tmp_path / "b") as host:
        environment = host.environment(SLUICE_GMEM="256")
        (idle,) = looker.look(environment)
        assert (idle["total"], idle["used"], idle["processes"]) == (256, 0, {})
        assert idle["capability"] == [9, 0], "the other node's word"
        assert not plane.grants()
        with VgpuUser(environment) as user:
            (own,) = looker.look(environment)
            assert own["uuid"] == user.uuid
            assert own["processes"] == {str(user.pid): own["used"]}
            assert own["used"] >= 64
            # on the GPU's node nobody has asked for anything
            (here,) = looker.look(plane.program_environment(SLUICE_CHANNEL="shm"))
            assert here["processes"] == {}
            plane.stop("server")
            (known,) = looker.look(environment)  # what the pool itself knows
            assert known["total"] == 256
            assert known["name"] == own["name"]
            plane.start_server()
    wait_for(lambda: not plane.grants())


# a guest's region


@native
async def test_a_guest_looks_through_its_region(tmp_path: Path) -> None:
    async with guest_host(tmp_path) as host, host.region(OWNER, REQUEST) as path:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            "SLUICE_CHANNEL": "ivshmem",
            "SLUICE_IVSHMEM": str(path),
        }
        assert host.lifecycle.views is not None
        [gpu] = (
            await host.lifecycle.views.of_idle([GrantedVgpu(host.controller.gpu, 256, 25)])
        ).vgpus
        host.controller.viewed = rpc.ViewAnswer(sessions=[rpc.SessionView(vgpus=[gpu])])
        (idle,) = await asyncio.to_thread(looker.look, environment)
        assert (idle["total"], idle["processes"]) == (256, {})
        assert host.controller.looks[0].request.domain_name == "guest"
        assert host.controller.asked == []
        user = await asyncio.to_thread(VgpuUser, environment)
        (own,) = await asyncio.to_thread(looker.look, environment)
        assert own["uuid"] == user.uuid
        assert list(own["processes"]) == [str(user.pid)]
        await asyncio.to_thread(user.__exit__, None, None, None)
        await host.quiet()
        async with asyncio.timeout(60):
            while set(slot_states(path, REQUEST.slots)) != {FREE}:
                await asyncio.sleep(0.02)


# what is bounded


def requester(**fields: Any) -> Requester:
    return Requester("shm", "here", "program", user_domain="1000 a b c", **fields)


class SilentWorker:
    """Says how it stands, until it ends."""

    def __init__(self) -> None:
        self.asked = 0
        self.ended = False

    async def status(self, seconds: float) -> Message:
        del seconds
        self.asked += 1
        await asyncio.sleep(0)
        if self.ended:
            raise WorkerError("it has ended")
        return Message("status", {"vgpu.0.uuid": "GPU-own", "vgpu.0.used_mib": "999999"})


def session(worker: SilentWorker, who: Requester) -> Session:
    vgpus = (GrantedVgpu("GPU-0", 512, 25),)
    log = cast(Any, None)
    return Session("s", "g", "r", vgpus, 0, who, cast(Any, worker), log, opening=False)


@pytest.fixture
def make_views() -> Callable[..., tuple[Views, FakeControllerLink]]:
    def make(*sessions: Session) -> tuple[Views, FakeControllerLink]:
        controller = FakeControllerLink()
        controller.viewed = rpc.ViewAnswer(
            sessions=[rpc.SessionView(vgpus=[rpc.VgpuView(gpu_uuid="GPU-0", memory_mib=64)])]
        )

        async def figures(uuid: str) -> dict[int, int]:
            return {6: 41} if uuid == "GPU-0" else {}

        views = Views(
            "node-a",
            lambda: sessions,
            lambda asked, who: rpc.GrantRequest(vgpu_count=1, program=who.program),
            controller,
            GpusHere(lambda: {"GPU-0": GPU}, figures),
        )
        return views, controller

    return make


def asked(**wanted: Any) -> Any:
    return parse_open_session(pack_open_session(flags=LOOKS, **wanted))


async def test_thousands_of_looks_are_one_question(make_views: Any) -> None:
    views, controller = make_views()
    answers = await asyncio.gather(*(views.answer(asked(), requester()) for _ in range(5000)))
    assert len(set(answers)) == 1
    assert len(controller.looks) == 1
    worker = SilentWorker()
    views, controller = make_views(session(worker, requester()))
    await asyncio.gather(*(views.answer(asked(), requester()) for _ in range(5000)))
    assert (worker.asked, controller.looks) == (1, [])


async def test_a_looker_that_leaves_takes_no_answer_from_others(make_views: Any) -> None:
    views, _ = make_views()
    first, second = (asyncio.create_task(views.answer(asked(), requester())) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert json.loads(await second)["vgpus"]


async def test_what_a_worker_says_is_bounded_and_an_ended_one_left_out(make_views: Any) -> None:
    worker = SilentWorker()
    views, _ = make_views(session(worker, requester(pid=7, own_pid=3)))
    [vgpu] = json.loads(await views.answer(asked(), requester()))["vgpus"]
    assert (vgpu["uuid"], vgpu["used_mib"], vgpu["memory_mib"]) == ("GPU-own", 512, 512)
    assert vgpu["processes"] == [{"pid": 3, "name": "program", "used_mib": 512}]
    assert vgpu["figures"] == "6=41"
    ended = SilentWorker()
    ended.ended = True
    views, controller = make_views(session(ended, requester()))
    [vgpu] = json.loads(await views.answer(asked(), requester()))["vgpus"]
    assert vgpu["idle"], "what it would get again"
    assert len(controller.looks) == 1


async def test_another_user_vm_or_claim_sees_nothing_of_it(make_views: Any) -> None:
    worker = SilentWorker()
    views, controller = make_views(session(worker, requester()))
    others = (
        Requester("shm", "here", "program", user_domain="1001 a b c"),
        Requester("shm", "here", "program", user_domain="1000 a b other"),
        Requester("ivshmem", "guest", "program", domain_uuid="u", domain_name="guest"),
        Requester("shm", "here", "program", pid=1),
    )
    for other in others:
        [vgpu] = json.loads(await views.answer(asked(), other))["vgpus"]
        assert vgpu["idle"]
        assert vgpu["processes"] == []
    assert worker.asked == 0
    assert len(controller.looks) == len(others)


async def test_a_refusal_is_the_controllers(make_views: Any) -> None:
    views, controller = make_views()
    controller.viewed = rpc.ViewAnswer(status=2, message="too large")
    with pytest.raises(RefusalError, match="too large"):
        await views.answer(asked(), requester())


def test_the_text_is_bounded_whatever_there_is() -> None:
    vgpu = rpc.VgpuView(
        uuid="", name="\x1b[31m" * 10, memory_mib=64, figures=dict.fromkeys(range(47), 1 << 63)
    )
    sessions = [rpc.SessionView(session_id=str(n), vgpus=[vgpu] * 64) for n in range(64)]
    processes = {str(n): Process(n, "\x1b]0;title\x07" * 8) for n in range(64)}
    text = view_text(sessions, processes, whose="me")
    assert len(text.encode()) <= frames.MAX_VIEW_BYTES
    assert "\x1b" not in text, "escaped, as JSON has it"
    assert json.loads(text)["vgpus"]


def test_figures_have_the_numbers_of_the_registry() -> None:
    import yaml

    path = Path(__file__).resolve().parents[2] / "native/api/bodies/gpu_figures.yaml"
    values = yaml.safe_load(path.read_text())["enumerations"]["Figure"]["values"]
    numbers = {v if isinstance(v, int) else v["value"] for v in values.values()}
    ours = {view_figures.GPU_UTILIZATION, view_figures.MEMORY_UTILIZATION, view_figures.TEMPERATURE}
    for table, width in ((view_figures.ONE, 1), (view_figures.TWO, 2), (view_figures.FOUR, 4)):
        for first in table:
            ours |= set(range(first, first + width))
    assert ours == numbers
    by_name = {name: v if isinstance(v, int) else v["value"] for name, v in values.items()}
    for name, call in (("power", "PowerUsage"), ("fans", "NumFans"), ("energy", "TotalEnergy")):
        assert call in view_figures.ONE[by_name[name]]
