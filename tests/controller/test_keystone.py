# SPDX-License-Identifier: Apache-2.0
"""Whose a Keystone token is: named accounts are let in, and Keystone is asked once a minute."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.controller.auth.access import Denied
from sluice.controller.auth.keystone import MOST_CHARACTERS, KeystoneTokens


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
