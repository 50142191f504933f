# SPDX-License-Identifier: Apache-2.0
"""What is done in the console is REST's: who may, lost updates, the audit trail, sent twice."""

from __future__ import annotations

import pytest

from sluice.console.actions import ACTIONS
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspensionState,
)
from sluice.controller.pool.model import GpuKey, GpuMode
from sluice.resources.suspended_contexts import ContextPlace
from tests.console.place import Place

GPU = "node-a:node-a-gpu0"
KEY = GpuKey("node-a", "node-a-gpu0")


async def test_a_node_is_drained_and_returned_and_the_trail_says_by_whom(place: Place) -> None:
    place.node()
    browser = await place.signed_in("operator")
    page = await browser.get("/do", action="node.drain", target="node-a")
    assert "Nothing new is placed on its 2 GPUs." in page.text
    done = await browser.act("node.drain", "node-a")
    assert done.headers["location"] == "/console/node?name=node-a&done=node.drain"
    assert place.pool.nodes["node-a"].drained
    shown = await browser.get("/node", name="node-a", done="node.drain")
    assert "The node takes nothing new." in shown.text
    assert "action=node.return" in shown.text
    await browser.act("node.return", "node-a")
    assert not place.pool.nodes["node-a"].drained
    line = next(each for each in await place.audit() if "audit.put" in each)
    assert line.startswith(f"audit.put {place.ids['operator']} PUT /v1/nodes/node-a/drain: 200")
    assert "(operator) from 10.0.0.9, by the console" in line


async def test_a_gpu_is_drained_and_returned(place: Place) -> None:
    place.node()
    await place.granted()
    browser = await place.signed_in("operator")
    page = await browser.get("/do", action="gpu.drain", target=GPU)
    assert "On it now: 1 grant, of vision." in page.text
    assert (await browser.act("gpu.drain", GPU)).status_code == 303
    assert place.pool.mode(KEY) is GpuMode.DRAINING
    assert "waits for 1 grant(s) to end" in (await browser.get("/gpu", id=GPU)).text
    assert (await browser.act("gpu.return", GPU)).status_code == 303
    assert place.pool.mode(KEY) is GpuMode.POOLED
    assert (await browser.act("gpu.drain", GPU, preempt="1")).status_code == 303
    assert [g.ending for g in place.pool.grants_live_on_gpu(KEY)] == [
        "the operator takes GPU node-a-gpu0 out of the pool"
    ]


async def test_a_tenant_ends_its_grant_and_nobody_elses(place: Place) -> None:
    place.node()
    own, other = await place.granted("vision"), await place.granted("speech")
    browser = await place.signed_in("tenant")
    page = await browser.get("/do", action="grant.end", target=own.grant.id)
    assert "Ended at once: 1 session of project vision (train.py)." in page.text
    assert (await browser.act("grant.end", own.grant.id)).status_code == 303
    assert own.grant.end
    for target in (other.grant.id, "no-such-grant"):
        assert (await browser.get("/do", action="grant.end", target=target)).status_code == 403
        form = {**await place_form(place, "grant.end", own.grant.id, browser), "target": target}
        assert (await browser.post("/do", form)).status_code == 404
    assert not other.grant.end


async def test_a_grant_is_suspended_and_resumed(place: Place) -> None:
    place.node()
    granted = await place.granted()
    grant = granted.grant
    browser = await place.signed_in("operator")
    place.pool.lifecycle.session_started(granted.session.id, 7, "shm")
    refused = await browser.act("grant.suspend", grant.id)
    assert "swap_mib" in refused.text, "its node has no host memory for it"
    place.pool.nodes["node-a"].swap_mib = 4000
    page = await browser.get("/do", action="grant.suspend", target=grant.id)
    assert "of project vision, stand still until it is resumed" in page.text
    assert (await browser.act("grant.suspend", grant.id)).status_code == 303
    assert grant.suspension is SuspensionState.SUSPENDING
    off = SuspendedContexts(ContextPlace.OFF, mib=(4,))
    away = ReportedSuspension(grant.id, suspended=True, staying_mib=(7,), contexts=off)
    await place.grants.step(lambda: place.pool.lifecycle.suspension("node-a", away))
    shown = (await browser.get("/grant", id=grant.id)).text
    assert "Suspended: suspended by the operator." in shown
    assert "Its CUDA contexts have left its GPUs, too." in shown
    assert "action=grant.resume" in shown
    assert "action=grant.suspend" not in shown
    page = await browser.get("/do", action="grant.resume", target=grant.id)
    assert "room on its GPUs for 1 vGPU with" in page.text
    assert (await browser.act("grant.resume", grant.id)).status_code == 303
    assert grant.suspension is SuspensionState.RESUMING


async def place_form(place: Place, action: str, target: str, browser: object) -> dict[str, str]:
    """A form of this browser's session, for any action."""
    from tests.console.place import Browser, fields_of

    assert isinstance(browser, Browser)
    page = await browser.get("/grants")
    return {**fields_of(page.text, "/console/sign-out"), "action": action, "target": target}


