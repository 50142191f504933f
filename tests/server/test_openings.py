# SPDX-License-Identifier: Apache-2.0
"""An opening that fails at whatever step, or is left by its client, gives back all that it took."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from open_files import count_descriptors

from sluice.config.server import ServerConfig, ServerSection
from sluice.protocol.control import RELAY_RECEIVED, WORKER_RECEIVED
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu, LocalGrant
from sluice.server.sessions.grant_ledgers import LedgerFullError
from sluice.server.sessions.open_session import (
    RefusalError,
    pack_open_session,
    parse_open_session,
)
from sluice.server.sessions.opening import SessionGrant, SessionOpener, SessionRequest
from sluice.server.sessions.records import JobPart, Requester, Session
from sluice.server.sessions.registry import SessionRegistry
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerFiles, WorkerRecord, WorkerStarter
from sluice.server.workers.session_start import (
    ConnectedSocket,
    LedgerSlot,
    RelayStart,
    SessionStart,
    SharedRegion,
    WorkerVgpu,
)
from sluice.server.workers.users import NoUserLeftError, User, WorkerUsers
from sluice.server.workers.worker import WorkerError

VGPUS = (GrantedVgpu("GPU-1", 1024, 25), GrantedVgpu("GPU-2", 2048, 50))
GRANT = SessionGrant(
    LocalGrant("grant", "5e55", "request", VGPUS), JobPart("job", "vm 1", chosen=(1,)), "vision"
)
REQUEST = b"\x01" * 512


class FakeWorker:
    """A worker whose process ends as soon as it is asked to."""

    def __init__(self, log: Path, start: Callable[[], Any]) -> None:
        self.record = WorkerRecord(
            "w1", os.getpid(), 0, "driver", ["GPU-2"], str(log), waits_for_user=True
        )
        self.id = "w1"
        self.why: End | None = None
        self.on_exit: Callable[[Any, End], None] | None = None
        self.starts: list[SessionStart] = []
        self.exits = 0
        self._start = start

    async def start_session(self, start: SessionStart) -> Message:
        self.starts.append(start)
        await self._start()
        return Message("started")

    def follow_sharing(self, take: Callable[[Any], None]) -> None:
        """It shares nothing."""

    def follow_links(self, take: Callable[[Any], None]) -> None:
        """It has no other nodes."""

    def end(self, why: End, grace: float = 2.0) -> None:
        if self.exits:
            return
        self.why, self.exits = why, 1
        if self.on_exit:
            self.on_exit(self, why)


@dataclass
class Host:
    """What an opening takes from, and what the controller hears."""

    folder: Path
    taken: list[list[str]] = field(default_factory=list)
    ends: list[EndCause] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    no_worker: Exception | None = None
    start: Callable[[], Any] = lambda: asyncio.sleep(0)
    is_connected: bool = False

    def __post_init__(self) -> None:
        section = ServerSection(run_dir=self.folder / "run")
        files = WorkerFiles(self.folder / "run")
        self.starter = WorkerStarter(ServerConfig(server=section), files)
        self.starter.cgroups = None
        self.starter.users = WorkerUsers(range(70000, 70010), proc=self.empty("proc"))
        self.registry = SessionRegistry(self, self.starter, None, self.told)  # type: ignore[arg-type]
        log = self.folder / "worker.log"
        log.write_text("ready\n")
        self.worker = FakeWorker(log, lambda: self.start())
        self.opener = SessionOpener(
            self,  # type: ignore[arg-type]
            self.starter,
            self.registry,
            self.folder,
            throttle=True,
            code_cache=None,
        )
        self.gone: list[Session] = []

    def empty(self, name: str) -> Path:
        (self.folder / name).mkdir()
        return self.folder / name

    # the warm workers'
    async def take(self, gpus: Sequence[str]) -> FakeWorker:
        self.taken.append(list(gpus))
        if self.no_worker:
            raise self.no_worker
        return self.worker

    # the controller link's
    def report(self, report: rpc.NodeReport) -> None:
        self.started.append(report.session_started.session_id)

    def report_end(self, session_id: str, grant_id: str, why: End) -> None:
        self.ends.append(why.cause)

    def told(self, session: Session, why: End) -> None:
        self.gone.append(session)

    def users_held(self) -> dict[str, int]:
        return self.starter.users._of_worker

    async def open(self, grant: SessionGrant = GRANT) -> Session:
        pidfd = os.pidfd_open(os.getpid())
        requester = Requester("shm", "host", "program", pid=os.getpid(), pidfd=pidfd)
        asked = parse_open_session(pack_open_session(priority=7))
        request = SessionRequest(asked, requester, SharedRegion(pidfd, 4096))
        try:
            return await self.opener.open(request, grant)
        finally:
            assert requester.pidfd == pidfd, "the listener's stays the listener's"
            os.close(pidfd)


@pytest.fixture
async def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_an_open_session_gives_all_back_when_its_worker_ends(host: Host) -> None:
    before = count_descriptors()
    session = await host.open()
    [start] = host.worker.starts
    assert host.taken == [["GPU-2"]], "the worker sees what the process chose of its job"
    assert start.vgpus == (WorkerVgpu(1, "GPU-2", 2048, 50),)
    assert start.ledger is not None
    assert start.ledger.slot == session.ledger_slot == 0
    assert host.registry.sessions == {"5e55": session}
    assert not session.opening
    assert host.started == ["5e55"]
    assert len(host.users_held()) == len(host.registry.ledgers) == 1
    assert '"opening": false' in (host.folder / "run/workers/w1.json").read_text()
    host.worker.end(End(EndCause.CLIENT_ENDED, "done"))
    assert host.gone == [session]
    assert host.ends == [EndCause.CLIENT_ENDED]
    assert not host.registry.sessions
    assert not host.users_held()
    assert len(host.registry.ledgers) == 0
    assert count_descriptors() == before


def fail(error: BaseException) -> Callable[..., Any]:
    def step(*_: Any, **__: Any) -> Any:
        raise error

    return step


async def refuse() -> None:
    raise WorkerError("it has no such GPU")


#: What fails: who is asked, and how the failure comes about.
FAILING: dict[str, Callable[[Host, pytest.MonkeyPatch], None]] = {
    "no worker": lambda host, _: setattr(host, "no_worker", WorkerError("no worker")),
    "no log": lambda host, patch: patch.setattr(
        "sluice.server.sessions.opening.SessionLog.take_over", fail(OSError(28, "disk full"))
    ),
    "no ledger": lambda host, patch: patch.setattr(
        host.registry.ledgers, "join", fail(LedgerFullError("full"))
    ),
    "no user": lambda host, patch: patch.setattr(
        host.starter.users, "_free", fail(NoUserLeftError("no user left"))
    ),
    "not followed": lambda host, patch: patch.setattr(
        host.registry.sharing, "join", fail(OSError(24, "too many"))
    ),
    "not recorded": lambda host, patch: patch.setattr(
        host.starter.files, "write", fail(OSError(28, "disk full"))
    ),
    "not started": lambda host, _: setattr(host, "start", refuse),
    "not recorded as open": lambda host, patch: patch.setattr(
        host.registry, "opened", fail(OSError(28, "disk full"))
    ),
}


@pytest.mark.parametrize("step", FAILING)
async def test_whichever_step_fails_everything_comes_back(
    host: Host, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = count_descriptors()
    FAILING[step](host, monkeypatch)
    with pytest.raises(RefusalError, match="session 5e55 did not start: ") as refusal:
        await host.open()
    assert refusal.value.status
    assert host.worker.exits == (step != "no worker")
    assert not host.registry.sessions
    assert not host.users_held()
    assert len(host.registry.ledgers) == 0
    assert host.started == []
    assert EndCause.WITHDRAWN not in host.ends
    assert count_descriptors() == before


async def test_a_mistake_of_ours_is_undone_and_not_hidden(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = count_descriptors()
    monkeypatch.setattr(host.registry, "opened", fail(KeyError("no such key")))
    with pytest.raises(KeyError):
        await host.open()
    assert host.ends == [EndCause.NOT_TAKEN]
    assert not host.registry.sessions
    assert count_descriptors() == before


async def test_a_client_that_leaves_meanwhile_takes_everything_back(host: Host) -> None:
    before = count_descriptors()
    asked = asyncio.Event()

    async def never() -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    host.start = never
    opening = asyncio.create_task(host.open())
    await asked.wait()
    assert host.registry.sessions["5e55"].opening
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert host.ends == [EndCause.WITHDRAWN]
    assert not host.registry.sessions
    assert not host.users_held()
    assert len(host.registry.ledgers) == 0
    assert count_descriptors() == before


async def test_a_place_that_the_job_does_not_have_is_refused_before_anything_is_taken(
    host: Host,
) -> None:
    wrong = replace(GRANT, part=JobPart("job", "vm 1", chosen=(2,)))
    with pytest.raises(RefusalError, match="chooses vGPU 2 of its job, which has 2"):
        await host.open(wrong)
    assert host.taken == []


VGPU = WorkerVgpu(3, "GPU-1", 1024, 25)
STARTS = {
    "shm": SessionStart("5e55", "g", "shm", SharedRegion(5, 4096), REQUEST, (VGPU,)),
    "ivshmem": SessionStart(
        *("5e55", "g", "ivshmem", SharedRegion(5, 4096, slot=3, slots=4, region_id="r"), REQUEST),
        (VGPU, VGPU),
        ledger=LedgerSlot(6, 9),
        user=User(70000, 70001, own=True),
        grant_vgpus=2,
        client_pidfd=7,
    ),
    "tcp": SessionStart(
        *("5e55", "g", "tcp"),
        ConnectedSocket(5, {"tls": "TLS_AES_128_GCM_SHA256", "tls_in": "00", "tls_out": "ff"}),
        REQUEST,
        (VGPU,),
        code=(("code", 6), ("shared_code", 7)),
    ),
}


@pytest.mark.parametrize("channel", STARTS)
def test_what_a_worker_is_told_is_what_the_protocol_says(channel: str) -> None:
    start = STARTS[channel]
    spec = WORKER_RECEIVED["session"]
    assert spec.fault(start.message.fields) == ""
    known = {each.name for each in spec.fields}
    places = {f"vgpu.{n}.{each.name}" for n in range(len(start.vgpus)) for each in spec.each}
    assert set(start.message.fields) <= known | places, "nothing is said that nobody reads"
    names = [name for name, _ in start.descriptors]
    assert start.message.get("descriptors") == ",".join(names)
    assert names[0] == ("socket" if channel == "tcp" else "region")
    assert start.message.get("vgpu.0.place") == "3"


def test_what_a_relay_is_told_is_what_the_protocol_says() -> None:
    start = RelayStart(
        *("5e55", "g", "ivshmem", SharedRegion(5, 4096, slot=1, slots=2, region_id="r"), REQUEST),
        node="node-a",
        address="10.0.0.1",
        port=9960,
        tls=True,
        ca=8,
        client_pidfd=7,
    )
    spec = RELAY_RECEIVED["session"]
    assert spec.fault(start.message.fields) == ""
    assert set(start.message.fields) <= {each.name for each in spec.fields}
    assert start.message.get("descriptors") == "region,client_pidfd,ca"
    assert (start.message.get("tls"), start.message.get("tls_name")) == ("1", "node-a")
