# SPDX-License-Identifier: Apache-2.0
"""Guests' regions: what a domain may ask for, and what its end, pause and silence lead to.

The doorbell is a FakeDoorbell here, and the workers FakeWorkers behind the real server classes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from control_plane import make_fake_native
from ends import DONE
from fake_controller_link import FakeControllerLink

from sluice.config.server import ServerConfig
from sluice.config.server_projects import ProjectsSection
from sluice.hypervisor.ports import RegionKeeper, RegionOwner
from sluice.hypervisor.request import DomainRequest
from sluice.resources.ends import End, EndCause
from sluice.server.gpus.discovery import Driver
from sluice.server.guests.doorbell import Doorbell
from sluice.server.guests.regions import Regions
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.open_session import pack_open_session
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.warm import WarmWorkers

OWNER = RegionOwner("11111111-2222-3333-4444-555555555555", "guest")
REQUEST = DomainRequest(
    memory_mib=1024, compute_percent=50, count=1, region_mib=64, slots=4, priority=2
)


@dataclass
class FakeDoorbell(Doorbell):
    """Remembers what it was told and asked."""

    told: list[Message] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    connected: bool = True

    @property
    def is_connected(self) -> bool:
        return self.connected

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self.told.append(message)
        self.descriptors += [os.fstat(each).st_ino for each in descriptors]

    async def ask(self, message: Message, expected: str) -> Message:
        self.told.append(message)
        return Message(expected)

    def verbs(self, verb: str) -> list[Message]:
        return [message for message in self.told if message.verb == verb]


@dataclass
class Host:
    """A server's inner parts around one region."""

    regions: Regions
    lifecycle: SessionLifecycle
    doorbell: FakeDoorbell
    controller: FakeControllerLink
    path: Path

    async def open(self, slot: int = 0, **asked_for: Any) -> None:
        request = pack_open_session(program="in-guest", **asked_for).hex()
        self.regions.doorbell_said(
            Message("open", {"id": OWNER.uuid, "slot": str(slot), "request": request})
        )

    def says(self, verb: str, slot: int = 0, **fields: Any) -> None:
        values = {key: str(value) for key, value in fields.items()}
        self.regions.doorbell_said(Message(verb, {"id": OWNER.uuid, "slot": str(slot), **values}))

    async def until(self, what: Callable[[], Any]) -> Any:
        for _ in range(500):
            if result := what():
                return result
            await asyncio.sleep(0.01)
        pytest.fail("not within 5 s")


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setenv("SLUICE_NATIVE_DIR", str(make_fake_native(tmp_path / "native")))
    config = ServerConfig()
    starter = WorkerStarter(config, WorkerFiles(tmp_path / "run"))
    workers = WarmWorkers(
        starter, Driver("none", software=True), tmp_path / "log", per_gpu=0, start_seconds=10
    )
    controller = FakeControllerLink()
    projects = ProjectsSection.model_validate(
        {"vms": "guest=vision nlp", "labels": "vm:guest=team-a", "users": "0=speech"}
    )
    lifecycle = SessionLifecycle(
        "node-a", controller, workers, starter, tmp_path / "log", accounts=Accounts(projects)
    )
    regions = Regions(lifecycle, silent_seconds=300)
    keeper: RegionKeeper = regions  # what the hypervisor part relies on
    doorbell = FakeDoorbell()
    regions.use_doorbell(doorbell)
    path = tmp_path / "region"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(REQUEST.region_bytes)
    await keeper.add_region(OWNER.uuid, path, OWNER, REQUEST)
    yield Host(regions, lifecycle, doorbell, controller, path)
    await keeper.remove_region(OWNER.uuid, "the test is over")
    assert lifecycle.sessions == {}


async def test_a_region_is_watched_as_its_domain_asked(host: Host) -> None:
    [watch] = host.doorbell.verbs("watch")
    assert watch.fields["path"] == str(host.path)
    assert (watch.fields["slots"], watch.fields["region_bytes"]) == ("4", str(64 << 20))
    await host.regions.add_region(OWNER.uuid, host.path, OWNER, REQUEST)
    assert len(host.doorbell.verbs("watch")) == 1, "once is enough"
    host.regions.doorbell_connected()
    await host.until(lambda: len(host.doorbell.verbs("watch")) == 2)


