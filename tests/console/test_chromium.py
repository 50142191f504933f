# SPDX-License-Identifier: Apache-2.0
"""The console in a real Chromium over real processes: every page and action, two people at once, a
lost connection, the keyboard, sizes and colours, accessibility. `make test-console` runs it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from control_plane import ControlPlane, wait_for
from pool_certificates import PoolCa

pytest.importorskip("playwright")
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.chromium import CHROMIUM, NARROW, WIDE, Person, Pool, launched, pool

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium"),
]
HOSTILE = "<img src=x onerror=alert(1)>\"'<script>alert(2)</script>"
Meet = Callable[..., Person]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool with sessions, one that waits, and a reservation."""
    with pool(tmp_path_factory.mktemp("pool")) as made:
        rest = made.plane.rest
        for _ in range(2):
            made.plane.client(gmem_mib=2048, ratio_percent=25, program="train.py")
        made.plane.client(gmem_mib=1024, ratio_percent=50, program=HOSTILE)
        wanted = {"owner_kind": "project", "owner": "vision", "memory_mib": 1000}
        answer = rest.post("/reservations", json={**wanted, "compute_percent": 100})
        assert answer.status_code == 201, answer.text
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture
def meet(busy: Pool, chromium: Browser) -> Iterator[Meet]:
    """A person who has signed in; at the end nothing went wrong on anybody's pages."""
    people: list[Person] = []

    def met(role: str = "operator", size: tuple[int, int] = WIDE, *, dark: bool = False) -> Person:
        person = Person(chromium, busy.plane.url, size, dark=dark)
        people.append(person)
        person.sign_in(busy.tokens[role])
        return person

    yield met
    for person in people:
        person.close()
    assert not [wrong for person in people for wrong in person.wrong]
    ours = busy.plane.url.partition("//")[2]
    assert all(person.hosts == {ours} for person in people), "no third party's host"


def pages(busy: Pool) -> list[str]:
    """One of each page, with what is in the pool."""
    grant, session = busy.plane.grants()[0], busy.plane.sessions()[0]
    reservation = busy.plane.rest.get("/reservations").json()["reservations"][0]["id"]
    gpu = quote(busy.plane.rest.get("/gpus").json()["gpus"][0]["id"])
    return [
        "/",
        "/nodes",
        "/projects",
        "/grants?state=all",
        "/sessions?state=all",
        "/reservations?state=all",
        "/queue",
        "/vms",
        "/people",
        "/tokens",
        "/audit",
        "/history?of=pool",
        "/usage",
        "/alerts",
        f"/node?name={busy.plane.node}",
        f"/gpu?id={gpu}",
        f"/grant?id={grant['id']}",
        f"/session?id={session['id']}",
        "/project?name=default",
        f"/reservation?id={reservation}",
        f"/do?action=grant.end&target={grant['id']}",
        "/do?action=reservation.create",
        "/do?action=token.make",
        f"/do?action=gpu.drain&target={gpu}",
        "/nowhere",
    ]


@pytest.mark.parametrize(
    ("size", "dark"),
    [(WIDE, False), (NARROW, True)],
    ids=["wide and light", "narrow and dark"],
)
def test_every_page_is_accessible_and_fits(
    busy: Pool, meet: Meet, size: tuple[int, int], dark: bool
) -> None:
    admin = meet("admin", size, dark=dark)
    found: dict[str, Any] = {}
    for path in pages(busy):
        page = admin.open(path)
        expect(page.locator("h1")).to_have_count(1)
        if wrong := admin.unaccessible():
            found[path] = wrong
        if admin.is_too_wide():
            found[f"{path} is too wide"] = True
    assert not found


