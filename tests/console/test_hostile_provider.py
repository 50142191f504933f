# SPDX-License-Identifier: Apache-2.0
"""Nobody gets in by what a provider, a network or another site makes up; nothing hangs or grows."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.config.oidc import OidcSection
from sluice.controller.auth.oidc import LEEWAY_SECONDS, SignIn
from tests.console.coming_back import Change, assert_outside, came_back, sent
from tests.console.place import Place, fields_of
from tests.console.scripted_provider import (
    ScriptedProvider,
    as_json,
    for_any_algorithm,
    rsa,
    shared_key,
)


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    made = ScriptedProvider()
    made.claims["groups"] = ["gpu-admins"]
    yield made
    made.close()


@pytest.fixture
async def place(provider: ScriptedProvider, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(
        tmp_path,
        OidcSection.model_validate({"issuer": provider.issuer, "groups": "gpu-admins=admin"}),
    )
    await made.open()
    yield made
    await made.store.close()


async def test_the_right_answer_lets_in(place: Place, provider: ScriptedProvider) -> None:
    """Without which all below would prove nothing."""
    browser = place.browser()
    assert (await came_back(browser, provider)).status_code == 303
    assert (await browser.get("/audit")).status_code == 200


# ID tokens


def claims(**more: Any) -> Change:
    return lambda provider: provider.claims.update(more)


def at(**more: float) -> Change:
    """Times, so many seconds from when it is signed."""
    return lambda provider: provider.claims.update(
        {name: int(time.time() + seconds) for name, seconds in more.items()}
    )


def signed(algorithm: str, key: Any = None, **header: Any) -> Change:
    def change(provider: ScriptedProvider) -> None:
        provider.algorithm = algorithm
        provider.header = header
        if key is not None:
            provider.key = key() if callable(key) else key

    return change


def by_the_public_key(provider: ScriptedProvider) -> None:
    """The public key's text as the secret of an HMAC: the classical confusion."""
    provider.algorithm = "HS256"
    provider.key = provider.key.as_pem(private=False)


def with_a_key_of_its_own(provider: ScriptedProvider) -> None:
    own = rsa("one")
    provider.key, provider.header = own, {"jwk": own.as_dict(private=False)}


def with_a_symmetric_key_published(provider: ScriptedProvider) -> None:
    secret = shared_key("a secret that everybody reads in the list of keys")
    provider.keys, provider.key, provider.algorithm = [secret], secret, "HS256"


def token(value: Any) -> Change:
    answer = as_json({"access_token": "a", "token_type": "Bearer", "id_token": value})
    return lambda provider: provider.answers.update({"/token": lambda _: answer})


@pytest.mark.parametrize(
    "change",
    [
        signed("none"),
        signed("none", kid=None),
        by_the_public_key,
        signed("HS256", b"sluice"),
        with_a_key_of_its_own,
        with_a_symmetric_key_published,
        signed("RS256", lambda: rsa("one")),
        signed("RS256", lambda: rsa("another"), kid="another"),
        signed("RS256", lambda: rsa("one"), kid=None),
        signed("RS256", kid=7),
        signed("RS256", crit=["x"], x=1),
        claims(iss="https://other.example"),
        claims(iss=None),
        claims(aud="another"),
        claims(aud=["another"]),
        claims(aud=None),
        claims(aud={"sluice": 1}),
        claims(aud=["sluice", "another"]),
        claims(azp="another"),
        at(exp=-LEEWAY_SECONDS - 5),
        claims(exp=None),
        claims(exp="tomorrow"),
        claims(exp=True),
        at(iat=-3600),
        at(iat=LEEWAY_SECONDS + 60),
        claims(iat=None),
        at(nbf=LEEWAY_SECONDS + 60),
        claims(nonce="another"),
        claims(nonce=None),
        claims(nonce=""),
        claims(nonce=["another"]),
        claims(at_hash="AAAA"),
        claims(sub=None),
        claims(sub=""),
        claims(sub=1),
        claims(sub=["1"]),
        claims(sub="x" * 256),
        token(None),
        token(""),
        token("a.b.c"),
        token("é.é.é"),
        token("." * 10_000),
        token("e30.e30."),
        token(["eyJhbGciOiJub25lIn0.e30."]),
        token("x" * 200_000),
    ],
    ids=lambda change: getattr(change, "__name__", "")[:40],
)
async def test_a_token_that_proves_nobody_lets_nobody_in(
    change: Change, place: Place, provider: ScriptedProvider
) -> None:
    change(provider)
    browser = place.browser()
    await assert_outside(browser, await came_back(browser, provider), 401, 503)
    assert not place.people.people
    assert not len(place.browsers)


@pytest.mark.parametrize(
    "change",
    [
        at(exp=-LEEWAY_SECONDS + 50),
        at(iat=LEEWAY_SECONDS - 1),
        claims(aud=["sluice"]),
        claims(azp="sluice"),
        claims(aud=["sluice", "another"], azp="sluice"),
        claims(groups=["gpu-admins", 7, None, {}, *("x" * 10 for _ in range(1000))]),
        claims(preferred_username={"a": 1}, email="a@example.org"),
        signed("RS256", kid=None),
        signed("PS256", kid="one"),
    ],
)
async def test_what_is_right_within_bounds_is_let_in(
    change: Change, place: Place, provider: ScriptedProvider
) -> None:
    provider.key = for_any_algorithm()
    provider.keys = [provider.key]
    change(provider)
    answer = await came_back(place.browser(), provider)
    assert answer.status_code == 303, answer.text


