# SPDX-License-Identifier: Apache-2.0
"""A provider that answers nonsense, hangs, is away or signs with other keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_certificates import PoolCa

from sluice.config.oidc import OidcSection
from sluice.console import person_sign_in
from sluice.controller.auth import oidc_provider
from sluice.controller.auth.oidc import NotProven, RelyingParty, SignIn
from sluice.controller.auth.oidc_provider import MOST_BYTES, ProviderError
from tests.console.coming_back import Change, assert_outside, came_back
from tests.console.place import Place
from tests.console.scripted_provider import ScriptedProvider, rsa


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


def metadata(**more: Any) -> Change:
    return lambda provider: provider.metadata.update(more)


def answers(path: str, status: int, headers: dict[str, str], body: bytes) -> Change:
    return lambda provider: provider.answers.update({path: lambda _: (status, headers, body)})


WELL_KNOWN = "/.well-known/openid-configuration"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (metadata(issuer="https://other.example"), "set [oidc] issuer to that"),
        (metadata(issuer=None), "set [oidc] issuer to that"),
        (metadata(authorization_endpoint="javascript:alert(1)"), "authorization_endpoint"),
        (metadata(authorization_endpoint="//evil.example/a"), "authorization_endpoint"),
        (metadata(authorization_endpoint=["https://a"]), "authorization_endpoint"),
        (metadata(token_endpoint="file:///etc/passwd"), "token_endpoint"),
        (metadata(jwks_uri="http://[::1"), "jwks_uri"),
        (metadata(userinfo_endpoint="gopher://a"), "userinfo_endpoint"),
        (metadata(code_challenge_methods_supported=["plain"]), "PKCE"),
        (answers(WELL_KNOWN, 200, JSON, b"[]"), "no JSON object"),
        (answers(WELL_KNOWN, 200, JSON, b"\xff<html>"), "no JSON"),
        (answers(WELL_KNOWN, 200, JSON, b"[" * 100_000), "no JSON"),
        (answers(WELL_KNOWN, 500, {}, b"oops"), "answers with 500"),
        (answers(WELL_KNOWN, 302, {"location": "http://127.0.0.1:1/"}, b""), "answers with 302"),
        (answers(WELL_KNOWN, 200, JSON, b" " * (MOST_BYTES + 1)), "more than"),
        (answers(WELL_KNOWN, 200, {"content-encoding": "gzip"}, b"\x1f\x8b"), "packs its answer"),
    ],
)
async def test_a_provider_that_answers_nonsense_is_named_on_the_page(
    change: Change, what: str, place: Place, provider: ScriptedProvider
) -> None:
    change(provider)
    browser = place.browser()
    answer = await browser.get("/sign-in/oidc")
    await assert_outside(browser, answer, 503)
    assert what in answer.text.replace("&#39;", "'").replace("&lt;", "<")
    assert (await browser.sign_in(place.secrets["viewer"])).status_code == 303, "a token does"


@pytest.mark.parametrize(
    "change",
    [
        answers("/token", 200, JSON, b"null"),
        answers("/token", 500, {}, b""),
        answers("/token", 302, {"location": "/"}, b""),
        answers("/token", 200, JSON, b"{" * (MOST_BYTES + 10)),
        answers("/token", 400, JSON, b'{"error": "<script>alert(1)</script>"}'),
        answers("/token", 400, JSON, b'{"error": {"a": 1}, "error_description": 7}'),
        answers("/keys", 200, JSON, b"{}"),
        answers("/keys", 200, JSON, b'{"keys": 7}'),
        answers("/keys", 200, JSON, b'{"keys": [7, {}, {"kty": "RSA"}, {"kty": "x", "kid": []}]}'),
    ],
)
async def test_a_provider_that_fails_later_lets_nobody_in(
    change: Change, place: Place, provider: ScriptedProvider
) -> None:
    change(provider)
    browser = place.browser()
    answer = await came_back(browser, provider)
    await assert_outside(browser, answer, 401, 503)
    assert "<script>alert" not in answer.text


async def test_a_provider_that_hangs_is_waited_for_so_long(
    place: Place, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_provider, "MOST_SECONDS", 0.3)

    def drip(handler: Any) -> None:
        """A byte now and then: no single read takes long."""
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                return
            time.sleep(0.05)

    provider.answers[WELL_KNOWN] = drip
    browser = place.browser()
    answer = await browser.get("/sign-in/oidc")
    await assert_outside(browser, answer, 503)
    assert "does not answer within" in answer.text
    asked = len(provider.asked)
    await assert_outside(browser, await browser.get("/sign-in/oidc"), 503)
    assert len(provider.asked) == asked, "who comes next is told at once"


async def test_a_provider_that_is_away_is_named_and_comes_back(
    provider: ScriptedProvider, tmp_path: Path
) -> None:
    clock = [100.0]
    section = OidcSection.model_validate({"issuer": provider.issuer, "groups": "a=admin"})
    away = oidc_provider.Provider("http://127.0.0.1:1", monotonic=lambda: clock[0])
    with pytest.raises(ProviderError, match="cannot be asked"):
        await away.metadata()
    there = oidc_provider.Provider(provider.issuer, monotonic=lambda: clock[0])
    provider.answers[WELL_KNOWN] = lambda _: (503, {}, b"")
    party = RelyingParty(section, provider=there)
    for _ in range(3):
        with pytest.raises(ProviderError, match="answers with 503"):
            await party.address(SignIn.begun(), "http://x/")
    assert provider.asked.count(WELL_KNOWN) == 1
    del provider.answers[WELL_KNOWN]
    clock[0] += oidc_provider.FAILED_SECONDS + 1
    assert (await party.address(SignIn.begun(), "http://x/")).startswith(provider.issuer)


async def test_keys_are_renewed_when_the_provider_signs_with_another(
    provider: ScriptedProvider,
) -> None:
    clock = [100.0]
    section = OidcSection.model_validate({"issuer": provider.issuer, "groups": "a=admin"})
    there = oidc_provider.Provider(provider.issuer, monotonic=lambda: clock[0])
    party = RelyingParty(section, provider=there)

    async def proven() -> None:
        sign_in = SignIn.begun()
        provider.went(await party.address(sign_in, "http://x/"))
        await party.identity(sign_in, "right", "http://x/")

    await proven()
    await proven()
    assert provider.asked.count("/keys") == 1
    provider.key = rsa("two")
    provider.keys.append(provider.key)
    provider.header = {"kid": "two"}
    with pytest.raises(NotProven, match="no key of that name"):
        await proven()  # moments after the last time: whoever makes names up gains nothing
    clock[0] += oidc_provider.KEYS_APART_SECONDS + 1
    await proven()
    assert provider.asked.count("/keys") == 2
    for number in range(5):
        provider.header = {"kid": f"made up {number}"}
        with pytest.raises(NotProven):
            await proven()
    assert provider.asked.count("/keys") == 2
    provider.keys.pop(0)  # the old one is withdrawn
    provider.key, provider.header = provider.keys[0], {"kid": "two"}
    await proven()


async def test_keys_that_cannot_be_had_are_not_asked_for_by_each_who_comes(
    provider: ScriptedProvider,
) -> None:
    """Anybody may send a logout token that names a key."""
    clock = [100.0]
    section = OidcSection.model_validate({"issuer": provider.issuer, "groups": "a=admin"})
    there = oidc_provider.Provider(provider.issuer, monotonic=lambda: clock[0])
    party = RelyingParty(section, provider=there)
    provider.answers["/keys"] = lambda _: (503, {}, b"")
    for _ in range(5):
        with pytest.raises(ProviderError, match="answers with 503"):
            await party.logged_out(provider.id_token())
    assert provider.asked.count("/keys") == 1
    del provider.answers["/keys"]
    clock[0] += oidc_provider.FAILED_SECONDS + 1
    made_up = [party.logged_out(provider.id_token()) for _ in range(10)]
    found = await asyncio.gather(*made_up, return_exceptions=True)
    assert all(isinstance(each, NotProven) for each in found), found
    assert provider.asked.count("/keys") == 2


async def test_so_many_are_under_way_at_a_time(
    place: Place, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(person_sign_in._Place, "__enter__", lambda _: "too many")
    browser = place.browser()
    await assert_outside(browser, await browser.get("/sign-in/oidc"), 429)


async def test_a_secret_that_cannot_be_read_is_named(
    provider: ScriptedProvider, tmp_path: Path
) -> None:
    values = {"issuer": provider.issuer, "groups": "a=admin"}
    gone = OidcSection.model_validate({**values, "client_secret_file": tmp_path / "gone"})
    with pytest.raises(ProviderError, match="client_secret_file"):
        RelyingParty(gone).client_secret()
    (tmp_path / "empty").write_text("\n")
    empty = OidcSection.model_validate({**values, "client_secret_file": tmp_path / "empty"})
    with pytest.raises(ProviderError, match="is empty"):
        RelyingParty(empty).client_secret()


async def test_a_provider_is_believed_by_its_certificate_only(tmp_path: Path) -> None:
    ca = PoolCa(tmp_path / "ca")
    right = ca.issue("login", "127.0.0.1", kind="controller")
    expired = ca.issue_expired("login-of-before", "127.0.0.1")
    another = ca.issue("elsewhere", "10.0.0.9", kind="controller")
    for pair, ca_file, is_believed in (
        (right, ca.file, True),
        (right, None, False),
        (expired, ca.file, False),
        (another, ca.file, False),
    ):
        provider = ScriptedProvider((pair.cert, pair.key))
        there = oidc_provider.Provider(provider.issuer, ca_file)
        if is_believed:
            assert (await there.metadata())["issuer"] == provider.issuer
            provider.metadata["token_endpoint"] = "http://127.0.0.1/token"
            there = oidc_provider.Provider(provider.issuer, ca_file)
            with pytest.raises(ProviderError, match="begins with https://"):
                await there.metadata()
        else:
            with pytest.raises(ProviderError, match="CERTIFICATE_VERIFY_FAILED"):
                await there.metadata()
        provider.close()
