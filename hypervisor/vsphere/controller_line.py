# SPDX-License-Identifier: Apache-2.0
"""The line to the pool's controller: pool_client, with the errors of the vSphere adapter.

Used by service.py and the commands. What is refused is an error with the controller's own words;
what is not answered is Unreachable, and may have been done: so whoever calls looks at the lists
again before it tries anew.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sluice.config.ini import ConfigError
from sluice.config.vsphere import ControllerSection, placed
from sluice.hypervisor.vsphere.errors import ControllerRefused, Unreachable
from sluice.pool_client.access import Access
from sluice.pool_client.async_client import AsyncPoolClient
from sluice.pool_client.conversation import Patience
from sluice.pool_client.errors import PoolError, Refused, UnusableAccess

PATIENCE = Patience(answer=30.0, busy=60.0)


class ControllerLine(AsyncPoolClient):
    """One service's access; close() ends it."""

    def __init__(self, section: ControllerSection) -> None:
        """Reads token and CA; raises ConfigError."""
        try:
            path = placed(section.token_file)
            token = path.read_text().strip() if path else ""
            access = Access(section.addresses, section.ca_file, token)
            super().__init__(access, PATIENCE, trust_env=False)
        except (OSError, ValueError, UnusableAccess) as error:
            raise ConfigError(
                f"[controller] token_file or ca_file cannot be used: {error}"
            ) from None

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of a controller's answer. Raises ControllerRefused, Unreachable."""
        try:
            return await super().ask(method, path, **options)
        except Refused as refused:
            if refused.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise Unreachable("the controller says that this service asks too often") from None
            raise ControllerRefused(refused) from None
        except PoolError as error:
            raise Unreachable(str(error)) from None

    async def remove(self, path: str) -> bool:
        """Deletes; False if there was no such thing, or it had ended already."""
        try:
            await self.delete(path)
        except ControllerRefused as refused:
            if refused.is_over:
                return False
            raise
        return True
