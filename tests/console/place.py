# SPDX-License-Identifier: Apache-2.0
"""The controller's application with its console over a real store, without sockets, and browsers.

A Browser keeps cookies and sends what browsers send. Names in the pool are hostile where a peer
chooses them.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from sluice.config.controller import AlertsSection, AuthSection, ConsoleSection
from sluice.config.oidc import OidcSection
from sluice.console.app import add_console
from sluice.console.charts import Histories
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.api.app import build_app
from sluice.controller.auth.access import Access
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.oidc import RelyingParty
from sluice.controller.auth.people import PeopleBook
from sluice.controller.auth.tokens import Role, TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.history.keeper import HistoryKeeper
from sluice.controller.history.prometheus import PrometheusHistory
from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.model import Gpu, Node
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.service import SystemClock
from sluice.controller.store.sqlite import SqliteStore

HOST = "pool.example"
TOKENS = (
    ("admin", Role.ADMIN, ""),
    ("operator", Role.OPERATOR, ""),
    ("viewer", Role.VIEWER, ""),
    ("tenant", Role.TENANT, "vision"),
    ("other", Role.TENANT, "speech"),
)


class Place:
    """One controller's."""

    def __init__(
        self,
        folder: Path,
        oidc: OidcSection | None = None,
        console: ConsoleSection | None = None,
    ) -> None:
        self.console = console or ConsoleSection()
        self.folder = folder
        self.oidc = oidc or OidcSection()
        self.store = SqliteStore(folder / "store.db")
        self.secrets: dict[str, str] = {}
        self.ids: dict[str, str] = {}

    async def open(self, *, console: bool = True) -> None:
        snapshot = await self.store.load()
        self.tokens = TokenBook(self.store, snapshot.documents)
        numbers = itertools.count(1)
        self.pool = Pool(SystemClock(), lambda: f"{next(numbers):016x}")
        enrolments = EnrolmentBook(self.store, self.tokens)
        self.people = PeopleBook(self.store, self.oidc, snapshot.documents)
        self.access = Access(
            AuthSection(), self.tokens, enrolments, loopback_only=True, people=self.people
        )
        self.party = RelyingParty(self.oidc) if self.oidc.issuer else None
        self.browsers = BrowserSessions(self.access, snapshot.documents)
        self.grants = GrantService(self.pool, self.store)
        service = PoolService(self.grants, 5)
        browsers = self.browsers if console else None
        self.alerts = AlertWatch(self.grants, AlertsSection())
        self.app: Any = build_app(
            self.grants, service, 60, self.access, browsers=browsers, alerts=self.alerts
        )
        self.history = HistoryKeeper(self.pool, self.folder / "history.db")
        prometheus = PrometheusHistory(self.console) if self.console.prometheus_url else None
        histories = Histories(self.history, prometheus)
        if browsers is not None:
            self.live = add_console(
                self.app, self.grants, browsers, histories, self.alerts, self.party
            )
        if not self.tokens.tokens:
            for name, role, project in TOKENS:
                token, secret = await self.tokens.create(
                    role, by="test", name=name, project=project
                )
                self.secrets[name], self.ids[name] = secret, token.id

    def node(self, name: str = "node-a", gpus: int = 2, model: str = "Model", **gpu: Any) -> None:
        found = [Gpu(name, f"{name}-gpu{i}", model, 8000, **gpu) for i in range(gpus)]
        self.pool.membership.register(Node(name, "10.0.0.1", 9960, "1", 4), found, [])

    async def granted(self, project: str = "vision", **wanted: Any) -> Granted:
        request = f"r{len(self.pool.grants)}"
        values = {"memory_mib": 1000, "compute_percent": 25, "program": "train.py", **wanted}
        got: list[Granted] = []

        def decide() -> Any:
            decisions = self.pool.requests.submit(GrantRequest(request, project=project, **values))
            answer = decisions.answers[request]
            assert isinstance(answer, Granted), answer
            got.append(answer)
            decisions.answers.clear()  # nobody waits for it, and it is not taken back
            return decisions

        await self.grants.step(decide)
        return got[0]

    def browser(self, scheme: str = "http") -> Browser:
        return Browser(self, scheme)

    async def signed_in(self, name: str) -> Browser:
        browser = self.browser()
        answer = await browser.sign_in(self.secrets[name])
        assert answer.status_code == 303, answer.text
        return browser

    async def audit(self) -> list[str]:
        return [f"{e.kind} {e.subject} {e.text}" for e in await self.store.events(100)]


class Browser:
    """Follows no redirection by itself."""

    def __init__(self, place: Place, scheme: str) -> None:
        transport = httpx.ASGITransport(place.app, client=("10.0.0.9", 1))
        self.origin = f"{scheme}://{HOST}"
        self.client = httpx.AsyncClient(transport=transport, base_url=self.origin)

    async def get(self, path: str, **query: str) -> httpx.Response:
        text = f"?{urlencode(query)}" if query else ""
        return await self.client.get(f"/console{path}{text}")

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        sent = {"origin": self.origin, "sec-fetch-site": "same-origin", **headers}
        return await self.client.post(f"/console{path}", data=fields, headers=sent)

    async def sign_in(self, token: str, next_page: str = "") -> httpx.Response:
        form = fields_of((await self.get("/sign-in", next=next_page)).text)
        return await self.post("/sign-in", {**form, "token": token})

    async def form(self, action: str, target: str = "") -> dict[str, str]:
        page = await self.get("/do", action=action, target=target)
        assert page.status_code == 200, page.text
        return fields_of(page.text, "/console/do")

    async def act(self, action: str, target: str = "", **fields: str) -> httpx.Response:
        return await self.post("/do", {**await self.form(action, target), **fields})


def fields_of(html: str, action: str = "") -> dict[str, str]:
    """What a form is sent with if nothing is written into it."""
    forms = re.findall(r"<form[^>]*action=\"([^\"]*)\"[^>]*>(.*?)</form>", html, re.DOTALL)
    body = next(body for where, body in forms if where.startswith(action or "/console/sign-in"))
    inputs = [
        dict(re.findall(r'(\w+)="([^"]*)"', each)) for each in re.findall(r"<input[^>]*", body)
    ]
    found = {
        each["name"]: each.get("value", "")
        for each in inputs
        if each.get("type") not in ("checkbox", "password")
    }
    for name, options in re.findall(
        r'<select[^>]*name="(\w+)"[^>]*>(.*?)</select>', body, re.DOTALL
    ):
        chosen = re.search(r'value="(\w+)" selected', options)
        found[name] = chosen[1] if chosen else ""
    return found
