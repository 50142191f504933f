# SPDX-License-Identifier: Apache-2.0
"""What pages show to whom: rights, hostile names, paging, the policy of content, drawing."""

from __future__ import annotations

import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from sluice.config.controller import ControllerConfig
from sluice.console import lists
from sluice.console.drawing import WIDTH, Stretch, bar, hue_of
from sluice.console.static_files import FILES
from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import Quota
from tests.console.place import Browser, Place

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{ 7*7 }}"
PAGES_OF_ALL = ("/grants", "/sessions")
PAGES_OF_POOL = ("/", "/nodes", "/projects", "/reservations", "/queue")


async def filled(place: Place) -> dict[str, str]:
    """Something of everything; returns the addresses of the pages of single things."""
    place.node()
    granted = await place.granted("vision")
    other = await place.granted("speech")
    reservation = await (await place.signed_in("operator")).act(
        "reservation.create", owner="vision", memory_mib="500", compute_percent="10"
    )
    assert reservation.status_code == 303, reservation.text
    return {
        "node": "/node?name=node-a",
        "gpu": "/gpu?id=node-a%3Anode-a-gpu0",
        "grant": f"/grant?id={granted.grant.id}",
        "session": f"/session?id={granted.session.id}",
        "project": "/project?name=vision",
        "other grant": f"/grant?id={other.grant.id}",
        "other session": f"/session?id={other.session.id}",
        "other project": "/project?name=speech",
        "reservation": f"/reservation?id={next(iter(place.pool.reservations))}",
    }


async def statuses(browser: Browser, paths: list[str]) -> dict[str, int]:
    return {path: (await browser.get(path)).status_code for path in paths}


@pytest.mark.parametrize("who", ["admin", "operator", "viewer"])
async def test_who_sees_the_pool_sees_every_page(place: Place, who: str) -> None:
    things = await filled(place)
    browser = await place.signed_in(who)
    paths = [*things.values(), *PAGES_OF_ALL, *PAGES_OF_POOL]
    assert await statuses(browser, paths) == dict.fromkeys(paths, 200)
    assert (await browser.get("/audit")).status_code == (200 if who == "admin" else 403)


async def test_a_tenant_sees_its_project_and_nothing_else(place: Place) -> None:
    things = await filled(place)
    browser = await place.signed_in("tenant")
    first = await browser.get("/")
    assert first.headers["location"] == "/console/project?name=vision"
    own = [things[name] for name in ("grant", "session", "project")] + [*PAGES_OF_ALL]
    assert await statuses(browser, own) == dict.fromkeys(own, 200)
    others = [path for path in (*things.values(), *PAGES_OF_POOL[1:]) if path not in own]
    assert await statuses(browser, others) == dict.fromkeys(others, 404)
    assert (await browser.get("/audit")).status_code == 403
    for path in own:
        page = (await browser.get(path)).text
        assert "speech" not in page, path
        assert not re.search(r'href="/console/(node|gpu|nodes|queue|audit|reservation)[?"]', page)
    log = await browser.get(things["other session"].replace("/session", "/session/log"))
    assert log.status_code == 404


async def test_a_role_does_not_see_what_it_may_not_do(place: Place) -> None:
    things = await filled(place)
    for who, grant, node in (("operator", True, True), ("viewer", False, False)):
        browser = await place.signed_in(who)
        assert ("action=grant.end" in (await browser.get(things["grant"])).text) == grant
        assert ("action=node.drain" in (await browser.get(things["node"])).text) == node
    tenant = await place.signed_in("tenant")
    page = (await tenant.get(things["grant"])).text
    assert "action=grant.end" in page
    assert "action=grant.resize" not in page


