# SPDX-License-Identifier: Apache-2.0
"""The OpenID Connect provider over the network: what it says of itself, its keys, its answers.

Used by oidc.RelyingParty. Nothing of a provider is trusted to end, to be small or to be what it
should be: an answer has MOST_BYTES and MOST_SECONDS, redirections and proxies are not followed,
and every address that it names is HTTPS where its issuer is. What it says of itself is kept for
METADATA_SECONDS; its keys until a token is signed with another, and are then fetched anew, at most
every KEYS_APART_SECONDS, however many such tokens somebody makes up.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

MOST_BYTES = 256 << 10
MOST_SECONDS = 10.0
CONNECT_SECONDS = 4.0
METADATA_SECONDS = 3600.0
KEYS_APART_SECONDS = 30.0
#: After a failure it is asked again, and who signs in meanwhile is told at once.
FAILED_SECONDS = 5.0
MOST_KEYS = 64
WELL_KNOWN = "/.well-known/openid-configuration"
#: How it may be asked, the first it knows.
AUTHENTICATIONS = ("client_secret_basic", "client_secret_post")


class ProviderError(Exception):
    """The provider cannot be asked, or answers what it must not; the message says which."""


class Provider:
    """One provider."""

    def __init__(
        self,
        issuer: str,
        ca_file: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self._ca_file = ca_file
        self._monotonic = monotonic
        self._metadata: dict[str, Any] = {}
        self._metadata_until = 0.0
        self._failure = ("", 0.0)
        self._keys = KeySet([])
        self._keys_after = float("-inf")  # before then they are not fetched again
        self._keys_failure = ""
        self._lock = asyncio.Lock()
        self._tls: ssl.SSLContext | None = None  # reading the machine's CAs takes a while

    async def metadata(self) -> Mapping[str, Any]:
        """What it says of itself; raises ProviderError."""
        async with self._lock:
            now = self._monotonic()
            if now < self._metadata_until:
                return self._metadata
            text, until = self._failure
            if now < until:
                raise ProviderError(text)
            self._tls = None  # another CA counts from here on
            try:
                found = await self.ask("GET", self.issuer.rstrip("/") + WELL_KNOWN)
                self._check(found)
            except ProviderError as error:
                self._failure = (str(error), self._monotonic() + FAILED_SECONDS)
                raise
            self._metadata, self._metadata_until = found, now + METADATA_SECONDS
            return found

    def _check(self, found: Mapping[str, Any]) -> None:
        if found.get("issuer") != self.issuer:
            raise ProviderError(
                f"{self.issuer} says that its issuer is {_shown(found.get('issuer'))}; set [oidc] "
                "issuer to that, letter by letter"
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            self._check_address(name, found.get(name))
        if "userinfo_endpoint" in found:
            self._check_address("userinfo_endpoint", found["userinfo_endpoint"])
        methods = found.get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" not in methods:
            raise ProviderError(f"{self.issuer} does not support PKCE with S256")

    def _check_address(self, name: str, value: object) -> None:
        schemes = ("https",) if self.issuer.startswith("https:") else ("https", "http")
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
        except ValueError:
            parts = None
        if parts is None or parts.scheme not in schemes or not parts.hostname or parts.fragment:
            raise ProviderError(
                f"{self.issuer} has no {name} that can be used: {_shown(value)}; it must be an "
                f"address that begins with {' or '.join(schemes)}://"
            )

    async def keys(self, key_id: str | None) -> KeySet:
        """Its keys, fetched anew where this one is not among them; raises ProviderError."""
        address = (await self.metadata())["jwks_uri"]
        async with self._lock:  # who waits here finds what was fetched meanwhile
            there = bool(self._keys.keys)
            known = key_id is None or any(key.kid == key_id for key in self._keys.keys)
            if self._monotonic() < self._keys_after:
                if not there:
                    raise ProviderError(self._keys_failure)
                return self._keys
            if there and known:
                return self._keys
            # anybody can make up a token that names a key
            self._keys_after = self._monotonic() + FAILED_SECONDS
            try:
                self._keys = _key_set(self.issuer, await self.ask("GET", address))
            except ProviderError as error:
                self._keys_failure = str(error)
                raise
            self._keys_after = self._monotonic() + KEYS_APART_SECONDS
            return self._keys

    async def authentication(self) -> str:
        """How a client with a secret shows it: basic unless it is said not to be known."""
        known = (await self.metadata()).get("token_endpoint_auth_methods_supported")
        if not isinstance(known, list):
            return AUTHENTICATIONS[0]
        return next((each for each in AUTHENTICATIONS if each in known), AUTHENTICATIONS[0])

    async def ask(
        self,
        method: str,
        address: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        basic: tuple[str, str] | None = None,
        refused: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        """A JSON object of it; a status of `refused` comes back too. Raises ProviderError."""
        sent = {"accept": "application/json", "accept-encoding": "identity", **(headers or {})}
        auth = httpx.BasicAuth(*basic) if basic else None
        try:
            async with (
                asyncio.timeout(MOST_SECONDS),
                httpx.AsyncClient(
                    verify=self._context(),
                    trust_env=False,
                    follow_redirects=False,
                    timeout=httpx.Timeout(MOST_SECONDS, connect=CONNECT_SECONDS),
                ) as client,
                client.stream(method, address, data=form, headers=sent, auth=auth) as answer,
            ):
                if answer.status_code != 200 and answer.status_code not in refused:
                    raise ProviderError(f"{_short(address)} answers with {answer.status_code}")
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise ProviderError(f"{_short(address)} packs its answer, unasked")
                body = await _bounded(answer.aiter_raw(), address)
        except TimeoutError:
            raise ProviderError(
                f"{_short(address)} does not answer within {MOST_SECONDS:g} s"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            what = f"{type(error).__name__} {error}".strip()[:200]
            raise ProviderError(f"{_short(address)} cannot be asked: {what}") from None
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise ProviderError(f"{_short(address)} answers with no JSON") from None
        if not isinstance(found, dict):
            raise ProviderError(f"{_short(address)} answers with no JSON object")
        return found

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._ca_file and str(self._ca_file))
        return self._tls


async def _bounded(pieces: AsyncIterator[bytes], address: str) -> bytes:
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > MOST_BYTES:
            raise ProviderError(f"{_short(address)} answers with more than {MOST_BYTES} bytes")
    return bytes(body)


def _key_set(issuer: str, found: Mapping[str, Any]) -> KeySet:
    """Those of its keys that can be read: others may be of kinds that come after us."""
    keys = found.get("keys")
    if not isinstance(keys, list):
        raise ProviderError(f"{issuer} has no list of keys")
    usable = []
    for each in keys[:MOST_KEYS]:
        # a symmetric one would be known to whoever reads the list
        if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use") == "enc":
            continue
        try:
            usable += KeySet.import_key_set({"keys": [each]}).keys
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue
    if not usable:
        raise ProviderError(f"{issuer} has no key that can be used to check what it signs")
    return KeySet(usable)


def _short(address: str) -> str:
    return address.partition("?")[0][:200]


def _shown(value: object) -> str:
    return f"{value!a}"[:200]
