# SPDX-License-Identifier: Apache-2.0
"""Signing in by OpenID Connect: to the provider and back, the role to act in, and its sign-out.

Mounted by console.app where [oidc] names an issuer. The browser is sent to the provider by a link,
as the policy of content lets forms go nowhere else, and keeps the secret of this one sign-in in a
cookie until it comes back. Where the provider fails, the form for tokens is shown with what is
wrong. Who signed in, and who was not let in, is in the audit trail.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, quote, unquote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from sluice.config.peer_lines import CONTROLLER as PEERS
from sluice.config.places import Places, owner_of_address
from sluice.console.sign_in import SIGNED_IN, SIGNED_OUT, TokenForm, with_session
from sluice.console.visit import (
    SIGN_IN,
    Refused,
    checked_form_of_user,
    is_tls,
    secret_of,
    user,
    way_back,
)
from sluice.controller.auth.audit import DENIED
from sluice.controller.auth.browser_sessions import PREFIX, BrowserSessions
from sluice.controller.auth.oidc import Identity, NotProven, RelyingParty, SignIn
from sluice.controller.auth.oidc_provider import ProviderError
from sluice.controller.auth.people import Person

BEGIN = f"{SIGN_IN}/oidc"
CALLBACK = f"{BEGIN}/callback"
BACK_CHANNEL = "/oidc/back-channel-logout"
COOKIE, TLS_COOKIE = "sluice_console_oidc", "__Host-sluice_console_oidc"
SIGN_IN_SECONDS = 900
MOST_CODE = 4096
#: Sign-ins that the provider is being asked about.
MOST_UNDER_WAY = 32
MOST_OF_ADDRESS = 4


def person_routes(browsers: BrowserSessions, party: RelyingParty, form: TokenForm) -> APIRouter:
    """The handlers, bound to one pool's sessions and one provider."""
    routes = APIRouter()
    _PersonSignIn(browsers, party, form).add_to(routes)
    return routes


