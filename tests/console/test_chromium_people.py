# SPDX-License-Identifier: Apache-2.0
"""People who sign in at a real OpenID Connect provider, in a real Chromium: tiers, projects, who
did what, sign-out everywhere, a provider that is away and one that signs with another key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from control_plane import wait_for

pytest.importorskip("playwright")
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.console.chromium import CHROMIUM, NARROW, WIDE, Person, Pool, launched
from tests.console.provider import PYTHON, RealProvider, log_in

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium"),
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-console installs the provider"),
]
PEOPLE = {
    "alice": ["gpu-ops"],
    "bob": ["nlp", "others"],
    "carol": ["everyone"],
    "dave": ["others"],
    "erin": ["gpu-admins", "nlp"],
}
GROUPS = "gpu-admins=admin, gpu-ops=operator, everyone=viewer, nlp=member speech vision"
Meet = Callable[..., Person]


class Place:
    """A pool with a provider beside it."""

    def __init__(self, folder: Path) -> None:
        self.provider: RealProvider | None = None

        def settings(url: str) -> dict[str, object]:
            redirect = f"{url}/console/sign-in/oidc/callback"
            self.provider = RealProvider(folder, redirect, PEOPLE)
            return {**self.provider.settings(), "groups": GROUPS}

        self.pool = Pool(folder, oidc=settings)
        assert self.provider
        self.there = self.provider
        self.there.start()

    def close(self) -> None:
        self.there.stop()
        self.pool.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("people"))
    made.pool.plane.client(gmem_mib=1024, ratio_percent=25, program="train.py")
    yield made
    made.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture
def meet(place: Place, chromium: Browser) -> Iterator[Meet]:
    """Somebody who came in by the provider; at the end nothing went wrong on our pages."""
    people: list[Person] = []

    def met(name: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> Person:
        person = Person(chromium, place.pool.plane.url, size, dark=dark)
        people.append(person)
        page = person.open("/")
        page.get_by_role("link", name="Sign in with Canaille").click()
        log_in(page, name)
        page.wait_for_url(f"{person.url}/console/**")
        return person

    yield met
    for person in people:
        person.close()
    ours, theirs = (urlsplit(each).netloc for each in (place.pool.plane.url, place.there.issuer))
    assert all(person.hosts <= {ours, theirs} for person in people)
    assert not [wrong for person in people for wrong in person.wrong if ours in wrong]


def who(page: Page) -> str:
    return page.locator(".who > span").inner_text()


def trail(place: Place) -> list[str]:
    return [e["text"] for e in place.pool.plane.rest.get("/audit").json()["events"]]


def test_an_operator_acts_and_the_trail_says_who(place: Place, meet: Meet) -> None:
    alice, node = meet("alice"), place.pool.plane.node
    host = urlsplit(place.there.issuer).netloc
    assert who(alice.page) == f"alice of {host}, operator"
    [cookie] = [c for c in alice.context.cookies() if c["name"] == "sluice_console"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert "sluice_console" not in alice.page.evaluate("document.cookie")
    assert not any(c["name"] == "sluice_console_oidc" for c in alice.context.cookies())
    alice.act("node.drain", node)
    alice.act("node.return", node)
    lines = trail(place)
    wanted = rf"PUT /v1/nodes/{node}/drain: 200, person-\w+ \(alice of {host}\) as operator from "
    assert any(re.match(wanted, line) and "by the console" in line for line in lines), lines
    assert any("signed in to the console as operator" in line for line in lines)


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (NARROW, True)], ids=["wide and light", "narrow and dark"]
)
def test_pages_of_people_are_accessible_and_fit(
    place: Place, meet: Meet, chromium: Browser, size: tuple[int, int], dark: bool
) -> None:
    stranger = Person(chromium, place.pool.plane.url, size, dark=dark)
    stranger.open("/sign-in")
    assert not stranger.unaccessible()
    assert not stranger.is_too_wide()
    stranger.close()
    erin = meet("erin", size, dark=dark)
    for path in ("/people", "/usage?by=person", "/usage?by=label", "/"):
        page = erin.open(path)
        expect(page.locator("h1")).to_have_count(1)
        assert not erin.unaccessible(), path
        assert not erin.is_too_wide(), path


def test_a_member_works_in_one_project_at_a_time(place: Place, meet: Meet) -> None:
    bob = meet("bob")
    page = bob.page
    expect(page.locator("h1")).to_contain_text("speech")
    page.get_by_label("Work as").select_option("member:vision")
    page.get_by_role("button", name="Change").click()
    expect(page.locator("h1")).to_contain_text("vision")
    assert who(page).endswith("member of vision")
    assert page.goto(f"{bob.url}/console/nodes").status == 404  # type: ignore[union-attr]
    grant = place.pool.plane.grants()[0]["id"]  # of another project
    assert page.goto(f"{bob.url}/console/grant?id={grant}").status == 404  # type: ignore[union-attr]


def test_a_viewer_sees_and_changes_nothing(place: Place, meet: Meet) -> None:
    carol, node = meet("carol"), place.pool.plane.node
    page = carol.open(f"/node?name={node}")
    expect(page.locator("h1")).to_contain_text(node)
    expect(page.locator("a.button", has_text="Drain")).to_have_count(0)
    assert page.goto(f"{carol.url}/console/do?action=node.drain&target={node}").status == 403  # type: ignore[union-attr]


def test_who_is_in_no_group_is_told_so(place: Place, chromium: Browser) -> None:
    dave = Person(chromium, place.pool.plane.url, WIDE, dark=False)
    page = dave.open("/")
    page.get_by_role("link", name="Sign in with Canaille").click()
    log_in(page, "dave")
    expect(page.get_by_role("alert")).to_contain_text("in none of the groups")
    dave.open("/nodes")
    expect(page.get_by_label("Token")).to_be_visible()
    dave.close()


def test_an_admin_signs_a_person_out_everywhere(place: Place, meet: Meet) -> None:
    here, there, erin = meet("carol"), meet("carol"), meet("erin")
    for each in (here, there):
        each.open("/nodes")
        each.until_live()
    page = erin.open("/people")
    row = page.locator("tbody tr", has_text="carol")
    expect(row).to_contain_text("viewer")
    row.get_by_role("link", name="Sign out everywhere").click()
    page.get_by_role("button", name="End the sessions").click()
    expect(page.locator(".note.good")).to_be_visible()
    for each in (here, there):
        expect(each.page.locator("#liveness")).to_contain_text("signed out")
        each.open("/nodes")
        expect(each.page.get_by_label("Token")).to_be_visible()
    erin.open("/nodes")
    assert "erin" in who(erin.page)


def test_a_person_signs_out_everywhere(place: Place, meet: Meet) -> None:
    here, there = meet("alice"), meet("alice")
    there.until_live()
    here.page.get_by_role("button", name="Sign out everywhere").click()
    here.page.wait_for_url("**/console/sign-in")
    expect(there.page.locator("#liveness")).to_contain_text("signed out")


def test_a_provider_that_is_away_stops_nobody_with_a_token(
    place: Place, meet: Meet, chromium: Browser
) -> None:
    """Last, as the controller is restarted: it has to ask the provider anew."""
    plane = place.pool.plane
    alice = meet("alice")
    place.there.stop()
    plane.stop("controller")
    plane.start_controller()
    alice.open("/nodes")
    assert "alice" in who(alice.page), "who is in, stays"
    stranger = Person(chromium, plane.url, WIDE, dark=False)
    page = stranger.open("/")
    page.get_by_role("link", name="Sign in with Canaille").click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be asked")
    page.get_by_label("Token").fill(place.pool.tokens["viewer"])
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("h1")).to_have_text("Pool")
    place.there.sign_with_another_key()
    place.there.start()

    def is_back() -> bool:
        stranger.context.clear_cookies()
        stranger.open("/")
        page.get_by_role("link", name="Sign in with Canaille").click()
        return page.url.startswith(place.there.issuer)

    wait_for(is_back, seconds=60)
    log_in(page, "carol")
    page.wait_for_url(f"{stranger.url}/console/**")
    assert who(page).startswith("carol")
    stranger.close()
