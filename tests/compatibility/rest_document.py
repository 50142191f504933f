# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document of this tree's controller, with every route that it can have.

Used by the recorder and by the test that holds today's document against those of releases.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

from sluice.config.controller import AuthSection, OpenStackSection
from sluice.controller.api.app import build_app
from sluice.controller.auth.access import Access
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.keystone import KeystoneTokens
from sluice.controller.auth.tokens import TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.service import SystemClock
from sluice.controller.store.sqlite import SqliteStore


def rest_document() -> dict[str, Any]:
    """What /v1/openapi.json answers."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "store.db")  # never opened
        tokens = TokenBook(store)
        grant_service = GrantService(Pool(SystemClock(), lambda: ""), store)
        app = build_app(
            grant_service,
            PoolService(grant_service, 5),
            60,
            Access(AuthSection(), tokens, EnrolmentBook(store, tokens), loopback_only=True),
            openstack=OpenStackSection(),
            keystone=cast(KeystoneTokens, object()),  # nobody asks it
        )
        document: dict[str, Any] = app.openapi()
        return document