class _PersonSignIn:
    def __init__(self, browsers: BrowserSessions, party: RelyingParty, form: TokenForm) -> None:
        self._browsers = browsers
        self._party = party
        self._form = form
        self._audit = browsers.access.audit
        self._under_way = Places(MOST_UNDER_WAY, MOST_OF_ADDRESS)

    def add_to(self, routes: APIRouter) -> None:
        """Its pages."""

        @routes.get("/sign-in/oidc")
        async def begin(request: Request, next: str = "") -> Response:  # noqa: A002
            """To the provider."""
            return await self._begin(request, way_back(next))

        @routes.get("/sign-in/oidc/callback")
        async def come_back(request: Request) -> Response:
            """From the provider."""
            return await self._come_back(request)

        @routes.post("/work-as")
        async def work_as(request: Request) -> Response:
            """Another role assignment of the same person."""
            return await self._work_as(request)

        @routes.post(BACK_CHANNEL)
        async def sign_out_by_provider(request: Request) -> Response:
            """The provider says that somebody signed out there."""
            return await self._signed_out_there(request)

    async def _begin(self, request: Request, back: str) -> Response:
        sign_in = SignIn.begun()
        with self._place(request) as refused:
            if refused:
                return self._failed(request, back, refused, 429)
            try:
                address = await self._party.address(sign_in, self._redirect(request))
            except ProviderError as error:
                return self._failed(request, back, f"{error}", 503)
        answer = RedirectResponse(address, 303)
        answer.set_cookie(
            _cookie(request), f"{sign_in.secret}.{quote(back, safe='')}", path="/", httponly=True,
            samesite="lax", secure=is_tls(request), max_age=SIGN_IN_SECONDS,
        )  # fmt: skip
        return answer

    async def _come_back(self, request: Request) -> Response:
        # several of one name are nobody's: the first that is read may be another's than was checked
        pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(pairs)
        secret, _, back = request.cookies.get(_cookie(request), "").partition(".")
        sign_in, back = SignIn(secret), way_back(unquote(back))
        state = given.get("state", "")
        is_ours = bool(secret) and hmac.compare_digest(sign_in.state.encode(), state.encode())
        if not is_ours or len(given) != len(pairs):
            answer = self._failed(
                request, PREFIX + "/", "this answer is of no sign-in of this browser, or of one "
                "that took too long; begin anew", 400,
            )  # fmt: skip
        elif given.get("iss", self._party.section.issuer) != self._party.section.issuer:
            answer = self._failed(request, back, "the answer is another provider's", 400)
        elif "error" in given or not 0 < len(given.get("code", "")) <= MOST_CODE:
            said = f"{given.get('error', 'no code')[:100]!a}"
            answer = self._failed(request, back, f"the provider let you not in: {said}", 401)
        else:
            answer = await self._finish(request, sign_in, given["code"], back)
        if is_ours:  # it is worth nothing any more
            answer.delete_cookie(
                _cookie(request), path="/", httponly=True, samesite="lax", secure=is_tls(request)
            )
        return answer

    async def _finish(self, request: Request, sign_in: SignIn, code: str, back: str) -> Response:
        with self._place(request) as refused:
            if refused:
                return self._failed(request, back, refused, 429)
            try:
                identity = await self._party.identity(sign_in, code, self._redirect(request))
            except ProviderError as error:
                return self._failed(request, back, f"{error}", 503)
            except NotProven as error:
                return self._failed(request, back, f"{error}", 401)
        return await self._let_in(request, identity, back)

    async def _let_in(self, request: Request, identity: Identity, back: str) -> Response:
        people = self._browsers.access.people
        assert people is not None
        person = await people.signed_in(identity, self._browsers.access.tokens.wall())
        rights, assignments = people.rights(person), people.assignments(person)
        # before anything else: what was opened with other rights is over
        ended = await self._browsers.end_changed(person.id, rights)
        who = f"{person.id} ({person.name} of {person.origin}) from {_address(request)}"
        if not assignments:
            await self._audit.refused(DENIED, person.id, f"sign-in without any right: {who}")
            return self._failed(
                request, back, f"{person.name} is in none of the groups that are let in; ask the "
                "pool's operator ([oidc] groups)", 403,
            )  # fmt: skip
        if old := secret_of(request):
            await self._browsers.end(old)
        secret = await self._browsers.open_person(
            person.id, rights, str(assignments[0]), identity.sid
        )
        more = f"; {ended} sessions with other rights ended" if ended else ""
        what = f"signed in to the console as {assignments[0].text}, {who}{more}"
        await self._audit.changed(SIGNED_IN, person.id, what)
        return with_session(RedirectResponse(back, 303), request, secret, self._browsers.seconds)

    async def _work_as(self, request: Request) -> Response:
        fields = await checked_form_of_user(request, self._browsers)
        caller, secret = user(request), secret_of(request)
        session = self._browsers.of_secret(secret)
        wanted = next(
            (each for each in caller.assignments if str(each) == fields.get("assignment")), None
        )
        if session is None or not session.person or wanted is None:
            raise Refused(403, "this is not among what you may act as")
        # a new secret, so that a page of before acts in no other role than it shows
        made = await self._browsers.open_person(
            session.person, session.rights, str(wanted), session.sid, session.expires
        )
        await self._browsers.end(secret)
        await self._audit.changed("audit.work-as", caller.id, f"works as {wanted.text}, {caller}")
        left = session.expires - self._browsers.access.tokens.wall()
        return with_session(RedirectResponse(PREFIX + "/", 303), request, made, max(1.0, left))

    async def _signed_out_there(self, request: Request) -> Response:
        """OpenID Connect Back-Channel Logout 1.0."""
        people = self._browsers.access.people
        assert people is not None
        try:
            fields = dict(parse_qsl((await request.body()).decode("ascii"), max_num_fields=10))
            with self._place(request) as refused:
                if refused:
                    raise NotProven(refused)
                token = fields.get("logout_token", "")
                subject, sid = await self._party.logged_out(token)
        except (NotProven, ProviderError, ValueError) as error:
            address = _address(request)
            PEERS.warning("console: logout", address, "refused back-channel logout: %s", error)
            return Response(status_code=400, headers={"Cache-Control": "no-store"})
        person: Person | None = people.by_subject(subject) if subject else None
        if subject and person is None:
            return Response(status_code=200)
        count = await self._browsers.end_at_provider(person.id if person else "", sid)
        whose = person.id if person else "provider"
        text = f"signed out at the provider ({count} sessions of the console)"
        await self._audit.changed(SIGNED_OUT, whose, text)
        return Response(status_code=200)

    def _failed(self, request: Request, back: str, why: str, status: int) -> Response:
        PEERS.warning("console: OpenID Connect", _address(request), "not signed in: %s", why)
        text = f"Not signed in with {self._party.section.title}: {why}. A token signs in as ever."
        return self._form.shown(request, back, text, status)

    def _redirect(self, request: Request) -> str:
        own = self._party.section.address
        if not own:
            host = request.headers.get("host", "localhost")
            own = f"{'https' if is_tls(request) else 'http'}://{host}"
        return own.rstrip("/") + CALLBACK

    def _place(self, request: Request) -> _Place:
        return _Place(self._under_way, owner_of_address(_address(request)))


class _Place:
    """A place among what the provider is asked at a time; as a context why there is none."""

    def __init__(self, places: Places, owner: str) -> None:
        self._places = places
        self._owner = owner
        self._has = False

    def __enter__(self) -> str:
        self._has = not self._places.take(self._owner)
        return "" if self._has else "too many sign in at this moment; try again"

    def __exit__(self, *_: object) -> None:
        if self._has:
            self._places.give_back(self._owner)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _cookie(request: Request) -> str:
    return TLS_COOKIE if is_tls(request) else COOKIE