def test_an_operator_ends_one_session_and_moves_another_request_up(busy: Pool, meet: Meet) -> None:
    operator = meet()
    plane = busy.plane
    doomed = plane.client(gmem_mib=500, ratio_percent=5, program="doomed.py")
    wait_for(lambda: plane.rest.get(f"/sessions/{doomed.session_id}").json()["state"] == "running")
    operator.act("session.end", doomed.session_id)
    expect(operator.page.locator(".note.good")).to_have_text("The session is being ended.")
    expect(operator.page.locator(".part-session .badge")).to_have_text("ended")
    expect(operator.page.locator(".part-session .note")).to_contain_text("ended by the operator")
    waiting = [
        plane.client(gmem_mib=8000, ratio_percent=100, vgpu_count=5, wait_seconds=600)
        for _ in range(2)
    ]
    wait_for(lambda: plane.rest.get("/queue").json()["total"] == 2)
    first, second = (e["request_id"] for e in plane.rest.get("/queue").json()["waiting"])
    page = operator.open("/queue")
    page.get_by_role("link", name=f"Move request {second} up").click()
    expect(page.locator("main")).to_contain_text("It is at place 2 of 2")
    page.get_by_role("button", name="Move it").click()
    expect(page.locator(".note.good")).to_have_text("The request has its new place.")
    order = [e["request_id"] for e in plane.rest.get("/queue").json()["waiting"]]
    assert order == [second, first]
    assert not operator.unaccessible()
    assert not operator.is_too_wide()
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    for path in ("/queue", "/"):
        operator.open(path)
        expect(page.locator(".part-queue tbody tr")).to_have_count(2)
        assert not operator.is_too_wide(), f"{path}, where something waits"
    for client in waiting:
        client.kill()
    wait_for(lambda: plane.rest.get("/queue").json()["total"] == 0)


def test_charts_are_drawn_and_read_by_the_keyboard(busy: Pool, meet: Meet) -> None:
    """Their figures are the table's; the first are there when a step of 15 s or two is over."""
    viewer = meet("viewer")

    def promised() -> float:
        """How many GPUs are promised now."""
        gpus = busy.plane.rest.get("/gpus").json()["gpus"]
        return sum(float(gpu["granted_percent"]) for gpu in gpus) / 100

    def is_drawn() -> bool:
        """With a last step that is over since what the tests before this one promised ended."""
        viewer.open(f"/node?name={busy.plane.node}")
        viewer.page.locator(".history .spans").wait_for()
        rows = viewer.page.locator(".history table tbody tr")
        if rows.count() < 2:
            return False
        return f"{promised():.2f}" in (rows.last.text_content() or "")

    wait_for(is_drawn, seconds=120)
    page = viewer.page
    chart = page.locator(".chart").first
    assert chart.locator("canvas").evaluate("each => each.width") > 100
    slider = chart.get_by_role("slider")
    slider.focus()
    page.keyboard.press("Home")
    first = slider.get_attribute("aria-valuetext") or ""
    page.keyboard.press("End")
    last = slider.get_attribute("aria-valuetext") or ""
    assert promised() > 0
    assert f"Promised {promised():g} GPUs" in last
    assert first[:19] < last[:19]
    page.get_by_text("The same figures as a table").click()
    rows = page.locator(".history tbody tr")
    assert last[:19] in rows.last.inner_text()
    assert f"{promised():.2f}" in rows.last.inner_text()
    assert not viewer.unaccessible()
    assert not viewer.is_too_wide()
    page.get_by_role("link", name="Last month").click()
    expect(page.locator(".history")).to_contain_text("Nothing has been kept yet")
    session = busy.plane.sessions()[0]["id"]

    def is_fetched() -> bool:
        viewer.open(f"/session?id={session}")
        page.locator(".history .plot, .history .empty").first.wait_for()
        return page.locator(".history .plot").count() == 4

    wait_for(is_fetched, seconds=120)
    assert not viewer.unaccessible()
    assert not viewer.is_too_wide()


