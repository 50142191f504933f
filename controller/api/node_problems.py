# SPDX-License-Identifier: Apache-2.0
"""What REST answers where a node does not do what it is told.

Used by the routes that hand an order to a node's server and wait for its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluice.controller.api.problems import Problem
from sluice.controller.rpc.server_link import NotConnected, OrderRefused, ServerSilent
from sluice.resources.problem_types import ProblemType


@contextmanager
def told(node: str, away: str, refusal: ProblemType) -> Iterator[None]:
    """Raises Problem for an order that the block hands to the node and that is not carried out.

    `away`: why that node, and what to do where its server is not there; `refusal`: the type of a
    refusal's problem.
    """
    try:
        yield
    except NotConnected as error:
        raise Problem(503, ProblemType.NODE_NOT_CONNECTED, f"{error}, and {away}") from None
    except OrderRefused as refused:
        raise Problem(409, refusal, f"node {node}: {refused}") from None
    except ServerSilent as silent:
        text = f"node {node}: {silent}; look again"
        raise Problem(503, ProblemType.OUTCOME_UNKNOWN, text) from None