async def test_every_doorbell_is_told_of_the_devices_bell(host: Host) -> None:
    bells = [os.open(host.path, os.O_RDONLY), os.open("/", os.O_RDONLY)]
    files = [os.fstat(bell).st_ino for bell in bells]
    for bell in bells:  # the guest was started twice
        host.regions.set_device_bell(OWNER.uuid, bell)
        os.close(bell)
    assert host.doorbell.descriptors == files
    assert [bell.get("device") for bell in host.doorbell.verbs("bell")] == ["yes", "yes"]
    host.regions.doorbell_connected()
    await host.until(lambda: len(host.doorbell.verbs("bell")) == 3)
    assert host.doorbell.descriptors == [*files, files[-1]]
    host.regions.set_device_bell("of nobody", 0)
    assert len(host.doorbell.verbs("bell")) == 3


async def test_the_domains_figures_are_the_default(host: Host) -> None:
    await host.open(slot=2)
    await host.until(lambda: host.lifecycle.sessions)
    [asked] = host.controller.asked
    assert (asked.vgpu_count, asked.memory_mib, asked.compute_percent) == (1, 1024, 50)
    assert (asked.priority, asked.channel) == (2, "ivshmem")
    assert (asked.domain_uuid, asked.domain_name) == (OWNER.uuid, "guest")
    [session] = host.lifecycle.sessions.values()
    assert (session.requester.region_id, session.requester.slot) == (OWNER.uuid, 2)
    assert [m.get("message") for m in host.doorbell.verbs("wait")] == ["sluice: waiting"]


@pytest.mark.parametrize(
    ("asked_for", "message"),
    [
        ({"gmem_mib": 1025}, "wanted 1025 MiB; domain guest was given 1024"),
        ({"ratio_percent": 51}, "wanted 51 % of a GPU; domain guest was given 50"),
        ({"vgpu_count": 2}, "wanted 2 vGPUs; domain guest was given 1"),
        ({"magic": 1}, "not a Sluice client"),
    ],
)
async def test_a_guest_gets_no_more_than_its_domain_was_given(
    host: Host, asked_for: dict[str, Any], message: str
) -> None:
    await host.open(**asked_for)
    [refusal] = await host.until(lambda: host.doorbell.verbs("refuse"))
    assert message in refusal.fields["message"]
    assert host.controller.asked == []


async def test_a_guest_cannot_raise_its_priority(host: Host) -> None:
    await host.open(priority=99)
    await host.until(lambda: host.controller.asked)
    assert host.controller.asked[0].priority == 2
    await host.until(lambda: host.lifecycle.sessions)


async def test_a_guest_works_for_its_domains_projects_and_no_others(host: Host) -> None:
    await host.open(slot=0)
    await host.open(slot=1, request_lines=["project=nlp", "gpu_model=h200"])
    await host.until(lambda: len(host.lifecycle.sessions) == 2)
    asked = {request.project: request for request in host.controller.asked}
    assert asked.keys() == {"vision", "nlp"}
    assert asked["nlp"].gpu_model == "h200"
    assert {request.owner_label for request in asked.values()} == {"team-a"}
    await host.open(slot=2, request_lines=["project=speech"])
    [refusal] = await host.until(lambda: host.doorbell.verbs("refuse"))
    assert refusal.get("status") == "800"
    assert "who may use vision, nlp" in refusal.get("message")
    assert len(host.controller.asked) == 2


async def test_a_slot_is_released_after_its_worker_has_ended(host: Host) -> None:
    await host.open(slot=1)
    await host.until(lambda: [s for s in host.lifecycle.sessions.values() if not s.opening])
    host.says("closed", slot=1, reason="the client closed it")
    assert host.doorbell.verbs("release") == []
    await host.until(lambda: host.doorbell.verbs("release"))
    assert host.lifecycle.sessions == {}
    ended = [r.session_ended for r in host.controller.reports if r.HasField("session_ended")]
    assert [e.reason for e in ended] == ["the client closed it"]


