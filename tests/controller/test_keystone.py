# SPDX-License-Identifier: Apache-2.0
"""Whose a Keystone token is: named accounts are let in, and Keystone is asked once a minute."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sluice.controller.auth.access import Denied
from sluice.controller.auth.keystone import (
    MOST_CHARACTERS,
    MOST_OF_ADDRESS,
    MOST_REMEMBERED,
    MOST_UNKNOWN_OF_ADDRESS,
    UNKNOWN_SECONDS,
    KeystoneBusy,
    KeystoneTokens,
)


class FakeKeystone:
    """Answers as Keystone does, from a table; counts."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked = 0

    def __call__(self, token: str) -> dict[str, Any] | None:
        self.asked += 1
        answer = self.answers.get(token)
        if isinstance(answer, OSError):
            raise answer
        return answer


def of(name: Any, domain: Any = "default") -> dict[str, Any]:
    return {"user": {"name": name, "domain": {"id": domain}}}


async def test_a_named_account_is_let_in_and_remembered() -> None:
    keystone = FakeKeystone({"t": of("nova")})
    tokens = KeystoneTokens(keystone, ["nova"])
    for _ in range(3):
        caller = await tokens.caller("t", "10.0.0.1")
    assert (caller.id, caller.roles, keystone.asked) == ("keystone-nova", {"openstack"}, 1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "not valid, or of another cloud"),
        (of("admin"), "is of 'admin', and [openstack] users names nova"),
        (of("nova", "evil"), "is of 'nova@evil'"),
        (of("nova\n", "default"), "'nova\\n'"),
        (of(7), "not valid"),
        ({"user": "nova"}, "not valid"),
        ({}, "not valid"),
        (OSError("Keystone answered 503"), "cannot be asked whose the token is"),
    ],
)
async def test_others_are_not(answer: Any, said: str) -> None:
    keystone = FakeKeystone({"t": answer})
    with pytest.raises(Denied) as caught:
        await KeystoneTokens(keystone, ["nova"]).caller("t", "10.0.0.1")
    assert said in str(caught.value)


@pytest.mark.parametrize("token", ["", "x" * (MOST_CHARACTERS + 1), "tökén"])
async def test_keystone_is_not_asked_about_nonsense(token: str) -> None:
    keystone = FakeKeystone({})
    with pytest.raises(Denied):
        await KeystoneTokens(keystone, ["nova"]).caller(token, "10.0.0.1")
    assert keystone.asked == 0


class SlowKeystone:
    """Does not answer before it is told to; counts who waits."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0

    def __call__(self, token: str) -> dict[str, Any] | None:
        self.asked += 1
        self.go.wait(30)
        return of("nova") if token == "good" else None


async def test_made_up_tokens_do_not_take_all_of_keystone() -> None:
    keystone = SlowKeystone()
    tokens = KeystoneTokens(keystone, ["nova"])
    tries = [asyncio.create_task(tokens.caller(f"t{n}", "10.0.0.9")) for n in range(100)]
    await asyncio.sleep(0)
    busy = [each for each in tries if each.done()]
    assert len(busy) == 100 - MOST_OF_ADDRESS
    for each in busy:
        error = each.exception()
        assert isinstance(error, KeystoneBusy)
        assert error.of_address
    nova = asyncio.create_task(tokens.caller("good", "10.0.0.1"))
    same = asyncio.create_task(tokens.caller("good", "10.0.0.1"))
    await asyncio.sleep(0)
    keystone.go.set()
    assert (await nova).id == (await same).id == "keystone-nova"
    assert keystone.asked == MOST_OF_ADDRESS + 1, "one question for all who ask it"
    await asyncio.gather(*tries, return_exceptions=True)
    assert len(tokens._lookups) == 0


async def test_a_token_that_is_none_is_not_looked_up_again_at_once() -> None:
    seconds = 100.0
    keystone = FakeKeystone({"good": of("nova")})
    tokens = KeystoneTokens(keystone, ["nova"], lambda: seconds)
    for _ in range(10):
        with pytest.raises(Denied):
            await tokens.caller("none", "10.0.0.9")
    assert keystone.asked == 1
    keystone.answers["none"] = of("nova")
    seconds += UNKNOWN_SECONDS
    assert (await tokens.caller("none", "10.0.0.9")).id == "keystone-nova"


async def test_an_address_with_many_unknown_tokens_has_to_wait_and_nobody_else() -> None:
    seconds = 100.0
    keystone = FakeKeystone({"good": of("nova")})
    tokens = KeystoneTokens(keystone, ["nova"], lambda: seconds)
    await tokens.caller("good", "10.0.0.1")
    for number in range(MOST_UNKNOWN_OF_ADDRESS):
        with pytest.raises(Denied):
            await tokens.caller(f"t{number}", "10.0.0.9")
    asked = keystone.asked
    for number in range(5000):
        with pytest.raises(KeystoneBusy):
            await tokens.caller(f"more {number}", "10.0.0.9")
    assert keystone.asked == asked
    assert (await tokens.caller("good", "10.0.0.1")).id == "keystone-nova"
    assert keystone.asked == asked, "what is known stays known"
    seconds += UNKNOWN_SECONDS
    with pytest.raises(Denied):
        await tokens.caller("later", "10.0.0.9")


async def test_what_is_remembered_of_tokens_is_bounded() -> None:
    keystone = FakeKeystone({})
    tokens = KeystoneTokens(keystone, ["nova"])
    for number in range(MOST_REMEMBERED + 100):
        with pytest.raises(Denied):
            await tokens.caller(f"t{number}", f"10.{number >> 8}.{number & 255}.1")
    assert len(tokens._unknown) == len(tokens._unknown_of) == MOST_REMEMBERED