def test_an_admin_makes_a_token_that_is_shown_once_and_revokes_it(
    busy: Pool, meet: Meet, chromium: Browser
) -> None:
    admin = meet("admin")
    page = admin.open("/tokens")
    page.get_by_role("link", name="Make a token…").click()
    page.get_by_label("Role").select_option("viewer")
    page.get_by_label("Whose it is, or what for").fill("screen in the hall")
    page.get_by_label("Good for how many days").fill("30")
    page.get_by_role("button", name="Make the token").click()
    secret = page.locator(".secret").inner_text().strip()
    assert secret.startswith("sluice_")
    assert not admin.unaccessible()
    assert not admin.is_too_wide()
    page.reload()  # which sends the form again
    expect(page.get_by_role("alert")).to_contain_text("This form was sent before")
    assert secret not in page.content()
    page.get_by_role("link", name="To the tokens").click()
    row = page.get_by_role("row").filter(has_text="screen in the hall")
    expect(row).to_have_count(1)
    hall = Person(chromium, busy.plane.url, NARROW, dark=True)
    hall.sign_in(secret)
    hall.until_live()
    row.get_by_role("link", name="Revoke token").click()
    expect(page.locator("main")).to_contain_text("1 session of browsers")
    page.get_by_role("button", name="Revoke the token").click()
    expect(page.locator(".note.good")).to_have_text("The token is revoked.")
    expect(page.get_by_role("row").filter(has_text="screen in the hall")).to_have_count(0)
    expect(hall.page.locator("#liveness")).to_contain_text("you are signed out")
    assert not hall.wrong
    hall.close()


def test_a_gpus_way_out_of_the_pool_is_seen_step_by_step(busy: Pool, meet: Meet) -> None:
    operator, viewer = meet("operator"), meet("viewer")
    gpu = next(g for g in busy.plane.rest.get("/gpus").json()["gpus"] if g["granted_percent"])
    watched = viewer.open(f"/gpu?id={quote(gpu['id'])}")
    viewer.until_live()
    expect(watched.locator(".steps")).to_have_count(0)
    operator.act("gpu.drain", quote(gpu["id"]))
    now = watched.locator('.steps [aria-current="step"]')
    expect(now).to_contain_text("What is on it ends")
    expect(now).to_contain_text("waits for")
    assert not viewer.unaccessible()
    assert not viewer.is_too_wide()
    operator.act("gpu.return", quote(gpu["id"]))
    expect(watched.locator(".steps")).to_have_count(0)


def test_a_rule_of_ones_own_fires_on_the_page(busy: Pool, meet: Meet) -> None:
    viewer = meet("viewer")
    page = viewer.open("/alerts")
    firing = page.get_by_role("row").filter(
        has_text="fewer than three nodes are up: 1, which is < 3"
    )
    expect(firing.first).to_be_visible(timeout=60_000)
    rules = page.get_by_role("row").filter(has_text="rules_file")
    expect(rules).to_have_count(2)
    expect(rules.last).to_contain_text("No figure has these labels now.")
    assert not viewer.unaccessible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_door_is_accessible(busy: Pool, chromium: Browser, dark: bool) -> None:
    person = Person(chromium, busy.plane.url, NARROW, dark=dark)
    page = person.open("/")
    assert not person.unaccessible()
    page.get_by_label("Token").fill("sluice_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Not signed in")
    assert not person.unaccessible()
    assert not person.wrong
    person.close()


def test_the_door_is_locked_by_tls(chromium: Browser, tmp_path: Path) -> None:
    pair = PoolCa(tmp_path / "ca").issue("controller", "127.0.0.1", kind="controller")
    plane = ControlPlane(tmp_path, fake=True, auth={"required": "yes"}, tls=pair.setting())
    person = Person(chromium, plane.url, WIDE, dark=False, ignore_https_errors=True)
    try:
        plane.start_controller()
        page = person.sign_in(plane.first_token())
        expect(page.locator("h1")).to_have_text("Pool")
        person.until_live()
        [cookie] = person.context.cookies()
        assert cookie["name"] == "__Host-sluice_console"
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")
        assert page.evaluate("document.cookie") == ""
        person.act("quota.set", "vision", vgpus="3")
        assert not person.wrong
    finally:
        person.close()
        plane.close()


def test_a_name_is_found(busy: Pool, meet: Meet) -> None:
    page = meet("viewer").page
    page.get_by_label("Find by name or id").fill(busy.plane.node)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text(busy.plane.node)


