# SPDX-License-Identifier: Apache-2.0
"""What the user of a page may see and do, without who it is.

Made from the caller by the pages. Two users with equal rights see the same, so what is rendered for
one is good for the other (live.Live). It follows REST's rules and replaces none of them: whatever
is done, is asked of REST, which judges anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.controller.auth.access import Caller
from sluice.controller.auth.tokens import Role
from sluice.controller.pool.model import Grant, Session
from sluice.controller.pool.view import PoolView


@dataclass(frozen=True, slots=True)
class Rights:
    """Of an admin, operator, viewer or tenant."""

    sees_pool: bool = False  # nodes, GPUs, queue, every project
    operates: bool = False
    audits: bool = False
    project: str | None = None  # a tenant's, and all that it sees

    @classmethod
    def of(cls, caller: Caller) -> Rights:
        """A caller's."""
        return cls(
            Role.VIEWER in caller.roles,
            Role.OPERATOR in caller.roles,
            Role.ADMIN in caller.roles,
            caller.project,
        )

    def sees_project(self, name: str) -> bool:
        """Whether what is a project's is shown."""
        return self.sees_pool or (self.project is not None and self.project == name)

    def sees_grant(self, grant: Grant | None) -> bool:
        """Whether a grant is shown."""
        return grant is not None and self.sees_project(grant.project)

    def sees_session(self, pool: PoolView, session: Session | None) -> bool:
        """Whether a session is shown: it is its grant's project's."""
        if session is None:
            return False
        return self.sees_pool or self.sees_grant(pool.grants.get(session.grant_id))

    def ends(self, grant: Grant) -> bool:
        """Whether it may end a grant."""
        return self.operates or (not self.sees_pool and self.sees_grant(grant))