async def test_a_repeated_open_is_served_once(host: Host) -> None:
    for _ in range(5):
        await host.open()
    await host.until(lambda: host.lifecycle.sessions)
    assert len(host.controller.asked) == 1


async def test_a_slot_that_is_closed_before_it_is_open_is_released(host: Host) -> None:
    await host.open()
    host.says("closed")
    await host.until(lambda: host.doorbell.verbs("release"))
    assert host.lifecycle.sessions == {}
    await host.open()
    await host.until(lambda: host.lifecycle.sessions)


async def test_a_stopped_domain_ends_all_its_sessions(host: Host) -> None:
    for slot in range(3):
        await host.open(slot=slot)
    await host.until(lambda: len(host.lifecycle.sessions) == 3)
    await host.regions.domain_stopped(OWNER.uuid, "the VM was destroyed")
    assert host.lifecycle.sessions == {}
    assert sorted(m.fields["slot"] for m in host.doorbell.verbs("release")) == [
        "0",
        "1",
        "2",
        "3",
    ], "the unused one too"


async def test_a_stopped_domains_region_begins_anew(host: Host) -> None:
    with host.path.open("r+b") as file:
        file.write(b"\xff" * 64)
    await host.regions.domain_stopped(OWNER.uuid, "the VM rebooted")
    with host.path.open("rb") as file:
        # the mark is gone, so that the doorbell writes a new header; the generation it counts stays
        assert file.read(64) == bytes(8) + b"\xff" * 56
    assert [m.get("slot") for m in host.doorbell.verbs("release")] == ["0", "1", "2", "3"]


async def test_what_the_doorbell_could_not_hear_it_is_told_when_it_is_back(host: Host) -> None:
    host.doorbell.connected = False
    await host.regions.domain_stopped(OWNER.uuid, "the VM is off")
    assert host.doorbell.verbs("release") == []
    host.doorbell.connected = True
    host.regions.doorbell_connected()
    await host.until(lambda: len(host.doorbell.verbs("release")) == 4)
    assert [m.verb for m in host.doorbell.told].index("release") > 0, "watched first"
    host.regions.doorbell_connected()
    await asyncio.sleep(0.1)
    assert len(host.doorbell.verbs("release")) == 4, "once"


async def test_who_uses_a_channel_is_said_by_name(host: Host) -> None:
    assert host.regions.programs(OWNER.uuid) == []
    await host.open()
    await host.until(
        lambda: host.lifecycle.sessions and not host.regions._regions[OWNER.uuid].opening
    )
    assert host.regions.programs(OWNER.uuid) == ["in-guest in domain guest slot 0 has a session"]
    assert host.regions.programs("22222222-2222-2222-2222-222222222222") == []


async def test_silence_ends_a_session_only_when_long_and_not_paused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.open()
    await host.until(lambda: host.lifecycle.sessions)
    [session] = host.lifecycle.sessions.values()
    ended: list[End] = []
    monkeypatch.setattr(host.lifecycle, "end", lambda _, why: ended.append(why))
    host.says("silent", seconds=120)
    await host.regions.domain_paused(OWNER.uuid)
    host.says("silent", seconds=400)
    await host.regions.domain_resumed(OWNER.uuid)
    host.says("silent", seconds=400)
    assert ended == [], "the silence was the pause's"
    monkeypatch.setattr(host.regions._regions[OWNER.uuid], "resumed", -1e6)
    host.says("silent", seconds=400)
    assert ended == [End(EndCause.CLIENT_LOST, "the guest was silent for 400 s")]
    monkeypatch.undo()
    host.lifecycle.end(session, DONE)


async def test_a_guests_nonsense_is_survived(host: Host) -> None:
    for fields in ({"slot": "99"}, {"slot": "-1"}, {"slot": "x"}, {}, {"slot": "0"}):
        for verb in ("open", "closed", "silent", "nonsense"):
            host.regions.doorbell_said(Message(verb, {"id": OWNER.uuid, **fields}))
            host.regions.doorbell_said(Message(verb, {"id": "nobody's", **fields}))
    await host.until(lambda: host.doorbell.verbs("release"))
    host.says("open", request="zz")
    await host.until(lambda: host.doorbell.verbs("refuse"))
    assert host.lifecycle.sessions == {}