def test_two_people_see_what_one_does(busy: Pool, meet: Meet) -> None:
    node = busy.plane.node
    operator, viewer = meet("operator"), meet("viewer")
    watched = viewer.open(f"/node?name={node}")
    viewer.until_live()
    badges = watched.locator(".part-node .badges")
    expect(badges).not_to_contain_text("drained")
    operator.act("node.drain", node)
    began = time.monotonic()
    expect(badges).to_contain_text("drained", timeout=5000)
    assert time.monotonic() - began < 5
    expect(watched.get_by_role("link", name="Return to the pool…")).to_have_count(0)
    own = operator.page.get_by_role("link", name="Return to the pool…")
    expect(own).to_have_count(1)
    operator.act("node.return", node)
    expect(badges).not_to_contain_text("drained")


def test_sessions_come_and_go_on_the_screen(busy: Pool, meet: Meet) -> None:
    viewer = meet("viewer")
    page = viewer.open("/")
    viewer.until_live()
    before = len(busy.plane.grants())
    count = page.locator("#s-grants")
    expect(count).to_have_text(str(before))
    client = busy.plane.client(gmem_mib=512, ratio_percent=5, program="short.py")
    expect(count).to_have_text(str(before + 1))
    client.kill()
    busy.plane.clients.remove(client)
    expect(count).to_have_text(str(before))


