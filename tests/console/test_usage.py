# SPDX-License-Identifier: Apache-2.0
"""Usage over any time: sums are REST's, tenants see their own, CSV is whole and harmless."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta

import pytest

from sluice.console.usage import Asked, summed
from sluice.controller.pool.model import UsageRecord
from tests.console.place import Place

DAY = date(2026, 3, 2)
FIRST_HOUR = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp() // 3600)
FORMULA = "=HYPERLINK(evil)"


def record(project: str, hour: int, factor: float = 1.0) -> UsageRecord:
    held = (7200.0 * factor, 2048 * 3600.0 * factor, 50 * 3600.0 * factor)
    until = (FIRST_HOUR + hour + 1) * 3600.0
    return UsageRecord(project, FIRST_HOUR + hour, *held, until, 900.0 * factor, 60.0)


@pytest.fixture
async def used(place: Place) -> Place:
    """Three days of two projects, and an hour of one whose name is a formula."""
    records = [record(name, hour) for hour in range(72) for name in ("vision", "speech")]
    records.append(record(FORMULA, 0))
    await place.store.commit(records)
    return place


def asked(days: int, project: str | None = None) -> Asked:
    return Asked(DAY, DAY + timedelta(days=days - 1), project)


async def test_sums_are_whole_at_both_ends(used: Place) -> None:
    by_project, by_time, step = await summed(used.grants, asked(1))
    assert step == 3600
    assert by_project["vision"].held_hours == pytest.approx(12)
    assert by_project["vision"].used_hours == pytest.approx(6)
    assert by_project["vision"].gib_hours == pytest.approx(48)
    assert by_project["vision"].vgpu_hours == pytest.approx(48)
    assert by_project["vision"].waited_hours == pytest.approx(24 / 60)
    assert len(by_time) == 24
    assert by_time[FIRST_HOUR * 3600].held_hours == pytest.approx(1.5)
    whole, _, _ = await summed(used.grants, asked(3))
    assert whole["speech"].held_hours == pytest.approx(36)


async def test_a_long_time_is_days_and_stays_bounded(used: Place) -> None:
    _, by_time, step = await summed(used.grants, asked(30))
    assert step == 86400
    assert [sum_.held_hours for _, sum_ in sorted(by_time.items())] == pytest.approx([24.5, 24, 24])
    _, by_time, step = await summed(used.grants, asked(3000))
    assert len(by_time) == 1
    assert step == 10 * 86400


async def test_the_page_shows_projects_largest_first(used: Place) -> None:
    viewer = await used.signed_in("viewer")
    html = (await viewer.get("/usage", **{"from": "2026-03-02", "to": "2026-03-04"})).text
    assert html.index("speech") < html.index("HYPERLINK")
    assert "36.00" in html
    assert "18.00" in html
    assert html.count('<figure class="chart"') == 2
    one = (await viewer.get("/usage", **{"from": "2026-03-02", "project": "vision"})).text
    assert ">speech<" not in one
    empty = await viewer.get("/usage", **{"from": "2020-03-02", "to": "2020-03-03"})
    assert "Nothing was used in this time" in empty.text


async def test_csv_is_rests_and_no_spreadsheet_runs_it(used: Place) -> None:
    viewer = await used.signed_in("viewer")
    span = {"from": "2026-03-02", "to": "2026-03-04"}
    answer = await viewer.get("/usage.csv", **span)
    assert answer.headers["content-type"].startswith("text/csv")
    assert 'filename="usage-2026-03-02-2026-03-04.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 145
    assert [row["project"] for row in rows if "HYPER" in row["project"]] == [f"'{FORMULA}"]
    headers = {"Authorization": f"Bearer {used.secrets['viewer']}"}
    rest = await viewer.client.get(
        "/v1/usage.csv?from=2026-03-02T00:00Z&to=2026-03-04T23:00Z", headers=headers
    )
    assert rest.text.replace(FORMULA, f"'{FORMULA}") == answer.text


async def test_a_tenant_sees_its_own_whatever_it_asks_for(used: Place) -> None:
    tenant = await used.signed_in("tenant")
    for path in ("/usage", "/usage.csv"):
        html = (await tenant.get(path, **{"from": "2026-03-02", "project": "speech"})).text
        assert "vision" in html
        assert "speech" not in html
    assert (await used.browser().get("/usage.csv")).status_code == 303


@pytest.mark.parametrize(
    ("span", "status"),
    [
        ({"from": "2026-03-05", "to": "2026-03-04"}, 422),
        ({"from": "1990-01-01", "to": "2026-03-04"}, 422),
        ({"from": "0001-01-01", "to": "0001-01-02"}, 422),
        ({"from": "9999-12-31", "to": "9999-12-31"}, 422),
        ({"to": "0001-01-02"}, 422),
        ({"from": "yesterday"}, 422),
    ],
)
async def test_times_that_are_none_are_refused(
    span: dict[str, str], status: int, used: Place
) -> None:
    viewer = await used.signed_in("viewer")
    for path in ("/usage", "/usage.csv"):
        assert (await viewer.get(path, **span)).status_code == status
