# SPDX-License-Identifier: Apache-2.0
"""Tokens in the console: made and shown once, listed, revoked; who may, and what the trail says."""

from __future__ import annotations

import html
import re

import pytest

from sluice.controller.auth.tokens import Role
from tests.console.place import Browser, Place, fields_of

HOSTILE = "<script>alert(1)</script>"


def secret_in(page: str) -> str:
    found = re.search(r'class="secret"[^>]*>([^<]+)<', page)
    assert found, page
    return html.unescape(found[1])


async def calls(place: Place, secret: str, path: str = "/v1/pool") -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return (await place.browser().client.get(path, headers=headers)).status_code


async def test_one_is_made_shown_once_works_and_is_revoked(place: Place) -> None:
    place.node()
    admin = await place.signed_in("admin")
    assert "Make a token" in (await admin.get("/tokens")).text
    plan = await admin.get("/do", action="token.make")
    assert "The token is shown once, on the next page" in plan.text
    made = await admin.act("token.make", role="operator", name="ci", days="7")
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    secret = secret_in(made.text)
    [token] = [t for t in place.tokens.tokens.values() if t.name == "ci"]
    assert (token.role, token.created_by) == (Role.OPERATOR, place.ids["admin"])
    assert token.expires is not None
    assert abs(token.expires - token.created - 7 * 86400) < 60
    assert await calls(place, secret) == 200
    for path in ("/tokens", "/audit", "/"):
        assert secret not in (await admin.get(path)).text
    assert not any(secret in line for line in await place.audit())
    browser = place.browser()
    await browser.sign_in(secret)
    page = await admin.get("/do", action="token.revoke", target=token.id)
    assert "It is an operator&#39;s (ci)" in page.text
    assert "Ended at once: 1 session of browsers" in page.text
    done = await admin.act("token.revoke", token.id)
    assert done.headers["location"] == "/console/tokens?done=token.revoke"
    assert await calls(place, secret) == 401
    assert (await browser.get("/")).headers["location"].startswith("/console/sign-in")
    assert token.id not in (await admin.get("/tokens")).text
    assert token.id in (await admin.get("/tokens", state="revoked")).text
    lines = await place.audit()
    for what in ("POST /v1/tokens: 201", f"DELETE /v1/tokens/{token.id}: 200"):
        [line] = [each for each in lines if what in each]
        assert place.ids["admin"] in line
        assert "by the console" in line
    assert any(line.startswith(f"token.revoked {token.id}") for line in lines)


async def test_a_form_that_is_sent_twice_makes_one_and_shows_it_once(place: Place) -> None:
    admin = await place.signed_in("admin")
    form = {**await admin.form("token.make"), "role": "viewer", "name": "twice"}
    first, second = await admin.post("/do", form), await admin.post("/do", form)
    secret = secret_in(first.text)
    assert secret not in second.text
    assert "This form was sent before" in second.text
    assert len([t for t in place.tokens.tokens.values() if t.name == "twice"]) == 1


@pytest.mark.parametrize("who", ["operator", "viewer", "tenant"])
async def test_others_than_admins_see_and_do_nothing(place: Place, who: str) -> None:
    browser = await place.signed_in(who)
    assert (await browser.get("/tokens")).status_code == 403
    assert "/console/tokens" not in (await browser.get("/grants")).text
    victim = place.ids["other"]
    for action, target in (("token.make", ""), ("token.revoke", victim), ("token.revoke", "none")):
        assert (await browser.get("/do", action=action, target=target)).status_code == 403
        page = await browser.get("/grants")
        form = {**fields_of(page.text, "/console/sign-out"), "action": action, "target": target}
        assert (await browser.post("/do", {**form, "role": "admin"})).status_code == 403
    assert place.tokens.tokens[victim].revoked is None
    assert len(place.tokens.tokens) == len(place.ids)
    assert any(f"audit.denied {place.ids[who]}" in line for line in await place.audit())
    assert (await place.browser().get("/tokens")).status_code == 303


