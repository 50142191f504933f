# SPDX-License-Identifier: Apache-2.0
"""Signing in by OpenID Connect: the authorization code flow with PKCE, and what is checked of it.

Used by console.person_sign_in. Authlib puts the requests of the protocol together and judges the
claims of ID tokens, joserfc their signatures. What belongs to one sign-in (state, nonce, the
verifier of PKCE) is made of one secret, which only that browser has, in a cookie that scripts
cannot read: so there is nothing here that somebody could fill up, and another controller may finish
what one began.

It promises that a person comes of an ID token only that the provider signed with an asymmetric key,
for this client, in answer to this browser's own request, a short while ago.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jws, jwt
from joserfc.errors import JoseError

from sluice.config.oidc import OidcSection
from sluice.controller.auth.oidc_provider import Provider, ProviderError
from sluice.resources.first_tokens import hash_of

#: None, and none of a secret that provider and client share: those anybody makes who knows it.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
LEEWAY_SECONDS = 60
#: An ID token of this flow has just been made.
OLDEST_SECONDS = 600
MOST_TOKEN = 64 << 10
MOST_SUBJECT = 255
MOST_NAME = 100
MOST_GROUPS = 5000
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


class NotProven(Exception):
    """The provider's answer proves nobody; the message says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, as the provider says."""

    issuer: str
    subject: str  # never another's, at this issuer
    name: str  # for people; may be another's later
    groups: tuple[str, ...]
    sid: str = ""  # the session at the provider; empty: it names none


@dataclass(frozen=True, slots=True)
class SignIn:
    """One sign-in: what it sends and expects, all made of its secret."""

    secret: str

    @classmethod
    def begun(cls) -> SignIn:
        """A new one."""
        return cls(secrets.token_urlsafe(32))

    @property
    def state(self) -> str:
        """Comes back with the answer, so that it is of this browser's request."""
        return hash_of(f"sluice oidc state {self.secret}")

    @property
    def nonce(self) -> str:
        """Stands in the ID token, so that it is of this request."""
        return hash_of(f"sluice oidc nonce {self.secret}")

    @property
    def verifier(self) -> str:
        """Shown with the code, so that nobody else's code is taken."""
        return hash_of(f"sluice oidc verifier {self.secret}")


