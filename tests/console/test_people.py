# SPDX-License-Identifier: Apache-2.0
"""People who sign in by OpenID Connect: tiers, one role at a time, what ends their sessions.

The provider is scripted, over a real socket; test_chromium_people.py has a real one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import ValidationError

from sluice.config.oidc import OidcSection, Tier
from sluice.controller.auth.oidc import LOGOUT_EVENT
from sluice.controller.auth.people import RoleAssignment
from tests.console.place import Browser, Place, fields_of
from tests.console.scripted_provider import CLIENT, SECRET, ScriptedProvider, as_json, rsa

GROUPS = (
    "gpu-admins=admin, gpu-ops=operator, everyone=viewer, "
    "nlp=member speech vision, cv=member vision"
)


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    made = ScriptedProvider()
    yield made
    made.close()


def section(provider: ScriptedProvider, folder: Path, **more: Any) -> OidcSection:
    secret = folder / "client.secret"
    secret.write_text(SECRET + "\n")
    values = {"client_id": CLIENT, "client_secret_file": secret, "groups": GROUPS, **more}
    return OidcSection.model_validate({"issuer": provider.issuer, **values})


@pytest.fixture
async def place(provider: ScriptedProvider, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path, section(provider, tmp_path))
    await made.open()
    yield made
    await made.store.close()


async def sent(browser: Browser, provider: ScriptedProvider, next_page: str = "") -> dict[str, str]:
    """To the provider: the query that the browser comes there with."""
    answer = await browser.get("/sign-in/oidc", next=next_page)
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(f"{provider.issuer}/authorize?")
    return provider.went(answer.headers["location"])


async def back(browser: Browser, query: dict[str, str], **more: str) -> httpx.Response:
    return await browser.get(
        "/sign-in/oidc/callback", **{"state": query["state"], "code": "right", **more}
    )


async def signed_in(
    place: Place, provider: ScriptedProvider, *groups: str, name: str = "alice", subject: str = "1"
) -> Browser:
    provider.claims = {"sub": subject, "preferred_username": name, "groups": list(groups)}
    browser = place.browser()
    answer = await back(browser, await sent(browser, provider))
    assert answer.status_code == 303, answer.text
    return browser


# the way in


async def test_a_person_signs_in_and_comes_back_to_the_page(
    place: Place, provider: ScriptedProvider
) -> None:
    browser = place.browser()
    page = await browser.get("/sign-in", next="/console/grants?state=all")
    assert "Sign in with OpenID Connect" in page.text
    query = await sent(browser, provider, "/console/grants?state=all")
    assert query["response_type"] == "code"
    assert query["code_challenge_method"] == "S256"
    assert query["scope"] == "openid profile email"
    assert query["redirect_uri"] == f"{browser.origin}/console/sign-in/oidc/callback"
    provider.claims["groups"] = ["gpu-ops"]
    answer = await back(browser, query, iss=provider.issuer)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/grants?state=all")
    cookies = answer.headers.get_list("set-cookie")
    session = next(c for c in cookies if c.startswith("sluice_console="))
    assert "HttpOnly" in session
    assert "SameSite=lax" in session
    assert any(c.startswith('sluice_console_oidc=""') for c in cookies), "good once"
    html = (await browser.get("/nodes")).text
    host = urlsplit(provider.issuer).netloc
    assert f"alice of {host}, operator" in html
    lines = "\n".join(await place.audit())
    assert f"(alice of {host}) from 10.0.0.9" in lines
    assert "audit.sign-in person-" in lines


async def test_by_tls_all_cookies_are_for_this_host_and_tls(
    place: Place, provider: ScriptedProvider
) -> None:
    browser = place.browser("https")
    provider.claims["groups"] = ["gpu-ops"]
    answer = await browser.get("/sign-in/oidc")
    [pending] = answer.headers.get_list("set-cookie")
    assert pending.startswith("__Host-sluice_console_oidc=")
    assert "Secure" in pending
    query = provider.went(answer.headers["location"])
    assert query["redirect_uri"].startswith("https://")
    answer = await back(browser, query)
    cookies = answer.headers.get_list("set-cookie")
    assert any(c.startswith("__Host-sluice_console=") and "Secure" in c for c in cookies)


async def test_groups_come_from_userinfo_where_the_id_token_has_none(
    place: Place, provider: ScriptedProvider
) -> None:
    browser = place.browser()
    assert (await back(browser, await sent(browser, provider))).status_code == 303
    assert "/userinfo" in provider.asked
    assert ", operator" in (await browser.get("/nodes")).text


async def test_userinfo_of_another_person_is_refused(
    place: Place, provider: ScriptedProvider
) -> None:
    provider.answers["/userinfo"] = lambda _: as_json({"sub": "2", "groups": ["gpu-admins"]})
    browser = place.browser()
    answer = await back(browser, await sent(browser, provider))
    assert answer.status_code == 401
    assert "another person" in answer.text


async def test_the_address_of_the_settings_is_where_the_provider_sends_to(
    provider: ScriptedProvider, tmp_path: Path
) -> None:
    place = Place(tmp_path, section(provider, tmp_path, address="https://gpus.example/"))
    await place.open()
    query = await sent(place.browser(), provider)
    assert query["redirect_uri"] == "https://gpus.example/console/sign-in/oidc/callback"
    await place.store.close()


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
async def test_the_secret_is_shown_as_the_provider_wants_it(
    method: str, provider: ScriptedProvider, tmp_path: Path
) -> None:
    more = {"client_secret_file": None} if method == "none" else {}
    provider.metadata["token_endpoint_auth_methods_supported"] = [method]
    seen: list[str | None] = []

    def note(handler: Any) -> Any:
        seen.append(handler.headers.get("authorization"))
        return provider._right("/token", provider.forms[-1])

    provider.answers["/token"] = note
    place = Place(tmp_path, section(provider, tmp_path, **more))
    await place.open()
    await signed_in(place, provider, "gpu-ops")
    form = next(form for form in provider.forms if "code" in form)
    assert (seen[0] is not None) == (method == "client_secret_basic")
    assert form.get("client_secret") == ([SECRET] if method == "client_secret_post" else None)
    await place.store.close()


# tiers


def test_tiers_come_of_groups_the_highest_first(tmp_path: Path) -> None:
    read = OidcSection.model_validate({"issuer": "https://a.example", "groups": GROUPS})
    assert read.groups["nlp"] == (Tier.MEMBER, ("speech", "vision"))
    assert read.groups["gpu-admins"] == (Tier.ADMIN, ())


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"groups": "a=owner"}, "owner is no tier"),
        ({"groups": "a=member"}, "a member has projects"),
        ({"groups": "a=viewer vision"}, "no other has"),
        ({"groups": "a=member =x"}, "no project's name"),
        ({"groups": "a=admin, a=viewer"}, "twice"),
        ({"groups": "a="}, "nothing is no tier"),
        ({}, "lets nobody in"),
        ({"everybody": "admin"}, "too much"),
        ({"everybody": "operator"}, "too much"),
        ({"groups": "a=admin", "issuer": "http://login.example.org"}, "is not https://"),
        ({"groups": "a=admin", "issuer": "ftp://login.example.org"}, "is no address"),
        ({"groups": "a=admin", "issuer": "https://u:p@login.example.org"}, "is no address"),
        ({"groups": "a=admin", "address": "javascript:alert(1)"}, "is no address"),
        ({"groups": "a=admin", "scopes": 'openid, a"b'}, "words of ASCII"),
    ],
)
def test_settings_that_say_nothing_are_refused(values: dict[str, str], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        OidcSection.model_validate({"issuer": "https://a.example", **values})


@pytest.mark.parametrize(
    ("groups", "sees_nodes", "audits", "drains"),
    [
        (("gpu-admins",), 200, 200, 200),
        (("gpu-ops",), 200, 403, 200),
        (("everyone",), 200, 403, 403),
        (("cv",), 404, 403, 403),
    ],
)
async def test_each_tier_sees_and_does_its_own(
    groups: tuple[str, ...],
    sees_nodes: int,
    audits: int,
    drains: int,
    place: Place,
    provider: ScriptedProvider,
) -> None:
    place.node()
    browser = await signed_in(place, provider, *groups)
    assert (await browser.get("/nodes")).status_code == sees_nodes
    assert (await browser.get("/audit")).status_code == audits
    answer = await browser.get("/do", action="node.drain", target="node-a")
    assert answer.status_code == drains


async def test_a_viewer_changes_nothing_whatever_it_sends(
    place: Place, provider: ScriptedProvider
) -> None:
    place.node()
    granted = await place.granted("vision")
    viewer = await signed_in(place, provider, "everyone")
    token = fields_of((await viewer.get("/nodes")).text, "/console/sign-out")["csrf"]
    for action, target in (
        ("node.drain", "node-a"),
        ("grant.end", granted.grant.id),
        ("session.end", granted.session.id),
        ("quota.set", "vision"),
        ("reservation.create", ""),
    ):
        fields = {"csrf": token, "action": action, "target": target, "generation": "1"}
        assert (await viewer.post("/do", fields)).status_code in (403, 422), action
    assert place.pool.grants[granted.grant.id].state.value == "live"
    assert not place.pool.nodes["node-a"].drained


async def test_a_member_ends_its_projects_grants_and_the_trail_says_who(
    place: Place, provider: ScriptedProvider
) -> None:
    place.node()
    own, others = await place.granted("vision"), await place.granted("speech")
    member = await signed_in(place, provider, "cv", name="bob", subject="2")
    assert (await member.get("/grant", id=others.grant.id)).status_code == 404
    assert (await member.get("/do", action="grant.end", target=others.grant.id)).status_code == 403
    answer = await member.act("grant.end", own.grant.id)
    assert answer.status_code == 303, answer.text
    assert place.pool.grants[own.grant.id].state.value == "ended"
    assert place.pool.grants[others.grant.id].state.value == "live"
    [line] = [line for line in await place.audit() if line.startswith("audit.delete")]
    assert "(bob of 127.0.0.1" in line
    assert "as member of vision" in line
    assert "by the console" in line


async def test_who_is_in_no_group_is_not_let_in(place: Place, provider: ScriptedProvider) -> None:
    provider.claims["groups"] = ["others"]
    browser = place.browser()
    answer = await back(browser, await sent(browser, provider))
    assert answer.status_code == 403
    assert "in none of the groups" in answer.text
    assert (await browser.get("/nodes")).status_code == 303
    assert any("sign-in without any right" in line for line in await place.audit())


async def test_everybody_may_be_let_in(provider: ScriptedProvider, tmp_path: Path) -> None:
    place = Place(tmp_path, section(provider, tmp_path, everybody="viewer"))
    await place.open()
    browser = await signed_in(place, provider, "others")
    assert ", viewer" in (await browser.get("/nodes")).text
    operator = await signed_in(place, provider, "gpu-ops", subject="2")
    assert ", operator" in (await operator.get("/nodes")).text
    await place.store.close()


async def test_of_several_projects_one_at_a_time(place: Place, provider: ScriptedProvider) -> None:
    place.node()
    vision, speech = await place.granted("vision"), await place.granted("speech")
    member = await signed_in(place, provider, "nlp")
    assert (await member.get("/grant", id=speech.grant.id)).status_code == 200
    assert (await member.get("/grant", id=vision.grant.id)).status_code == 404
    page = await member.get("/grants")
    form = fields_of(page.text, "/console/work-as")
    before = dict(member.client.cookies)
    changed = await member.post("/work-as", {**form, "assignment": "member:vision"})
    assert changed.status_code == 303
    assert (await member.get("/grant", id=vision.grant.id)).status_code == 200
    assert (await member.get("/grant", id=speech.grant.id)).status_code == 404
    assert dict(member.client.cookies) != before, "a page of before acts for nothing"
    member.client.cookies.clear()
    member.client.cookies.update(before)
    assert (await member.get("/grants")).status_code == 303
    assert any("works as member of vision" in line for line in await place.audit())


@pytest.mark.parametrize("assignment", ["admin", "member:physics", "member:", "", "operator"])
async def test_nobody_works_as_what_they_are_not(
    assignment: str, place: Place, provider: ScriptedProvider
) -> None:
    member = await signed_in(place, provider, "nlp")
    form = fields_of((await member.get("/grants")).text, "/console/work-as")
    assert (await member.post("/work-as", {**form, "assignment": assignment})).status_code == 403
    token = await place.signed_in("viewer")
    form = fields_of((await token.get("/nodes")).text, "/console/sign-out")
    assert (await token.post("/work-as", {**form, "assignment": "viewer"})).status_code == 403


# what ends sessions


async def test_signing_out_everywhere_ends_all_of_a_person(
    place: Place, provider: ScriptedProvider
) -> None:
    here = await signed_in(place, provider, "gpu-ops")
    there = await signed_in(place, provider, "gpu-ops", name="alice by another name")
    other = await signed_in(place, provider, "gpu-ops", subject="2")
    token = await place.signed_in("operator")
    form = fields_of((await here.get("/nodes")).text, "/console/sign-out")
    assert (await here.post("/sign-out", {**form, "where": "everywhere"})).status_code == 303
    assert (await there.get("/nodes")).status_code == 303
    assert (await other.get("/nodes")).status_code == 200
    assert (await token.get("/nodes")).status_code == 200


async def test_other_groups_end_what_was_opened_with_the_old_ones(
    place: Place, provider: ScriptedProvider
) -> None:
    old = await signed_in(place, provider, "gpu-ops")
    same = await signed_in(place, provider, "gpu-ops")
    assert (await old.get("/nodes")).status_code == 200
    new = await signed_in(place, provider, "everyone")
    assert (await old.get("/nodes")).status_code == 303
    assert (await same.get("/nodes")).status_code == 303
    assert ", viewer" in (await new.get("/nodes")).text
    assert any("may now viewer, before operator" in line for line in await place.audit())
    assert len(place.browsers) == 1


async def test_other_settings_end_what_was_opened_with_the_old_ones(
    provider: ScriptedProvider, tmp_path: Path
) -> None:
    place = Place(tmp_path, section(provider, tmp_path))
    await place.open()
    browser = await signed_in(place, provider, "gpu-ops")
    await place.store.close()
    for groups, status in (("gpu-ops=operator", 200), ("gpu-ops=viewer", 303), ("x=admin", 303)):
        again = Place(tmp_path, section(provider, tmp_path, groups=groups))
        await again.open()
        same = again.browser()
        same.client.cookies.update(dict(browser.client.cookies))
        assert (await same.get("/nodes")).status_code == status, groups
        await again.store.close()
    for oidc in (OidcSection(), section(provider, tmp_path, issuer="https://other.example")):
        again = Place(tmp_path, oidc)
        await again.open()
        same = again.browser()
        same.client.cookies.update(dict(browser.client.cookies))
        assert (await same.get("/nodes")).status_code == 303
        await again.store.close()


async def test_the_provider_signs_a_person_out(place: Place, provider: ScriptedProvider) -> None:
    first = await signed_in(place, provider, "gpu-ops")
    provider.claims["sid"] = "there-1"
    browser = place.browser()
    await back(browser, await sent(browser, provider))
    other = await signed_in(place, provider, "gpu-ops", subject="2")

    async def told(**claims: Any) -> int:
        provider.claims = {}
        wanted = {"events": {LOGOUT_EVENT: {}}, "jti": "1", "nonce": None, "exp": None, **claims}
        token = provider.id_token(**wanted)
        answer = await place.browser().client.post(
            "/console/oidc/back-channel-logout", data={"logout_token": token}
        )
        return answer.status_code

    assert await told(sid="there-1") == 200
    assert (await browser.get("/nodes")).status_code == 303
    assert (await first.get("/nodes")).status_code == 200
    assert await told(sub="nobody") == 200
    for wrong in (
        {"sub": "1", "events": None},
        {"sub": "1", "events": {}},
        {"sub": "1", "nonce": "a nonce: it is an ID token"},
        {"sub": "1", "aud": "another"},
        {"sub": "1", "iss": "https://other.example"},
        {"sub": "1", "iat": int(time.time()) - 5000},
        {},
        {"sub": ["1"]},
    ):
        assert await told(**wrong) == 400, wrong
    assert (await first.get("/nodes")).status_code == 200
    own, provider.key = provider.key, rsa("one")
    assert await told(sub="1") == 400, "signed by another"
    provider.key = own
    assert await told(sub="1") == 200
    assert (await first.get("/nodes")).status_code == 303
    assert (await other.get("/nodes")).status_code == 200


async def test_a_person_has_so_many_sessions(place: Place, provider: ScriptedProvider) -> None:
    browser = await signed_in(place, provider, "gpu-ops")
    [person] = place.people.people.values()
    for _ in range(30):
        await place.browsers.open_person(person.id, "operator", "operator")
    assert place.browsers.count(person.id) == 20
    assert (await browser.get("/nodes")).status_code == 303, "the oldest made room"


async def test_role_assignments_are_of_the_pool_or_of_projects(place: Place) -> None:
    assert str(RoleAssignment(Tier.MEMBER, "a b")) == "member:a b"
    assert RoleAssignment(Tier.VIEWER).text == "viewer"


# people, to admins


async def test_an_admin_sees_people_and_signs_one_out(
    place: Place, provider: ScriptedProvider
) -> None:
    alice = await signed_in(place, provider, "gpu-ops")
    bob = await signed_in(place, provider, "nlp", name="bob <b>", subject="2")
    admin = await place.signed_in("admin")
    html = (await admin.get("/people")).text
    assert "alice" in html
    assert "bob &lt;b&gt;" in html
    assert "member:speech, member:vision" in html
    assert "alice" not in (await admin.get("/people", name="BOB")).text
    [person] = [p for p in place.people.people.values() if p.name == "alice"]
    answer = await admin.act("person.sign-out", person.id)
    assert answer.status_code == 303, answer.text
    assert (await alice.get("/nodes")).status_code == 303
    assert (await bob.get("/grants")).status_code == 200
    assert any(f"DELETE /v1/people/{person.id}/sessions: 200" in x for x in await place.audit())


async def test_people_are_for_admins(place: Place, provider: ScriptedProvider) -> None:
    operator = await signed_in(place, provider, "gpu-ops")
    [person] = place.people.people.values()
    assert (await operator.get("/people")).status_code == 403
    answer = await operator.get("/do", action="person.sign-out", target=person.id)
    assert answer.status_code == 403
    for name, status in (("operator", 403), ("viewer", 403), ("tenant", 403), ("admin", 200)):
        headers = {"Authorization": f"Bearer {place.secrets[name]}"}
        rest = place.browser().client
        assert (await rest.get("/v1/people", headers=headers)).status_code == status
        assert (await rest.get(f"/v1/people/{person.id}", headers=headers)).status_code == status
    assert (await operator.get("/nodes")).status_code == 200


async def test_people_over_rest(place: Place, provider: ScriptedProvider) -> None:
    await signed_in(place, provider, "gpu-ops")
    headers = {"Authorization": f"Bearer {place.secrets['admin']}"}
    rest = place.browser().client
    [found] = (await rest.get("/v1/people", headers=headers)).json()["people"]
    assert found["origin"] == urlsplit(provider.issuer).netloc
    assert (found["name"], found["subject"], found["sessions"]) == ("alice", "1", 1)
    assert (found["groups"], found["assignments"]) == (["gpu-ops"], ["operator"])
    gone = await rest.delete(f"/v1/people/{found['id']}/sessions", headers=headers)
    assert gone.json() == {"sessions": 1}
    assert (await rest.get("/v1/people/person-x", headers=headers)).status_code == 404
