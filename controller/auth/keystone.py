# SPDX-License-Identifier: Apache-2.0
"""Asks Keystone whose a token is, for callers that are OpenStack's own services.

Used by the doorway for the one route that Nova calls. Nova shows a Keystone token (X-Auth-Token);
Keystone says whose it is, and only the accounts that the operator named are let in. Answers are
remembered for a minute by the token's hash, as Nova asks several times for each instance; the token
itself is kept nowhere. openstacksdk is imported when a controller is configured for this, and needs
only be installed there.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection
from typing import Any

from sluice.controller.auth.access import Caller, Denied

VENDORDATA = "openstack"  # the role of Nova's account: no token's, and for one route
REMEMBERED_SECONDS = 60.0
MOST_REMEMBERED = 1000
MOST_CHARACTERS = 16_384

#: Keystone's description of a token; None where it knows none. Blocking; raises OSError.
Ask = Callable[[str], dict[str, Any] | None]


class KeystoneTokens:
    """One Keystone."""

    def __init__(self, ask: Ask, users: Collection[str]) -> None:
        self._ask = ask
        self._users = frozenset(users)
        self._known: dict[str, tuple[float, str]] = {}

    async def caller(self, token: str, address: str) -> Caller:
        """Whose the token is; raises Denied."""
        if not token or len(token) > MOST_CHARACTERS or not token.isascii():
            raise Denied("X-Auth-Token is no Keystone token")
        key, now = hashlib.sha256(token.encode()).hexdigest(), time.monotonic()
        until, user = self._known.get(key, (0.0, ""))
        if until <= now:
            try:
                found = await asyncio.to_thread(self._ask, token)
            except OSError as error:
                raise Denied(f"Keystone cannot be asked whose the token is: {error}") from None
            user = _user_of(found)
            self._remember(key, now, user)
        return Caller(
            id=f"keystone-{user}", roles=frozenset((VENDORDATA,)), address=address, name=user
        )

    def _remember(self, key: str, now: float, user: str) -> None:
        if user not in self._users:
            names = ", ".join(sorted(self._users))
            raise Denied(
                f"the Keystone token is of {user[:60]!a}, and [openstack] users names {names}"
                if user
                else "the Keystone token is not valid, or of another cloud"
            )
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (now + REMEMBERED_SECONDS, user)


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