@pytest.mark.parametrize("who", ["viewer", "tenant"])
@pytest.mark.parametrize("action", sorted(set(ACTIONS) - {"grant.end", "session.end"}))
async def test_who_may_not_is_refused_by_rest_and_written_down(
    place: Place, who: str, action: str
) -> None:
    place.node()
    browser = await place.signed_in(who)
    kind = action.partition(".")[0]
    target = {"node": "node-a", "gpu": GPU}.get(kind, "x")
    assert (await browser.get("/do", action=action, target=target)).status_code == 403
    form = await place_form(place, action, target, browser)
    more = {"owner_kind": "project", "owner": "vision", "count": "1"}
    assert (await browser.post("/do", {**form, **more})).status_code == 403
    assert not place.pool.nodes["node-a"].drained
    assert not place.pool.switches
    assert not place.pool.reservations
    assert not place.pool.quotas.limits
    assert any(f"audit.denied {place.ids[who]}" in line for line in await place.audit())


@pytest.mark.parametrize("what", ["node", "grant", "gpu", "quota", "reservation"])
async def test_what_changed_since_the_page_was_read_is_not_overwritten(
    place: Place, what: str
) -> None:
    place.node()
    granted = await place.granted()
    first, second = await place.signed_in("operator"), await place.signed_in("admin")
    await first.act("reservation.create", owner="vision", memory_mib="500", compute_percent="5")
    reservation = next(iter(place.pool.reservations))
    action, target, fields = {
        "node": ("node.drain", "node-a", {}),
        "grant": ("grant.end", granted.grant.id, {}),
        "gpu": ("gpu.drain", GPU, {}),
        "quota": ("quota.set", "vision", {"vgpus": "3"}),
        "reservation": ("reservation.resize", reservation, {"count": "2"}),
    }[what]
    stale = {**await first.form(action, target), **fields}
    if what == "grant":
        granted.grant.generation += 1  # a resize that another operator made
    else:
        more = {"vgpus": "9"} if what == "quota" else fields
        assert (await second.act(action, target, **more)).status_code == 303
    refused = await first.post("/do", stale)
    assert refused.status_code == 412
    assert "read it again and decide anew" in refused.text
    fresh = await first.form(action, target)
    assert fresh["generation"] != stale["generation"]
    if what == "quota":
        assert place.pool.quotas.limits["vision"].vgpus == 9


async def test_a_reservation_is_made_once_however_often_the_form_is_sent(place: Place) -> None:
    place.node()
    browser = await place.signed_in("operator")
    form = await browser.form("reservation.create")
    form |= {"owner": "vision", "memory_mib": "500", "compute_percent": "5"}
    assert (await browser.post("/do", form)).status_code == 303
    assert (await browser.post("/do", form)).status_code == 303
    assert len(place.pool.reservations) == 1
    reservation = next(iter(place.pool.reservations))
    page = await browser.get("/reservation", id=reservation)
    assert "held" in page.text
    await browser.act("reservation.resize", reservation, count="2")
    assert place.pool.reservations[reservation].count == 2
    await browser.act("reservation.end", reservation)
    assert "deleted by the operator" in (await browser.get("/reservation", id=reservation)).text


async def test_what_rest_refuses_is_said_where_it_was_asked_for(place: Place) -> None:
    place.node()
    browser = await place.signed_in("operator")
    refused = await browser.act("reservation.create", owner="<b>", memory_mib="500")
    assert refused.status_code == 422
    assert "Not done." in refused.text
    assert 'value="500"' in refused.text, "what was written stands there again"
    refused = await browser.act("reservation.create", owner="vision", memory_mib="99999")
    assert refused.status_code == 409
    refused = await browser.act("reservation.create", owner="vision", memory_mib="many")
    assert refused.status_code == 422
    assert "write a whole number" in refused.text
    refused = await browser.act("gpu.check", GPU)
    assert refused.status_code == 503 or refused.status_code == 409
    assert not place.pool.reservations


async def test_a_quota_is_set(place: Place) -> None:
    place.node()
    await place.granted("vision")
    browser = await place.signed_in("operator")
    await browser.act("quota.set", "vision", vgpus="4", memory_mib="4000", max_priority="7")
    quota = place.pool.quotas.limits["vision"]
    assert (quota.vgpus, quota.memory_mib, quota.max_priority) == (4, 4000, 7)
    page = (await browser.get("/project", name="vision")).text
    assert "of 4,000 MiB" in page


async def test_the_audit_page_shows_the_console_itself(place: Place) -> None:
    place.node()
    await (await place.signed_in("operator")).act("node.drain", "node-a")
    page = (await (await place.signed_in("admin")).get("/audit")).text
    assert "PUT /v1/nodes/node-a/drain: 200" in page
    assert "signed in to the console" in page