class RelyingParty:
    """This controller as a client of one provider."""

    def __init__(
        self,
        section: OidcSection,
        wall: Callable[[], float] = time.time,
        provider: Provider | None = None,
    ) -> None:
        self.section = section
        self._wall = wall
        self.provider = provider or Provider(section.issuer, section.ca_file)

    def client_secret(self) -> str:
        """As its file has it now; empty: it is a public client. Raises ProviderError."""
        if (path := self.section.client_secret_file) is None:
            return ""
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderError(
                f"{path} cannot be read ({error}); let [oidc] client_secret_file name the file "
                "with the client's secret"
            ) from None
        if not found:
            raise ProviderError(f"{path} is empty; write the client's secret into it")
        return found

    async def address(self, sign_in: SignIn, redirect: str) -> str:
        """Where the browser is sent to; raises ProviderError."""
        metadata = await self.provider.metadata()
        scopes = dict.fromkeys(["openid", *self.section.scopes])
        address: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            self.section.client_id,
            "code",
            redirect_uri=redirect,
            scope=" ".join(scopes),
            state=sign_in.state,
            nonce=sign_in.nonce,
            code_challenge=create_s256_code_challenge(sign_in.verifier),
            code_challenge_method="S256",
        )
        return address

    async def identity(self, sign_in: SignIn, code: str, redirect: str) -> Identity:
        """Who the code is of; raises ProviderError or NotProven."""
        answer = await self._exchange(sign_in, code, redirect)
        access_token = answer.get("access_token")
        token, header = await self._signed(answer.get("id_token"))
        self._check_id_token(sign_in, token, header, access_token)
        claims = dict(token)
        if self.section.groups_claim not in claims or self.section.name_claim not in claims:
            claims = {**await self._userinfo(claims["sub"], access_token), **claims}
        return Identity(
            self.section.issuer,
            claims["sub"],
            self._name(claims),
            self._groups(claims),
            sid if isinstance(sid := claims.get("sid"), str) and len(sid) <= MOST_SUBJECT else "",
        )

    async def _exchange(self, sign_in: SignIn, code: str, redirect: str) -> dict[str, Any]:
        metadata = await self.provider.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": sign_in.verifier,
            "client_id": self.section.client_id,
        }
        basic = None
        if secret := self.client_secret():
            if await self.provider.authentication() == "client_secret_basic":
                # RFC 6749, 2.3.1: both are encoded first; a blank so that every reader knows it
                basic = (quote(self.section.client_id, safe=""), quote(secret, safe=""))
            else:
                form["client_secret"] = secret
        answer = await self.provider.ask(
            "POST", metadata["token_endpoint"], form=form, basic=basic, refused=(400, 401)
        )
        if "error" in answer:
            raise NotProven(
                f"the provider refused the code of this sign-in: {_shown(answer['error'])} "
                f"{_shown(answer.get('error_description', ''))}"
            )
        return answer

    async def _signed(self, token: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """The claims and the header of a token that the provider signed; raises as above."""
        if not isinstance(token, str) or not token.isascii() or len(token) > MOST_TOKEN:
            raise NotProven("the provider's answer has no ID token that could be one")
        try:
            header = dict(jws.extract_compact(token.encode()).headers())
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise NotProven(f"a token cannot be read ({_why(error)})") from None
        key_id, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in ALGORITHMS:
            raise NotProven(f"a token is signed by {_shown(algorithm)}, which proves nothing")
        if key_id is not None and not isinstance(key_id, str):
            raise NotProven("a token names its key by something else than text")
        keys = await self.provider.keys(key_id)
        # without a name any of them may be meant
        named = [key for key in keys.keys if key_id in (None, key.kid)]
        why = "it has no key of that name"
        for key in named:
            try:
                read = jwt.decode(token, key, algorithms=[algorithm])
            except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
                why = _why(error)
            else:
                return dict(read.claims), header
        raise NotProven(f"a token is not signed by the provider ({why})")

    def _check_id_token(
        self,
        sign_in: SignIn,
        claims: Mapping[str, Any],
        header: Mapping[str, Any],
        access_token: object,
    ) -> None:
        self._check_times(claims)
        client = self.section.client_id
        options = {
            "iss": {"essential": True, "value": self.section.issuer},
            "aud": {"essential": True, "value": client},
        }
        params = {
            "nonce": sign_in.nonce,
            "client_id": client,
            "access_token": access_token if isinstance(access_token, str) else None,
        }
        judged = CodeIDToken(dict(claims), dict(header), options, params)
        try:
            judged.validate(now=int(self._wall()), leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotProven(f"the ID token is not for this sign-in ({_why(error)})") from None
        self._check_whose(claims)

    def _check_whose(self, claims: Mapping[str, Any]) -> None:
        """Once more without a library: this is what everything else hangs on."""
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != self.section.issuer or self.section.client_id not in audiences:
            raise NotProven("a token is of another issuer, or for another client")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= MOST_SUBJECT:
            raise NotProven(f"a token's `sub` is not a text of 1 to {MOST_SUBJECT} characters")

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        issued, expires = claims.get("iat"), claims.get("exp")
        for value in (issued, expires):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise NotProven("a token does not say when it was made and until when it is good")
        assert issued is not None
        assert expires is not None
        now = self._wall()
        if not now - OLDEST_SECONDS - LEEWAY_SECONDS <= issued <= now + LEEWAY_SECONDS:
            raise NotProven(
                "a token was not made just now: compare the clocks of this controller and of the "
                f"provider, which may differ by {LEEWAY_SECONDS} s"
            )
        if not now - LEEWAY_SECONDS < expires:
            raise NotProven("a token is good no longer")

    async def _userinfo(self, subject: str, access_token: object) -> dict[str, Any]:
        """More claims of the same person, where the provider has an endpoint for that."""
        address = (await self.provider.metadata()).get("userinfo_endpoint")
        if not address or not isinstance(access_token, str) or not access_token.isascii():
            return {}
        if not access_token.isprintable() or len(access_token) > MOST_TOKEN:
            return {}
        headers = {"authorization": f"Bearer {access_token}"}
        found = await self.provider.ask("GET", address, headers=headers)
        if found.get("sub") != subject:
            raise NotProven("the provider tells of another person than the ID token's")
        return found

    def _name(self, claims: Mapping[str, Any]) -> str:
        for claim in (self.section.name_claim, "email", "name"):
            value = claims.get(claim)
            if isinstance(value, str) and (plain := _plain(value)):
                return plain
        return _plain(claims["sub"]) or "?"

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        """Those that the settings say something of: nothing else is kept."""
        found = claims.get(self.section.groups_claim)
        names = found if isinstance(found, list) else [found]
        own = {each for each in names[:MOST_GROUPS] if isinstance(each, str)}
        return tuple(name for name in self.section.groups if name in own)

    async def logged_out(self, token: str) -> tuple[str, str]:
        """Whom a logout token is about: subject and session, one may be empty; raises as above."""
        claims, header = await self._signed(token)
        if header.get("typ") not in ("logout+jwt", "JWT", None):
            raise NotProven("a logout token's type is another's")
        self._check_times({"exp": self._wall() + 1, **claims})
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != self.section.issuer or self.section.client_id not in audiences:
            raise NotProven("a logout token is of another issuer, or for another client")
        events = claims.get("events")
        if not isinstance(events, dict) or LOGOUT_EVENT not in events or "nonce" in claims:
            raise NotProven("a token is no logout token")
        subject, sid = claims.get("sub", ""), claims.get("sid", "")
        if not isinstance(subject, str) or not isinstance(sid, str) or not (subject or sid):
            raise NotProven("a logout token names nobody")
        return subject, sid


def _plain(text: str) -> str:
    """One line without control characters, of bounded length."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:MOST_NAME]


def _why(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()[:200]


def _shown(value: object) -> str:
    return f"{value!a}"[:200] if value else ""