async def test_names_and_groups_are_text_and_bounded(
    place: Place, provider: ScriptedProvider
) -> None:
    provider.claims["preferred_username"] = "<script>alert(1)</script>\n\x1b[31m" + "x" * 500
    browser = place.browser()
    assert (await came_back(browser, provider)).status_code == 303
    html = (await browser.get("/audit")).text
    assert "<script>alert" not in html
    [person] = place.people.people.values()
    assert len(person.name) == 100
    assert person.name.isprintable()


# the browser's part: state, code, cookies


async def test_an_answer_that_this_browser_did_not_ask_for_is_refused(
    place: Place, provider: ScriptedProvider
) -> None:
    """Somebody's own code in another's browser would sign them in as somebody."""
    attacker, victim = place.browser(), place.browser()
    theirs = await sent(attacker, provider)
    answer = await victim.get("/sign-in/oidc/callback", state=theirs["state"], code="right")
    await assert_outside(victim, answer, 400)
    await sent(victim, provider)
    answer = await victim.get("/sign-in/oidc/callback", state=theirs["state"], code="right")
    await assert_outside(victim, answer, 400)
    assert "/token" not in provider.asked


@pytest.mark.parametrize(
    "query",
    [
        "",
        "code=right",
        "state=&code=right",
        "state=%00&code=right",
        "state=é&code=right",
        "state=STATE",
        "state=STATE&code=",
        "state=STATE&code=right&code=other",
        "state=STATE&state=STATE&code=right",
        "state=STATE&error=access_denied",
        "state=STATE&error=%3Cscript%3E&code=right",
        "state=STATE&code=right&iss=https://other.example",
        "state=STATE&code=" + "x" * 5000,
    ],
)
async def test_an_answer_that_is_not_whole_is_refused(
    query: str, place: Place, provider: ScriptedProvider
) -> None:
    browser = place.browser()
    state = (await sent(browser, provider))["state"]
    answer = await browser.client.get(
        f"/console/sign-in/oidc/callback?{query.replace('STATE', state)}"
    )
    await assert_outside(browser, answer, 400, 401)
    assert "<script>" not in answer.text.replace("<script defer", "")
    assert "/token" not in provider.asked


async def test_an_answer_is_good_once(place: Place, provider: ScriptedProvider) -> None:
    browser = place.browser()
    query = await sent(browser, provider)
    given = {"state": query["state"], "code": "right"}
    assert (await browser.get("/sign-in/oidc/callback", **given)).status_code == 303
    browser.client.cookies.delete("sluice_console")
    await assert_outside(browser, await browser.get("/sign-in/oidc/callback", **given), 400)


async def test_a_stolen_code_is_worth_nothing_without_its_verifier(
    place: Place, provider: ScriptedProvider
) -> None:
    """The challenge is of another sign-in: the provider refuses, and says so on the page."""
    victim, thief = place.browser(), place.browser()
    theirs = await sent(thief, provider)
    await sent(victim, provider)  # the code is of this one's challenge
    answer = await thief.get("/sign-in/oidc/callback", state=theirs["state"], code="right")
    await assert_outside(thief, answer, 401)
    assert "invalid_grant" in answer.text


async def test_a_session_of_before_is_no_session_of_the_person(
    place: Place, provider: ScriptedProvider
) -> None:
    """A cookie that somebody planted does not become the person's; an own one of before ends."""
    browser = await place.signed_in("viewer")
    before = browser.client.cookies["sluice_console"]
    assert (await came_back(browser, provider)).status_code == 303
    assert browser.client.cookies["sluice_console"] != before
    other = place.browser()
    other.client.cookies.set("sluice_console", before)
    assert (await other.get("/nodes")).status_code == 303
    planted = place.browser()
    planted.client.cookies.set("sluice_console", "planted", domain="pool.example")
    await came_back(planted, provider)
    thief = place.browser()
    thief.client.cookies.set("sluice_console", "planted")
    assert (await thief.get("/nodes")).status_code == 303


@pytest.mark.parametrize(
    "page", ["//evil.example", "https://evil.example/", "/\\evil.example", "/v1/tokens"]
)
async def test_nobody_is_sent_elsewhere(
    page: str, place: Place, provider: ScriptedProvider
) -> None:
    browser = place.browser()
    answer = await browser.get("/sign-in/oidc", next=page)
    query = provider.went(answer.headers["location"])
    answer = await browser.get("/sign-in/oidc/callback", state=query["state"], code="right")
    assert answer.headers["location"] == "/console/"
    # and not by a cookie that somebody else wrote, for a secret of theirs
    sign_in = SignIn("chosen")
    forged = place.browser()
    forged.client.cookies.set("sluice_console_oidc", "chosen." + page.replace("/", "%2F"))
    provider.nonce = sign_in.nonce
    provider.challenge = ""
    answer = await forged.get("/sign-in/oidc/callback", state=sign_in.state, error="x")
    assert f'value="{page}"' not in answer.text


async def test_a_form_of_another_site_changes_no_role(
    place: Place, provider: ScriptedProvider
) -> None:
    browser = place.browser()
    await came_back(browser, provider)
    form = fields_of((await browser.get("/nodes")).text, "/console/sign-out")
    fields = {**form, "assignment": "admin"}
    answer = await browser.post("/work-as", fields, origin="https://evil.example")
    assert answer.status_code == 403
    assert (await browser.post("/work-as", {**fields, "csrf": ""})).status_code == 403
