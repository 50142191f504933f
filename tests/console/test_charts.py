# SPDX-License-Identifier: Apache-2.0
"""Figures over time: who sees whose, what the table says, and what is said where there are none."""

from __future__ import annotations

import math
import re
import time

import pytest

from sluice.console.charts import MOST_ROWS, thinned
from sluice.controller.history.history_file import HistoryFile
from sluice.controller.history.series import Point, Values
from tests.console.place import Place

NAMES = ("pool", "node:node-a", "gpu:node-a:node-a-gpu0", "project:vision", "project:speech")


@pytest.fixture
def kept(place: Place) -> Place:
    """A place with half an hour of history."""
    place.node()
    file = HistoryFile(place.folder / "history.db")
    now = int(time.time() // 15) * 15
    for began in range(now - 1800, now, 15):
        known = math.nan if began == now - 1800 else 0.25
        file.write(began, dict.fromkeys(NAMES, Values(known, 0.5, 2048.0, 2.0)))
    file.close()
    return place


async def test_the_table_has_every_step_in_words_and_numbers(kept: Place) -> None:
    viewer = await kept.signed_in("viewer")
    html = (await viewer.get("/history", of="gpu:node-a:node-a-gpu0")).text
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", html)
    assert len(rows) == 120
    assert re.findall(r"<td[^>]*>([^<]*)", rows[0]) == ["–", "50.0", "2.0", "2.0"]
    assert re.findall(r"<td[^>]*>([^<]*)", rows[1]) == ["25.0", "50.0", "2.0", "2.0"]
    assert 'data-seconds="15"' in html
    assert "Used, %" in html
    assert html.count('<figure class="chart"') == 3
    pool = (await viewer.get("/history")).text
    assert "Used, GPUs" in pool
    assert "0.25" in pool


async def test_it_is_a_page_or_a_part_of_one(kept: Place) -> None:
    viewer = await kept.signed_in("viewer")
    assert "<html" in (await viewer.get("/history")).text
    part = await viewer.client.get(
        "/console/history?of=pool&span=day", headers={"HX-Request": "true"}
    )
    assert "<html" not in part.text
    assert re.search(r'span=day"[^>]* aria-current="true"', part.text)
    for path, of in (("/", "pool"), ("/node?name=node-a", "node%3Anode-a"),
                     ("/gpu?id=node-a:node-a-gpu0", "gpu%3Anode-a%3Anode-a-gpu0"),
                     ("/project?name=vision", "project%3Avision")):  # fmt: skip
        assert f"/console/history?of={of}" in (await viewer.get(path)).text


async def test_a_tenant_sees_its_project_and_nothing_else(kept: Place) -> None:
    tenant = await kept.signed_in("tenant")
    assert (await tenant.get("/history", of="project:vision")).status_code == 200
    for of in ("pool", "node:node-a", "gpu:node-a:node-a-gpu0", "project:speech", "project:"):
        assert (await tenant.get("/history", of=of)).status_code == 404
    nobody = kept.browser()
    assert (await nobody.get("/history")).status_code == 303


@pytest.mark.parametrize("of", ["node:none", "gpu:node-a:none", "gpu:x", "kitchen", "pool:x", ""])
async def test_what_there_is_not_is_hidden(of: str, kept: Place) -> None:
    viewer = await kept.signed_in("viewer")
    expected = 200 if not of else 404  # without a name it is the pool's
    assert (await viewer.get("/history", of=of) if of else await viewer.get("/history")
            ).status_code == expected  # fmt: skip
    assert (await viewer.get("/history", of="pool", span="year")).status_code == 422


async def test_hostile_names_are_text(kept: Place) -> None:
    name = "<script>alert(1)</script>"
    viewer = await kept.signed_in("viewer")
    html = (await viewer.get("/history", of=f"project:{name}")).text
    assert name not in html
    assert "Nothing has been kept yet" in html


async def test_a_file_that_cannot_be_read_is_said_on_the_page(kept: Place) -> None:
    (kept.folder / "history.db").unlink()
    (kept.folder / "history.db").mkdir()
    viewer = await kept.signed_in("viewer")
    answer = await viewer.get("/history")
    assert answer.status_code == 200
    assert "history_file" in answer.text


def test_many_points_become_means_and_gaps_do_not_count() -> None:
    points = [Point(60 * i, Values(math.nan if i % 2 else 1.0, i, i, i)) for i in range(1440)]
    found = thinned(points, MOST_ROWS)
    assert len(found) <= MOST_ROWS
    assert found[0] == Point(0, Values(1.0, 2.0, 2.0, 2.0))
    assert found[1].time == 300
    assert thinned(points[:10], MOST_ROWS) == points[:10]
    assert thinned([], MOST_ROWS) == []


async def test_a_sessions_figures_are_its_own_projects(place: Place) -> None:
    """Its server is not connected here, which the page says."""
    place.node()
    own, other = await place.granted("vision"), await place.granted("speech")
    tenant = await place.signed_in("tenant")
    page = (await tenant.get("/session", id=own.session.id)).text
    assert f"/console/session/figures?id={own.session.id}" in page
    answer = await tenant.get("/session/figures", id=own.session.id)
    assert answer.status_code == 200
    assert "is not connected, and keeps the figures" in answer.text
    assert (await tenant.get("/session/figures", id=other.session.id)).status_code == 404