async def test_two_admins_at_once_and_the_last_one(place: Place) -> None:
    first, second = await place.signed_in("admin"), await place.signed_in("admin")
    stale = await first.form("token.revoke", place.ids["viewer"])
    await second.act("token.revoke", place.ids["viewer"])
    again = await first.post("/do", stale)
    assert again.status_code == 412
    assert "It is revoked already." in again.text
    own = place.ids["admin"]
    refused = await first.act("token.revoke", own)
    assert refused.status_code == 409
    assert "make another admin token first" in refused.text
    await first.act("token.make", role="admin", name="second")
    assert (await first.act("token.revoke", own)).status_code == 303
    assert (await first.get("/tokens")).status_code == 303, "its own session has ended"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"role": "tenant"}, "a tenant&#39;s token has a project"),
        ({"role": "viewer", "project": "vision"}, "has a project, and no other has"),
        ({"role": "node"}, "has the node&#39;s name"),
        ({"role": "viewer", "label": "x"}, "only a tenant&#39;s token has"),
        ({"role": "root"}, "role"),
        ({"role": "viewer", "days": "0"}, "expires_seconds"),
        ({"role": "viewer", "days": "99999"}, "expires_seconds"),
        ({"role": "viewer", "days": "-1"}, "expires_seconds"),
        ({"role": "viewer", "days": "1e3"}, "write a whole number"),
        ({"role": "tenant", "project": "vision", "max_priority": "99999999999"}, "max_priority"),
        ({"role": "viewer", "name": "a\nb"}, "name"),
        ({"role": "viewer", "name": "x" * 3000}, "name"),
    ],
)
async def test_what_is_wrong_is_named_and_makes_nothing(
    place: Place, fields: dict[str, str], said: str
) -> None:
    admin = await place.signed_in("admin")
    before = len(place.tokens.tokens)
    refused = await admin.act("token.make", **fields)
    assert refused.status_code == 422
    assert said in refused.text
    assert 'class="secret"' not in refused.text
    assert len(place.tokens.tokens) == before


async def test_a_tenants_rights_come_from_the_form_and_names_are_text(place: Place) -> None:
    admin = await place.signed_in("admin")
    form = await admin.form("token.make", "vision")
    assert (form["role"], form["project"]) == ("tenant", "vision")
    more = {"name": HOSTILE, "max_priority": "5", "may_preempt": "no", "person": "alice"}
    made = await admin.post("/do", {**form, **more})
    assert made.status_code == 200
    token = next(t for t in place.tokens.tokens.values() if t.name == HOSTILE)
    assert (token.project, token.max_priority, token.may_preempt) == ("vision", 5, False)
    assert token.person == "alice"
    for page in (
        made.text,
        (await admin.get("/tokens", project="vision")).text,
        (await admin.get("/do", action="token.revoke", target=token.id)).text,
    ):
        assert HOSTILE not in page
        assert html.escape(HOSTILE) in page


async def test_the_list_is_in_pages_and_filters(place: Place) -> None:
    for number in range(60):
        await place.tokens.create(
            Role.TENANT, by="test", name=f"t{number:02}", project="many" if number % 2 else "few"
        )
    admin = await place.signed_in("admin")
    page = (await admin.get("/tokens", role="tenant")).text
    assert page.count("Revoke…</a>") == 50
    following = re.search(r'class="pager">.*?href="([^"]+)"', page)
    assert following
    second = await follow(admin, html.unescape(following[1]))
    assert second.count("Revoke…</a>") == 62 - 50
    few = (await admin.get("/tokens", project="few")).text
    assert few.count("Revoke…</a>") == 30
    for wrong in ({"state": "x"}, {"role": "x"}, {"marker": "x"}):
        assert (await admin.get("/tokens", **wrong)).status_code == 422


async def follow(browser: Browser, path: str) -> str:
    return (await browser.client.get(path)).text