class Elements(HTMLParser):
    """The elements and attributes of a page, as a browser would make them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.sources: set[str] = set()
        self.inline = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("src", "href", "action", "hx-get", "sse-connect"):
                self.sources.add(value or "")
        if tag == "style" or (tag == "script" and "src" not in dict(attrs)):
            self.inline = True


async def test_hostile_names_are_text(place: Place) -> None:
    place.node(HOSTILE, note=HOSTILE, model=HOSTILE)
    place.node("good", gpus=1)
    granted = await place.granted(HOSTILE, program=HOSTILE, host=HOSTILE, domain_name=HOSTILE)
    place.pool.requests.submit(
        GrantRequest("w", project=HOSTILE, program=HOSTILE, memory_mib=7999, wait_seconds=-1,
                     compute_percent=100, count=2)
    )  # fmt: skip
    await place.grants.step(lambda: place.pool.limits.set_quota(Quota(HOSTILE, 1)))
    browser = await place.signed_in("admin")
    name = html.escape(HOSTILE)
    quoted = quote(HOSTILE, safe="")
    paths = [
        "/", "/nodes", "/projects", "/grants", "/sessions", "/queue", f"/node?name={quoted}",
        f"/gpu?id={quoted}%3A{quoted}-gpu0", f"/project?name={quoted}",
        f"/grant?id={granted.grant.id}", f"/session?id={granted.session.id}",
        f"/do?action=node.drain&target={quoted}", f"/do?action=quota.set&target={quoted}",
        f"/do?action=grant.end&target={granted.grant.id}",
        f"/do?action=gpu.clear&target={quoted}%3A{quoted}-gpu0",
    ]  # fmt: skip
    seen = 0
    for path in paths:
        answer = await browser.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found = Elements(answer.text)
        assert "img" not in found.names, path
        assert not any(each.startswith("on") for each in found.attributes), path
        assert not found.inline, path
        assert all(each.startswith(("/console", "#", "?")) for each in found.sources), path
        seen += name.replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in answer.text
    assert seen >= len(paths) - 2


@pytest.mark.parametrize(
    "path",
    ["/node?name=<script>", "/gpu?id=<script>", "/grant?id=%00", "/do?action=<script>", "/<script>",
     "/grants?marker=<script>", "/grants?marker=WyJ4Il0", "/grants?state=<script>",
     "/static/x/../../app.py", "/static/x/console.js", "/queue?from=-1", "/do?action=node.drain",
     "/live?part=summary", "/live?part=nothing&is=x", "/live?part=gpu&is=x", "/gpu",
     "/nodes?marker=W10", "/sessions?marker=bnVsbA", f"/live?part={'x' * 2000}&is=x"],
)  # fmt: skip
async def test_strange_addresses_are_refused_in_words(place: Place, path: str) -> None:
    browser = await place.signed_in("admin")
    answer = await browser.client.get(f"/console{path}")
    assert answer.status_code in (200, 404, 422) or 400 <= answer.status_code < 500
    assert "<script>" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_every_answer_has_the_policy_and_pages_are_not_kept(place: Place) -> None:
    place.node()
    browser = await place.signed_in("viewer")
    for path in ("/", "/sign-in", "/nowhere", "/audit", FILES["console.js"].url[8:]):
        answer = await browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        kept = "immutable" in answer.headers["cache-control"]
        assert kept == path.startswith("/static/")
    page = (await browser.get("/")).text
    assert "https://" not in page
    assert not re.search(r"\sstyle=|\son\w+=|<style", page)


async def test_lists_are_paged_and_nothing_is_twice_or_left_out(place: Place) -> None:
    for number in range(60):
        place.node(f"node-{number:03}", gpus=1)
    browser = await place.signed_in("viewer")
    found: list[str] = []
    path = "/nodes"
    for _ in range(2):
        page = (await browser.get(path)).text
        found += re.findall(r'id="r-(node-\d+)"', page)
        following = re.search(r'href="/console(/nodes\?marker=[^"]+)"', page)
        path = html.unescape(following[1]) if following else ""
    assert found == sorted(place.pool.nodes)
    assert not path
    cards: list[str] = []
    path = "/"
    while path:
        page = (await browser.get(path)).text
        here = re.findall(r'id="g-([^"]+)"', page)
        assert len(here) <= 24
        cards += here
        following = re.search(r'href="/console(/\?marker=[^"]+)">Next', page)
        path = html.unescape(following[1]) if following else ""
    assert cards == [f"{node}-gpu0" for node in sorted(place.pool.nodes)]


@pytest.mark.parametrize("few", [2000, 0], ids=["by project", "by a walk"])
async def test_a_projects_lists_are_whole_however_they_are_found(
    place: Place, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "FEW", few)
    place.node()
    mine = [await place.granted(project) for project in ("vision", "vision", "default", "")]
    await place.granted("speech")
    browser = await place.signed_in("operator")
    await browser.act("grant.end", mine[0].grant.id)

    async def shown(path: str, **query: str) -> set[str]:
        return set(re.findall(r'id="r-(\w+)"', (await browser.get(path, **query)).text))

    ids = [each.grant.id for each in mine]
    sessions = [each.session.id for each in mine]
    assert await shown("/grants", project="vision") == {ids[1]}
    assert await shown("/grants", project="vision", state="all") == {*ids[:2]}
    assert await shown("/sessions", project="vision") == {sessions[1]}
    assert await shown("/sessions", project="vision", state="all") == {*sessions[:2]}
    page = (await browser.get("/grants", project="vision", node="node-a")).text
    assert "/console/grants?state=all&amp;project=vision&amp;node=node-a" in page
    assert await shown("/grants", project="default") == {*ids[2:]}
    assert await shown("/sessions", project="default") == {*sessions[2:]}
    browser = await place.signed_in("tenant")
    assert await shown("/grants", state="all") == {*ids[:2]}
    assert await shown("/sessions") == {sessions[1]}


async def test_a_name_leads_to_its_page_for_whom_it_is(place: Place) -> None:
    things = await filled(place)
    operator, tenant = await place.signed_in("operator"), await place.signed_in("tenant")

    async def found(browser: Browser, name: str) -> str:
        answer = await browser.get("/find", name=name)
        location = answer.headers.get("location", "").removeprefix("/console")
        return location or str(answer.status_code)

    for kind, path in things.items():
        name = unquote(path.partition("=")[2])
        name = name.partition(":")[2] or name
        assert await found(operator, f" {name} ") == path
        may = kind in ("grant", "session", "project")
        assert await found(tenant, name) == (path if may else "404"), kind
    for name in ("node-a-gpu", " ", HOSTILE):
        assert await found(operator, name) == "404"


async def test_what_waits_says_why(place: Place) -> None:
    place.node(gpus=1)
    await place.granted(memory_mib=6000, compute_percent=50)
    place.pool.requests.submit(
        GrantRequest("w", project="speech", memory_mib=4000, compute_percent=10, wait_seconds=-1)
    )
    page = (await (await place.signed_in("viewer")).get("/queue")).text
    assert "the most memory that one vGPU could get now is 2,000 MiB" in page


async def test_ended_grants_are_shown_on_demand(place: Place) -> None:
    place.node()
    granted = await place.granted()
    browser = await place.signed_in("operator")
    assert (await browser.act("grant.end", granted.grant.id)).status_code == 303
    assert granted.grant.id not in (await browser.get("/grants")).text
    assert granted.grant.id in (await browser.get("/grants", state="all")).text
    page = (await browser.get("/grant", id=granted.grant.id)).text
    assert "ended by the operator" in page
    assert "action=grant.end" not in page


async def test_a_page_is_small(place: Place) -> None:
    """At most 300 KB at a first visit, scripts and styles included."""
    for number in range(30):
        place.node(f"node-{number:02}", gpus=1)
    for _ in range(60):
        await place.granted(memory_mib=500, compute_percent=10)
    page = await (await place.signed_in("operator")).get("/")
    loaded = [FILES[n] for n in FILES if n in page.text and not n.endswith(".txt")]
    assert len(loaded) == 8
    assert len(page.content) + sum(len(f.content) for f in loaded) < 300_000


# drawing


def test_stretches_are_to_scale() -> None:
    first, second = bar([Stretch(2000, "slice", "a", used=500), Stretch(1000, "kept", "b")], 8000)
    assert (first.x, first.width, first.used) == (0, WIDTH / 4, WIDTH / 16)
    assert (second.x, second.width, second.used) == (WIDTH / 4, WIDTH / 8, None)


def test_a_bar_ends_where_the_gpu_does() -> None:
    parts = bar([Stretch(70, "slice", "a", used=90), Stretch(50, "slice", "b")], 100)
    assert parts[-1].x + parts[-1].width == WIDTH
    assert parts[0].used == parts[0].width
    assert bar([Stretch(5, "slice", "a")], 0) == []
    assert bar([Stretch(-5, "slice", "a")], 100) == []


def test_a_project_has_its_colour_whatever_its_name() -> None:
    assert hue_of("vision") == hue_of("vision")
    assert 0 <= hue_of("\ud800") < 8


# what others wrote


def test_vendored_files_are_what_was_checked_in_with_their_licences() -> None:
    folder = Path(__file__).resolve().parents[2] / "console" / "static" / "vendor"
    sums = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    files = sorted(path for path in folder.iterdir() if path.suffix in (".js", ".css"))
    assert sorted(sums) == [path.name for path in files]
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sums[path.name]
    for name in ("htmx", "htmx-ext-sse"):
        assert "Zero" in (folder / f"{name}-LICENSE.txt").read_text()
    assert "MIT" in (folder / "uplot-LICENSE.txt").read_text()


# the setting


async def test_one_setting_turns_it_off(tmp_path: Path) -> None:
    made = Place(tmp_path)
    await made.open(console=False)
    browser = made.browser()
    for path in ("", "/sign-in", "/nodes", "/static/x/console.js"):
        assert (await browser.get(path)).status_code == 401
    head = {"Authorization": f"Bearer {made.secrets['admin']}"}
    for path in ("/", "/console/", "/console/sign-in"):
        assert (await browser.client.get(path, headers=head)).status_code == 404
    assert (await browser.client.get("/v1/nodes", headers=head)).status_code == 200
    assert not made.grants.watchers
    await made.store.close()
    assert ControllerConfig().console.enabled, "it is on unless it is turned off"
