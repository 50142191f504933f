# SPDX-License-Identifier: Apache-2.0
"""A browser that comes back from a scripted provider, and what it must not have become."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from tests.console.place import Browser
from tests.console.scripted_provider import ScriptedProvider

Change = Callable[[ScriptedProvider], None]


async def sent(browser: Browser, provider: ScriptedProvider) -> dict[str, str]:
    answer = await browser.get("/sign-in/oidc")
    assert answer.status_code == 303, answer.text
    return provider.went(answer.headers["location"])


async def came_back(browser: Browser, provider: ScriptedProvider, **more: str) -> httpx.Response:
    query = await sent(browser, provider)
    given = {"state": query["state"], "code": "right", **more}
    return await browser.get("/sign-in/oidc/callback", **given)


async def assert_outside(browser: Browser, answer: httpx.Response, *statuses: int) -> None:
    """Not signed in, told so on a page that can still be signed in from with a token."""
    assert answer.status_code in statuses, answer.text
    assert 'role="alert"' in answer.text
    assert 'name="token"' in answer.text
    assert not any(c.startswith("sluice_console=") for c in answer.headers.get_list("set-cookie"))
    assert (await browser.get("/nodes")).status_code == 303
