# SPDX-License-Identifier: Apache-2.0
"""What many VMs ask of the controller at a time is put together; each is answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane

from sluice.config.vsphere import ControllerSection
from sluice.hypervisor.vsphere.batched_calls import MOST_ITEMS, BatchedCalls
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.errors import ControllerRefused, Unreachable
from sluice.pool_client.access import Access

pytestmark = pytest.mark.control_plane(shared=True, fake=True, auth={"requests_per_second": 0})


@pytest.fixture
async def line(plane: ControlPlane) -> AsyncIterator[ControllerLine]:
    made = ControllerLine(
        ControllerSection(addresses=[f"127.0.0.1:{plane.rest_port}"], token_file=None)
    )
    yield made
    await made.close()


def wanted(owner: str, memory_mib: int = 1) -> dict[str, Any]:
    sizes = {"memory_mib": memory_mib, "compute_percent": 1}
    return {"owner_kind": "vm", "owner": owner, **sizes, "wait": True, "origin": "calls"}


async def test_as_few_calls_as_it_takes(plane: ControlPlane, line: ControllerLine) -> None:
    calls = BatchedCalls(line, "reservation")
    asked = [calls.ask("create", **wanted(f"vm-{n}")) for n in range(MOST_ITEMS + 1)]
    made = await asyncio.gather(*asked)
    assert line.calls == 2
    assert [each["owner"] for each in made] == [f"vm-{n}" for n in range(MOST_ITEMS + 1)]
    gone = await asyncio.gather(*(calls.remove("end", each["id"]) for each in made))
    assert (line.calls, set(gone)) == (4, {True})
    assert await calls.remove("end", made[0]["id"]) is False
    assert await calls.remove("end", "nobody") is False


async def test_a_refusal_is_the_error_of_who_asked(line: ControllerLine) -> None:
    calls = BatchedCalls(line, "reservation")
    one, large, wrong, two = await asyncio.gather(
        calls.ask("create", **wanted("one")),
        calls.ask("create", **wanted("large", 2**31 - 1)),
        calls.ask("create", **wanted("wrong name")),
        calls.ask("create", **wanted("two")),
        return_exceptions=True,
    )
    assert line.calls == 1
    assert isinstance(large, ControllerRefused)
    assert (large.status, "could not give that" in str(large)) == (409, True)
    assert isinstance(wrong, ControllerRefused)
    assert (wrong.status, "items.2.owner" in str(wrong)) == (422, True)
    for made in (one, two):
        assert isinstance(made, dict)
        assert await calls.remove("end", made["id"])


async def test_room_is_given_back_before_it_is_asked_for(line: ControllerLine) -> None:
    calls = BatchedCalls(line, "reservation")
    most = {**wanted("most"), "compute_percent": 100}
    first = await calls.ask("create", **most)
    second, _ = await asyncio.gather(
        calls.ask("create", **{**most, "owner": "next", "wait": False}),
        calls.remove("end", first["id"]),
    )
    assert second["state"] == "held"
    assert await calls.remove("end", second["id"])


async def test_who_waits_behind_a_call_without_an_answer_fails_unsent(
    plane: ControlPlane, line: ControllerLine
) -> None:
    plane.stop("controller")
    calls = BatchedCalls(line, "reservation")
    asked = (calls.ask("create", **wanted(f"vm-{n}")) for n in range(3 * MOST_ITEMS))
    failed = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(each) for each in failed} == {Unreachable}
    assert line.calls == 1
    plane.start_controller()
    assert (await calls.ask("create", **wanted("after")))["owner"] == "after"


async def test_a_leader_that_goes_takes_no_part_of_the_question_with_it(
    line: ControllerLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its origin a list would be everybody's, and an adapter ends what is no VM's."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "follower":
            where = str(request.url.copy_with(host="leader"))
            return httpx.Response(307, headers={"location": where})
        if request.url.host == "leader":
            raise httpx.ConnectError("it has just gone", request=request)
        asked.append(str(request.url))
        return httpx.Response(200, json={"reservations": []})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(line, "_client", client)
    monkeypatch.setattr(line, "access", Access(["follower", "successor"]))
    assert await line.every("/reservations", "reservations", origin="mine") == []
    assert asked == ["http://successor/v1/reservations?limit=1000&origin=mine"]
