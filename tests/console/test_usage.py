# SPDX-License-Identifier: Apache-2.0
"""Usage over any time: sums are REST's, tenants see their own, CSV is whole and harmless."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta

import pytest

from sluice.console.usage import Asked, summed
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
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


# by person and label


def share(project: str, person: str, label: str, day: int) -> UsageShare:
    held = (7200.0, 2048 * 3600.0, 50 * 3600.0)
    first = FIRST_HOUR // 24
    return UsageShare(project, person, label, first + day, *held, 0.0, 900.0, 60.0)


@pytest.fixture
async def shared(place: Place) -> Place:
    """Three days of two people in two projects, of whom one has a name that is a formula."""
    await place.store.commit(
        [
            share(project, person, label, day)
            for day in range(3)
            for project, person, label in (
                ("vision", "alice", "night"), ("vision", "alice", ""), ("vision", FORMULA, ""),
                ("speech", "alice", "night"), ("speech", "", ""),
            )
        ]
    )  # fmt: skip
    return place


async def test_usage_by_person_and_by_label(shared: Place) -> None:
    by_person, by_time, step = await summed(
        shared.grants, Asked(DAY, DAY + timedelta(days=2), None, "person")
    )
    assert step == 86400
    assert {name: each.held_hours for name, each in by_person.items()} == {
        "alice": 4.5, FORMULA: 1.5, "": 1.5
    }  # fmt: skip
    assert [each.held_hours for _, each in sorted(by_time.items())] == [2.5, 2.5, 2.5]
    by_label, _, _ = await summed(shared.grants, Asked(DAY, DAY, "vision", "label", person="alice"))
    assert {name: each.held_hours for name, each in by_label.items()} == {"night": 0.5, "": 0.5}
    by_project, _, _ = await summed(shared.grants, Asked(DAY, DAY, None, label="night"))
    assert set(by_project) == {"vision", "speech"}


async def test_the_page_by_person_leads_to_a_persons_labels(shared: Place) -> None:
    viewer = await shared.signed_in("viewer")
    span = {"from": "2026-03-02", "to": "2026-03-04"}
    html = (await viewer.get("/usage", by="person", **span)).text
    assert "nobody in particular" in html
    assert "by=label&amp;person=alice" in html or "person=alice&amp;by=label" in html
    assert html.count('<figure class="chart"') == 2
    html = (await viewer.get("/usage", by="label", person="alice", **span)).text
    assert ">night</a>" in html
    assert "no label" in html
    assert (await viewer.get("/usage", by="node", **span)).status_code == 422


async def test_csv_by_person_is_rests_and_harmless(shared: Place) -> None:
    viewer = await shared.signed_in("viewer")
    answer = await viewer.get("/usage.csv", by="person", **{"from": "2026-03-02"}, to="2026-03-04")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 15
    assert {row["person"] for row in rows} == {"alice", f"'{FORMULA}", ""}
    headers = {"Authorization": f"Bearer {shared.secrets['viewer']}"}
    rest = await viewer.client.get(
        "/v1/usage/shares.csv?from=2026-03-02T00:00Z&to=2026-03-04T23:00Z", headers=headers
    )
    assert rest.text.replace(FORMULA, f"'{FORMULA}") == answer.text
    found = await viewer.client.get(
        "/v1/usage/shares?from=2026-03-02T12:00Z&to=2026-03-02T12:00Z&person=alice&label=",
        headers=headers,
    )
    [only] = found.json()["shares"]
    assert (only["project"], only["person"], only["label"]) == ("vision", "alice", "")
    assert only["day"].startswith("2026-03-02T00:00")


async def test_a_member_sees_people_of_its_project_only(shared: Place) -> None:
    tenant = await shared.signed_in("other")
    html = (
        await tenant.get("/usage", by="person", project="vision", **{"from": "2026-03-02"})
    ).text
    assert "alice" in html
    assert "HYPERLINK" not in html
    headers = {"Authorization": f"Bearer {shared.secrets['other']}"}
    found = await tenant.client.get("/v1/usage/shares?project=vision", headers=headers)
    assert {each["project"] for each in found.json()["shares"]} == {"speech"}


async def test_what_runs_now_is_its_persons(place: Place) -> None:
    place.node()
    granted = await place.granted("vision", person="alice", owner_label="night")
    assert (granted.grant.person, granted.grant.label) == ("alice", "night")
    viewer = await place.signed_in("viewer")
    assert "alice" in (await viewer.get("/usage", by="person")).text
    page = (await viewer.get("/grant", id=granted.grant.id)).text
    assert "<dd>alice</dd>" in page
    assert "<dd>night</dd>" in page
