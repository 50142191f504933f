# SPDX-License-Identifier: Apache-2.0
"""A pool of real processes, and people who look at it in a real Chromium.

A Person has a browser context of its own (cookies, size, colours) and notes what pages do that they
must not: errors, what the policy of content refused, requests to other hosts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from control_plane import ControlPlane
from free_ports import free_port
from playwright.sync_api import Browser, Page, Playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-dev-shm-usage",
]
AXE = Path(__file__).resolve().parents[2] / "build" / "console" / "axe.min.js"
WIDE, NARROW = (1280, 900), (360, 740)
GPUS = 5
SERIOUS = ("serious", "critical")
#: Of an operator, one that fires and one that looks at nothing.
RULES = """
[few-nodes]
    metric = sluice_pool_nodes
    labels = state=up
    comparison = <
    threshold = 3
    severity = info
    text = fewer than three nodes are up
[no-such-project]
    metric = sluice_project_vgpus
    labels = project=nobody
    comparison = >
    threshold = 1
    text = nobody holds something
"""


def launched(playwright: Playwright) -> Browser:
    """Debian's Chromium, without a window."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, headless=True)


class Pool:
    """A controller that wants tokens, a server with five GPUs, and tokens of every role."""

    def __init__(self, folder: Path, oidc: Callable[[str], dict[str, Any]] | None = None) -> None:
        """`oidc` makes the section of the console's own address."""
        token_file = folder / "node.token"
        port = free_port()
        rules = folder / "alerts.conf"
        rules.write_text(RULES)
        self.plane = ControlPlane(
            folder,
            fake=True,
            # all browsers have one address
            auth={"required": "yes", "requests_per_second": 2000},
            token_file=token_file,
            environment={"SLUICE_FAKE_WORKER_GPUS": str(GPUS)},
            rest_port=port,
            alerts={"rules_file": rules},
            oidc=oidc(f"http://127.0.0.1:{port}") if oidc else None,
        )
        self.plane.start_controller()
        self.tokens = {"admin": self.plane.first_token()}
        self.plane.rest = self.plane.rest_as(self.tokens["admin"])
        token_file.write_text(self.token({"role": "node", "node": self.plane.node}) + "\n")
        self.plane.start_server()
        for name, more in (
            ("operator", {}),
            ("viewer", {}),
            ("tenant", {"project": "vision"}),
        ):
            self.tokens[name] = self.token({"role": name, "name": name, **more})

    def token(self, wanted: dict[str, Any]) -> str:
        """A new token's secret."""
        return str(self.plane.rest.post("/tokens", json=wanted).json()["secret"])

    def close(self) -> None:
        self.plane.close()


class Person:
    """Who looks at the pool in a browser of its own."""

    def __init__(
        self, browser: Browser, url: str, size: tuple[int, int], *, dark: bool, **more: Any
    ) -> None:
        self.url = url
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            **more,
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.wrong: list[str] = []
        self.hosts: set[str] = set()
        self.bytes = 0
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda sent: self.hosts.add(urlsplit(sent.url).netloc))
        self.page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            self.wrong.append(message.text)

    def open(self, path: str) -> Page:
        """A page of the console."""
        self.page.goto(f"{self.url}/console{path}", wait_until="load")
        return self.page

    def sign_in(self, token: str) -> Page:
        """As people do."""
        page = self.open("/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "sign-in" not in url)
        return page

    def until_live(self) -> None:
        """Until the page's event stream is open."""
        self.page.locator("#liveness.live").wait_for()

    def act(self, action: str, target: str = "", **fields: str) -> None:
        """Opens an action's page, fills it in and sends it."""
        query = f"/do?action={action}&target={target}"
        page = self.open(query)
        for name, value in fields.items():
            field = page.locator(f"[name={name}]")
            if field.get_attribute("type") == "checkbox":
                field.set_checked(value == "1")
            else:
                field.fill(value)
        page.locator("main button").click()
        page.locator(".note.good").wait_for()

    def unaccessible(self) -> list[str]:
        """What axe finds serious on the page."""
        # by the debugging protocol, so that the page's policy stays as it is
        self.page.evaluate(AXE.read_text() + ";0")
        found = self.page.evaluate("axe.run()")
        assert found["passes"], "axe looked at nothing"
        return [
            f"{each['id']}: {each['help']} {json.dumps(each['nodes'][0]['target'])}"
            for each in found["violations"]
            if each["impact"] in SERIOUS
        ]

    def is_too_wide(self) -> bool:
        """Whether the page has to be scrolled sideways."""
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def close(self) -> None:
        self.context.close()


@contextmanager
def pool(folder: Path) -> Iterator[Pool]:
    made = Pool(folder)
    try:
        yield made
    finally:
        made.close()
