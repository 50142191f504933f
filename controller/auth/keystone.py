# SPDX-License-Identifier: Apache-2.0
"""Asks Keystone whose a token is, for callers that are OpenStack's own services.

Used by the access middleware for the one route that Nova calls. Nova shows a Keystone token
(X-Auth-Token); Keystone says whose it is, and only the accounts that the operator named are let in.
Answers are remembered for a minute by the token's hash, as Nova asks several times for each
instance, and that a token is none for some seconds; the token itself is kept nowhere. Anybody can
make tokens up: so Keystone is asked a few things at a time, and fewer for one address. openstacksdk
is imported when a controller is configured for this, and needs only be installed there.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sluice.config.places import Full, Places, owner_of_address
from sluice.controller.auth.access import Caller, Denied

VENDORDATA = "openstack"  # the role of Nova's account: no token's, and for one route
REMEMBERED_SECONDS = 60.0
UNKNOWN_SECONDS = 10.0
MOST_REMEMBERED = 1000
#: Look-ups under way and waiting for their turn.
MOST_LOOKUPS = 32
MOST_OF_ADDRESS = 8
THREADS = 4
#: Tokens of one address that turned out to be none, in UNKNOWN_SECONDS: then it has to wait.
MOST_UNKNOWN_OF_ADDRESS = 20
MOST_CHARACTERS = 16_384

T = TypeVar("T")

#: Keystone's description of a token; None where it knows none. Blocking; raises OSError.
Ask = Callable[[str], dict[str, Any] | None]


class KeystoneBusy(Exception):
    """Too much is to be asked of Keystone at a time; the message is for the caller."""

    def __init__(self, text: str, *, of_address: bool) -> None:
        super().__init__(text)
        self.of_address = of_address  # it is the caller's own doing


class KeystoneTokens:
    """One Keystone."""

    def __init__(
        self,
        ask: Ask,
        users: Collection[str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._users = frozenset(users)
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, str]] = {}
        # apart from those that are known, which nobody can push out by making others up
        self._unknown: dict[str, tuple[float, str]] = {}
        self._unknown_of: dict[str, tuple[float, int]] = {}  # until when how many, by address
        self._lookups = Places(MOST_LOOKUPS, MOST_OF_ADDRESS)
        self._under_way: dict[str, asyncio.Task[str]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "keystone")

    async def caller(self, token: str, address: str) -> Caller:
        """Whose the token is; raises Denied, KeystoneBusy."""
        if not token or len(token) > MOST_CHARACTERS or not token.isascii():
            raise Denied("X-Auth-Token is no Keystone token")
        key, now = hashlib.sha256(token.encode()).hexdigest(), self._monotonic()
        until, user = self._known.get(key, (0.0, ""))
        if until <= now:
            until, user = self._unknown.get(key, (0.0, ""))
        if until <= now:
            user = await self._look_up(key, token, owner_of_address(address))
        if user not in self._users:
            names = ", ".join(sorted(self._users))
            raise Denied(
                f"the Keystone token is of {user[:60]!a}, and [openstack] users names {names}"
                if user
                else "the Keystone token is not valid, or of another cloud"
            )
        return Caller(
            id=f"keystone-{user}", roles=frozenset((VENDORDATA,)), address=address, name=user
        )

    async def _look_up(self, key: str, token: str, owner: str) -> str:
        """The user's name; one question for all who ask it meanwhile."""
        until, count = self._unknown_of.get(owner, (0.0, 0))
        if until > self._monotonic() and count >= MOST_UNKNOWN_OF_ADDRESS:
            raise KeystoneBusy(
                f"{count} tokens of {owner} were none within {UNKNOWN_SECONDS:g} s; wait as long",
                of_address=True,
            )
        if full := self._lookups.take(owner):
            raise KeystoneBusy(
                f"{self._lookups.of(owner)} tokens of {owner} are being looked up; wait for them"
                if full is Full.OWNER
                else f"{MOST_LOOKUPS} tokens are being looked up; try again",
                of_address=full is Full.OWNER,
            )
        with self._lookups.held(owner):
            task = self._under_way.get(key)
            if task is None:
                task = self._under_way[key] = asyncio.create_task(self._asked(token))
                task.add_done_callback(lambda done: self._looked_up(key, done))
            try:
                user = await asyncio.shield(task)
            except OSError as error:
                raise Denied(f"Keystone cannot be asked whose the token is: {error}") from None
        self._remember(key, owner, user)
        return user

    def _looked_up(self, key: str, task: asyncio.Task[str]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever asked may be gone, which is no error

    async def _asked(self, token: str) -> str:
        loop = asyncio.get_running_loop()
        return _user_of(await loop.run_in_executor(self._threads, self._ask, token))

    def _remember(self, key: str, owner: str, user: str) -> None:
        now = self._monotonic()
        if user in self._users:
            _put(self._known, key, (now + REMEMBERED_SECONDS, user))
            return
        _put(self._unknown, key, (now + UNKNOWN_SECONDS, user))
        until, count = self._unknown_of.get(owner, (0.0, 0))
        if until <= now:
            until, count = now + UNKNOWN_SECONDS, 0
        _put(self._unknown_of, owner, (until, count + 1))


def _put(table: dict[str, T], key: str, value: T) -> None:
    """The oldest make room."""
    table.pop(key, None)
    while len(table) >= MOST_REMEMBERED:
        del table[next(iter(table))]
    table[key] = value


def _user_of(found: dict[str, Any] | None) -> str:
    """NAME of the default domain, NAME@DOMAIN of another; "" where there is none."""
    user = (found or {}).get("user")
    if not isinstance(user, dict) or not isinstance(user.get("name"), str):
        return ""
    domain = user.get("domain")
    domain_id = domain.get("id") if isinstance(domain, dict) else None
    name: str = user["name"]
    return name if domain_id in (None, "default") else f"{name}@{domain_id}"


def ask_cloud(cloud: str) -> Ask:
    """Asks through openstacksdk with the controller's own credentials (clouds.yaml or OS_*).

    Raises OSError where openstacksdk is not installed or has no credentials.
    """
    try:
        import openstack
        from keystoneauth1 import exceptions as keystone_errors
        from openstack import exceptions as sdk_errors
    except ImportError as error:
        raise OSError(f"{error}: pip install 'sluice-gpu[openstack]'") from None
    try:
        connection = openstack.connect(cloud=cloud or None, app_name="sluice")
    except (sdk_errors.SDKException, keystone_errors.ClientException) as error:
        raise OSError(" ".join(str(error).split())[:300]) from None

    def ask(token: str) -> dict[str, Any] | None:
        try:
            answer = connection.identity.get(
                "/auth/tokens", headers={"X-Subject-Token": token}, raise_exc=False
            )
            if answer.status_code == 404:
                return None
            if answer.status_code != 200:
                raise OSError(f"Keystone answered {answer.status_code}")
            found: dict[str, Any] | None = answer.json().get("token")
            return found
        except (sdk_errors.SDKException, keystone_errors.ClientException, ValueError) as error:
            raise OSError(" ".join(str(error).split())[:300]) from None

    return ask