def test_what_waits_is_shown_with_its_reason(busy: Pool, meet: Meet) -> None:
    page = meet("viewer").open("/")
    client = busy.plane.client(gmem_mib=8000, ratio_percent=100, vgpu_count=5, wait_seconds=60)
    row = page.locator(".part-queue tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("5 ×")
    client.kill()
    busy.plane.clients.remove(client)
    expect(page.locator(".part-queue")).to_contain_text("Nothing waits.")


def test_every_action_is_done_and_is_in_the_trail(busy: Pool, meet: Meet) -> None:
    operator, plane = meet("operator"), busy.plane
    client = plane.client(gmem_mib=512, ratio_percent=5, program="victim.py")
    session = next(s for s in plane.sessions() if s["program"] == "victim.py")
    gpus = plane.rest.get("/gpus").json()["gpus"]
    free = next(gpu["id"] for gpu in gpus if not gpu["vgpus"] and not gpu["kept_mib"])
    operator.act("grant.end", session["grant_id"])
    wait_for(lambda: plane.rest.get(f"/grants/{session['grant_id']}").json()["state"] == "ended")
    client.kill()
    plane.clients.remove(client)
    operator.act("gpu.drain", quote(free))
    wait_for(lambda: plane.rest.get(f"/gpus/{free}").json()["mode"] == "drained")
    operator.act("gpu.return", quote(free))
    wait_for(lambda: plane.rest.get(f"/gpus/{free}").json()["mode"] == "pooled")
    operator.act("reservation.create", owner="speech", memory_mib="600", compute_percent="100")
    made = next(
        r for r in plane.rest.get("/reservations").json()["reservations"] if r["owner"] == "speech"
    )
    operator.act("reservation.resize", made["id"], memory_mib="700")
    assert plane.rest.get(f"/reservations/{made['id']}").json()["memory_mib"] == 700
    operator.act("reservation.end", made["id"])
    assert plane.rest.get(f"/reservations/{made['id']}").json()["state"] == "ended"
    operator.act("quota.set", "speech", vgpus="5", may_preempt="1")
    quota = plane.rest.get("/quotas/speech").json()
    assert (quota["vgpus"], quota["may_preempt"]) == (5, True)
    lines = [e["text"] for e in plane.rest.get("/audit").json()["events"]]
    for wanted in (
        rf"DELETE /v1/grants/{session['grant_id']}: 202",
        r"PUT /v1/gpus/\S+/switch: 202",
        r"POST /v1/reservations: 201",
        rf"PATCH /v1/reservations/{made['id']}: 200",
        rf"DELETE /v1/reservations/{made['id']}: 200",
        r"PUT /v1/quotas/speech: 200",
    ):
        assert any(re.match(wanted + ".*by the console", line) for line in lines), wanted


def test_two_people_do_not_overwrite_one_another(busy: Pool, meet: Meet) -> None:
    first, second = meet("operator"), meet("admin")
    form = "/do?action=quota.set&target=lost"
    first.open(form)
    second.act("quota.set", "lost", vgpus="7")
    first.page.locator("[name=vgpus]").fill("3")
    first.page.locator("main button").click()
    expect(first.page.get_by_role("alert")).to_contain_text("read it again and decide anew")
    assert busy.plane.rest.get("/quotas/lost").json()["vgpus"] == 7
    first.page.locator("main button").click()  # the page was made anew
    expect(first.page.locator(".note.good")).to_be_visible()
    assert busy.plane.rest.get("/quotas/lost").json()["vgpus"] == 3


def test_hostile_names_are_text_in_a_browser(busy: Pool, meet: Meet) -> None:
    admin = meet("admin")
    session = next(s for s in busy.plane.sessions() if s["program"] == HOSTILE)
    for path in (f"/session?id={session['id']}", f"/grant?id={session['grant_id']}", "/sessions"):
        page = admin.open(path)
        expect(page.get_by_text(HOSTILE).first).to_be_visible()
        assert page.locator("img").count() == 0


def test_a_session_shows_its_log(busy: Pool, meet: Meet) -> None:
    session = busy.plane.sessions()[0]
    page = meet("viewer").open(f"/session?id={session['id']}")
    expect(page.locator("pre.log")).to_contain_text(session["id"])


def test_a_tenant_sees_its_own_only(busy: Pool, meet: Meet) -> None:
    tenant = meet("tenant")
    expect(tenant.page.locator("h1")).to_contain_text("vision")
    expect(tenant.page.get_by_role("navigation").get_by_role("link")).to_have_count(4)
    other = busy.plane.grants()[0]["id"]
    assert tenant.page.goto(f"{tenant.url}/console/grant?id={other}").status == 404  # type: ignore[union-attr]


def test_signing_out_everywhere_is_seen_by_the_other_browser(busy: Pool, meet: Meet) -> None:
    here, there = meet("viewer"), meet("viewer")
    there.until_live()
    here.page.get_by_role("button", name="Sign out everywhere").click()
    here.page.wait_for_url("**/console/sign-in")
    expect(there.page.locator("#liveness")).to_contain_text("signed out")
    there.open("/nodes")
    expect(there.page.get_by_label("Token")).to_be_visible()


def test_the_keyboard_is_enough(busy: Pool, meet: Meet) -> None:
    node = busy.plane.node
    operator = meet("operator")
    page = operator.open(f"/node?name={node}")
    operator.until_live()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    focused = page.locator("#do-node-drain")
    expect(focused).to_be_focused()
    # what is replaced under the focus keeps it
    client = busy.plane.client(gmem_mib=256, ratio_percent=1, program="focus.py")
    sessions = page.locator(".part-node dl div", has_text="Sessions").locator("dd")
    expect(sessions).to_have_text(str(len(busy.plane.sessions())))
    expect(focused).to_be_focused()
    client.kill()
    busy.plane.clients.remove(client)
    page.keyboard.press("Enter")
    page.wait_for_url("**/do?**")
    button = page.get_by_role("button", name="Drain the node")
    for _ in range(40):
        if button.evaluate("node => node === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".part-node .badges")).to_contain_text("drained")
    operator.act("node.return", node)


def test_an_operator_who_loses_the_connection_sees_it_and_what_was_missed(
    busy: Pool, meet: Meet
) -> None:
    plane = busy.plane
    operator = meet("operator")
    page = operator.open(f"/node?name={plane.node}")
    operator.until_live()
    plane.stop("controller")
    expect(page.locator("#liveness")).to_contain_text("does not answer")
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up")
    plane.rest.put(f"/nodes/{plane.node}/drain")
    operator.until_live()  # the session outlived the controller
    expect(page.locator(".part-node .badges")).to_contain_text("drained")
    plane.rest.delete(f"/nodes/{plane.node}/drain")
    expect(page.locator(".part-node .badges")).not_to_contain_text("drained")
