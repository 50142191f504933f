# SPDX-License-Identifier: Apache-2.0
"""What a server tells the controller of VMs that are paused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pydantic import ValidationError

from sluice.config.server import ServerConfig
from sluice.rpc import pool_pb2 as rpc
from sluice.server.guests import standing
from sluice.server.guests.standing import GuestStandings

VM, OTHER = "11111111-2222-3333-4444-555555555555", "another"


@dataclass
class FakeRequester:
    domain_uuid: str


@dataclass
class FakeSession:
    grant_id: str
    requester: FakeRequester


@dataclass
class Told:
    said: list[tuple[str, bool]] = field(default_factory=list)

    def report(self, report: rpc.NodeReport) -> None:
        self.said.append((report.guest_standing.grant_id, report.guest_standing.paused))

    async def take(self) -> list[tuple[str, bool]]:
        await asyncio.sleep(0.05)
        said, self.said = sorted(self.said), []
        return said


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "SETTLE_SECONDS", 0.0)


def make(*, suspends: bool) -> tuple[GuestStandings, Told, dict[str, Any]]:
    sessions: dict[str, Any] = {
        "s": FakeSession("grant", FakeRequester(VM)),
        "t": FakeSession("others", FakeRequester(OTHER)),
        "u": FakeSession("of-a-process", FakeRequester("")),
    }
    told = Told()
    return GuestStandings(cast(Any, sessions), told.report, suspends=suspends), told, sessions


async def test_a_pause_and_its_end_are_told_once() -> None:
    standings, told, _ = make(suspends=True)
    standings.known(VM)
    standings.paused(VM)  # as a server that begins finds it: never as one that runs
    assert await told.take() == [("grant", True)]
    standings.known(VM)
    assert await told.take() == []
    standings.resumed(VM)
    assert await told.take() == [("grant", False)]
    standings.known(OTHER)
    assert await told.take() == [("others", False)], "an earlier server may have told of a pause"


async def test_all_is_told_to_a_controller_that_is_new() -> None:
    standings, told, sessions = make(suspends=True)
    standings.known(VM)
    standings.paused(VM)
    await told.take()
    standings.tell_again()
    assert await told.take() == [("grant", True)]
    sessions["v"] = FakeSession("later", FakeRequester(VM))
    standings.session_opened(sessions["v"])
    assert await told.take() == [("later", True)]
    standings.forget(VM)
    standings.tell_again()
    assert await told.take() == []


async def test_where_they_are_kept_every_vm_runs() -> None:
    standings, told, _ = make(suspends=False)
    standings.known(VM)
    standings.paused(VM)
    assert await told.take() == [("grant", False)], "an earlier server may have suspended it"


def test_the_setting_needs_host_memory() -> None:
    with pytest.raises(ValidationError, match="swap_mib"):
        ServerConfig.model_validate({"suspend": {"on_pause": "suspend"}})
    with pytest.raises(ValidationError, match="on_pause"):
        ServerConfig.model_validate({"suspend": {"swap_mib": 1, "on_pause": "save"}})
    made = ServerConfig.model_validate({"suspend": {"swap_mib": 1, "on_pause": "suspend"}})
    assert made.suspend.on_pause == "suspend"
