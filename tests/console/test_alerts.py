# SPDX-License-Identifier: Apache-2.0
"""Alerts on the console and by REST: what fires, what fired, for whom."""

from __future__ import annotations

from sluice.controller.pool.model import GpuKey
from tests.console.place import Place

KEY = GpuKey("node-a", "node-a-gpu0")
HOSTILE = "<script>alert(1)</script>"


async def fault(place: Place, text: str) -> None:
    await place.grants.step(lambda: place.pool.membership.gpu_condition(KEY, text, "", ""))
    await place.alerts.look()


async def test_what_fires_and_what_fired_is_shown_and_hostile_words_are_text(place: Place) -> None:
    place.node()
    viewer = await place.signed_in("viewer")
    assert "Nothing fires." in (await viewer.get("/alerts")).text
    await fault(place, HOSTILE)
    page = (await viewer.get("/alerts")).text
    assert "gpu-faulty" in page
    assert "/console/gpu?id=node-a%3Anode-a-gpu0" in page
    assert HOSTILE not in page
    assert "fires</span>" in page
    part = await viewer.client.get("/console/alerts", headers={"HX-Request": "true"})
    assert "<html" not in part.text
    headers = {"Authorization": f"Bearer {place.secrets['viewer']}"}
    [alert] = (await viewer.client.get("/v1/alerts", headers=headers)).json()["alerts"]
    assert (alert["rule"], alert["subject"]) == ("gpu-faulty", str(KEY))


async def test_a_tenant_sees_none_of_it(place: Place) -> None:
    place.node()
    await fault(place, "XID 79")
    tenant = await place.signed_in("tenant")
    assert (await tenant.get("/alerts")).status_code == 404
    headers = {"Authorization": f"Bearer {place.secrets['tenant']}"}
    assert (await tenant.client.get("/v1/alerts", headers=headers)).status_code == 403
    events = await tenant.client.get("/v1/events?kind=alert.", headers=headers)
    assert not events.json()["events"]
    assert (await place.browser().get("/alerts")).status_code == 303


async def test_a_long_history_comes_in_pages(place: Place) -> None:
    place.node()

    def lines() -> object:
        from sluice.controller.pool.decisions import Decisions

        for number in range(60):
            place.pool.note("alert.firing", f"gpu-faulty n{number}", f"fault {number}")
        return Decisions()

    await place.grants.step(lines)  # type: ignore[arg-type]
    viewer = await place.signed_in("viewer")
    first = (await viewer.get("/alerts")).text
    assert first.count("fires</span>") == 50
    older = first.split("alerts?before=")[1].split('"')[0]
    second = (await viewer.get("/alerts", before=older)).text
    assert second.count("fires</span>") == 10
    assert (await viewer.get("/alerts", before="0")).status_code == 422
