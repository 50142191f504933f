# SPDX-License-Identifier: Apache-2.0
"""Who is let in, what the cookie is like, what ends a session, and what forms need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.console.visit import way_back
from sluice.controller.auth.browser_sessions import MOST_OF_TOKEN, BrowserSessions, csrf_of
from sluice.controller.auth.tokens import Role
from tests.console.place import Place, fields_of


async def test_who_is_not_signed_in_is_sent_to_sign_in_and_back(place: Place) -> None:
    browser = place.browser()
    sent = await browser.client.get("/")
    assert (sent.status_code, sent.headers["location"]) == (303, "/console/")
    sent = await browser.get("/grants", state="all")
    assert sent.headers["location"] == "/console/sign-in?next=%2Fconsole%2Fgrants%3Fstate%3Dall"
    answer = await browser.sign_in(place.secrets["viewer"], "/console/grants?state=all")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/grants?state=all")
    assert (await browser.get("/grants")).status_code == 200


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_scripts_do_not_read_the_cookie(place: Place, scheme: str) -> None:
    browser = place.browser(scheme)
    answer = await browser.sign_in(place.secrets["viewer"])
    cookie = next(c for c in answer.headers.get_list("set-cookie") if "sluice_console=" in c)
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/" in cookie
    assert ("Secure" in cookie) == (scheme == "https") == cookie.startswith("__Host-")
    assert place.secrets["viewer"] not in cookie


@pytest.mark.parametrize("role", [Role.NODE])
async def test_tokens_of_machines_open_no_session(place: Place, role: Role) -> None:
    _, secret = await place.tokens.create(role, by="test", node="node-a")
    answer = await place.browser().sign_in(secret)
    assert answer.status_code == 401
    assert "not for people" in answer.text


async def test_a_wrong_token_is_refused_and_says_nothing_of_itself(place: Place) -> None:
    answer = await place.browser().sign_in("sluice_<b>wrong")
    assert answer.status_code == 401
    assert "wrong" not in re.sub(r"<title>.*?</title>", "", answer.text)
    assert "set-cookie" not in answer.headers or "sluice_console=" not in str(
        answer.headers.get_list("set-cookie")
    )


async def test_a_bearer_token_opens_no_page_and_a_cookie_no_rest(place: Place) -> None:
    browser = await place.signed_in("admin")
    assert (await browser.client.get("/v1/tokens")).status_code == 401
    answer = await place.browser().client.get(
        "/console/nodes", headers={"Authorization": f"Bearer {place.secrets['admin']}"}
    )
    assert answer.status_code == 303


async def test_signing_out_ends_this_session_and_everywhere_all(place: Place) -> None:
    here, there = await place.signed_in("viewer"), await place.signed_in("viewer")
    other = await place.signed_in("operator")
    third = await place.signed_in("viewer")
    kept = dict(here.client.cookies)
    form = fields_of((await here.get("/nodes")).text, "/console/sign-out")
    assert (await here.post("/sign-out", {**form, "where": "here"})).status_code == 303
    here.client.cookies.update(kept)
    assert (await here.get("/nodes")).status_code == 303, "the cookie is worth nothing any more"
    assert (await there.get("/nodes")).status_code == 200
    form = fields_of((await there.get("/nodes")).text, "/console/sign-out")
    await there.post("/sign-out", {**form, "where": "everywhere"})
    assert (await third.get("/nodes")).status_code == 303
    assert (await other.get("/nodes")).status_code == 200, "another token's"
    lines = "\n".join(await place.audit())
    assert f"audit.sign-in {place.ids['viewer']} signed in to the console" in lines
    assert "signed out of the console everywhere (2 sessions)" in lines


async def test_a_revoked_token_ends_its_sessions(place: Place) -> None:
    browser = await place.signed_in("viewer")
    await place.tokens.revoke(place.ids["viewer"], "test")
    assert (await browser.get("/nodes")).status_code == 303


def stored_bytes(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("store.db*")]


async def test_a_session_outlives_the_controller_and_not_its_hours(tmp_path: Path) -> None:
    first = Place(tmp_path)
    await first.open()
    browser = await first.signed_in("viewer")
    stored = b"".join(stored_bytes(tmp_path))
    secret = next(iter(browser.client.cookies.values()))
    assert secret.encode() not in stored
    await first.store.close()
    second = Place(tmp_path)
    await second.open()
    again = second.browser()
    again.client.cookies.update(dict(browser.client.cookies))
    assert (await again.get("/nodes")).status_code == 200
    now = second.tokens.wall()
    second.browsers._wall = lambda: now + second.browsers.seconds + 1
    assert (await again.get("/nodes")).status_code == 303
    await second.store.close()


async def test_a_token_has_so_many_sessions_and_the_oldest_makes_room(place: Place) -> None:
    caller = place.access.by_token(place.secrets["viewer"], "")
    secrets = [await place.browsers.open(caller) for _ in range(MOST_OF_TOKEN + 3)]
    assert len(place.browsers) == MOST_OF_TOKEN
    assert place.browsers.caller(secrets[2], "") is None
    assert place.browsers.caller(secrets[3], "")


async def test_what_a_caller_says_is_not_the_consoles_word(place: Place) -> None:
    """The caller of an inner request is in the scope, where headers do not get."""
    answer = await place.browser().client.get(
        "/v1/tokens", headers={"sluice.console_caller": "admin", "sluice-console-caller": "admin"}
    )
    assert answer.status_code == 401


# forms


async def drain(place: Place, **headers: str) -> tuple[int, bool]:
    place.node()
    browser = await place.signed_in("operator")
    form = await browser.form("node.drain", "node-a")
    form.update({name[5:]: value for name, value in headers.items() if name.startswith("form_")})
    sent = {n.replace("_", "-"): v for n, v in headers.items() if not n.startswith("form_")}
    answer = await browser.post("/do", form, **sent)
    return answer.status_code, place.pool.nodes["node-a"].drained


async def test_a_form_of_the_session_does_what_it_says(place: Place) -> None:
    assert await drain(place) == (303, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"form_csrf": ""},
        {"form_csrf": csrf_of("")},
        {"form_csrf": "é"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[pool.example"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
    ids=str,
)
async def test_a_form_of_anybody_else_does_nothing(place: Place, headers: dict[str, str]) -> None:
    assert await drain(place, **headers) == (403, False)
    assert any("audit.denied" in line and "form of another page" in line
               for line in await place.audit())  # fmt: skip


async def test_a_key_of_idempotency_answers_for_no_form(place: Place) -> None:
    place.node()
    browser = await place.signed_in("operator")
    form = await browser.form("node.drain", "node-a")
    key = {"idempotency-key": "k"}
    assert (await browser.post("/do", form, **key)).status_code == 303
    assert (await browser.post("/do", {**form, "csrf": ""}, **key)).status_code == 403
    assert (await browser.post("/do", form, **key)).status_code == 412, "judged anew"


async def test_a_form_of_another_session_does_nothing(place: Place) -> None:
    place.node()
    mine, yours = await place.signed_in("operator"), await place.signed_in("operator")
    form = await yours.form("node.drain", "node-a")
    assert (await mine.post("/do", form)).status_code == 403
    assert not place.pool.nodes["node-a"].drained


async def test_posts_are_forms_and_every_one_is_checked(place: Place) -> None:
    browser = await place.signed_in("operator")
    form = await browser.form("reservation.create")
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        assert (await browser.post("/do", form, **{"content-type": kind})).status_code == 415
    for path in ("/do", "/sign-out", "/sign-in"):
        assert (await browser.post(path, {"token": "x"})).status_code in (401, 403), path
    too_many = {f"f{n}": "" for n in range(100)}
    assert (await browser.post("/do", too_many)).status_code == 400


async def test_nobody_is_signed_in_by_another_sites_form(place: Place) -> None:
    browser = place.browser()
    form = fields_of((await browser.get("/sign-in")).text)
    del form["csrf"]
    answer = await browser.post("/sign-in", {**form, "token": place.secrets["viewer"]})
    assert answer.status_code == 403
    assert (await browser.get("/nodes")).status_code == 303


@pytest.mark.parametrize(
    "text",
    ["//evil.example", "https://evil.example/console/", "/\\evil.example", "/v1/nodes", "",
     "/console/\r\nSet-Cookie: a=b", "/console/sign-in?next=/console/", "/consolex",
     "javascript:alert(1)", "//[", "/console/\ud800[", "/console//evil.example/..\\"],
)  # fmt: skip
def test_the_way_back_leads_to_the_console_only(text: str) -> None:
    assert way_back(text) == "/console/"


def test_the_way_back_keeps_a_page() -> None:
    assert way_back("/console/gpu?id=a%3Ab") == "/console/gpu?id=a%3Ab"


@pytest.mark.parametrize(
    "cookie",
    ["", "sluice_console", "=;=;", '{"a": 1}; x[]=y; @=@', "sluice_console=\x00", "a" * 9000],
)
def test_any_cookie_can_be_read(cookie: str) -> None:
    assert BrowserSessions.secret_in({"cookie": cookie}, tls=False) in ("", "\x00")


def test_what_others_set_for_the_host_is_in_nobodys_way() -> None:
    cookie = 'x={"a": [1, 2]}; y[]=(z); sluice_console=mine; @,=;'
    assert BrowserSessions.secret_in({"cookie": cookie}, tls=False) == "mine"
    assert BrowserSessions.secret_in({"cookie": cookie}, tls=True) == ""
