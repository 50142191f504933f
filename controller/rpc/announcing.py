# SPDX-License-Identifier: Apache-2.0
"""Tells a GPU node of a session whose client comes to it over the network, before the client knows.

Called by api.tcp_sessions for clients that ask over REST, and by node_service for those whose own
server asks and relays them. It promises that a node does not hear of a session after its end was
ordered, and that what no node took is given back.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence

from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Granted, GrantRequest, Refused, Waiting
from sluice.controller.pool.model import Session
from sluice.controller.rpc.messages import answer_message, assignment_message
from sluice.controller.rpc.server_link import NotConnected, OrderRefused, ServerLink, ServerSilent
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc

ASSIGN_SECONDS = 5.0
NODE_TRIES = 2


class NotTaken(Exception):
    """The grant's node does not expect the session, for the reason that is the text."""


async def announce(
    grant_service: GrantService,
    links: Mapping[str, ServerLink],
    granted: Granted,
    session: Session,
    key: str,
    key_seconds: int,
    others: Sequence[rpc.OtherNode] = (),
) -> None:
    """Returns once the node of this session of a process expects whoever shows the key.

    Raises NotTaken. `others`: the process's other nodes, as this one is to know them.
    """
    node = session.node
    try:
        # its end may have been ordered since it was made: nothing may come after that
        if over := grant_service.pool.lifecycle.why_over(granted.grant.id):
            raise OrderRefused(over.text)
        if (link := links.get(node)) is None:
            raise NotConnected(node)
        assignment = assignment_message(granted, session, key, key_seconds, others)
        await link.assign(assignment, ASSIGN_SECONDS)
    except (OrderRefused, ServerSilent) as why:
        text = f"node {node} did not take session {session.id}: {why}"
        raise NotTaken(text) from None


async def answers_for_relay(
    grant_service: GrantService,
    links: Mapping[str, ServerLink],
    under_way: set[str],
    wanted: GrantRequest,
    key_seconds: int,
) -> AsyncGenerator[rpc.GrantAnswer, None]:
    """The answers to a server that can relay: with the key, where the grant is another node's."""
    trouble = ""
    for _ in range(NODE_TRIES):
        under_way.add(wanted.request_id)
        answers = grant_service.request(wanted)
        granted: Granted | None = None
        told = False
        try:
            async for answer in answers:
                if isinstance(answer, Waiting | Refused):
                    yield answer_message(answer)
                elif not wanted.is_relayed_from(answer.grant.node):
                    told = True
                    yield answer_message(answer)
                else:
                    granted = answer
            if granted is None:
                return
            key = secrets.token_hex(16)
            trouble = "its server went away"
            await announce(grant_service, links, granted, granted.session, key, key_seconds)
            told = True
            yield answer_message(granted, _target(grant_service, granted, key))
            return
        except NotTaken as not_taken:
            trouble = str(not_taken)
        finally:
            await answers.aclose()
            under_way.discard(wanted.request_id)
            if granted and not told:
                # nobody else has the key: a server that asks again is given another
                not_taken_by_it = End(EndCause.NOT_TAKEN, trouble)
                grant_service.begin(
                    lambda granted=granted, why=not_taken_by_it: (
                        grant_service.pool.lifecycle.not_taken(granted, why)  # type: ignore[misc]
                    )
                )
    yield answer_message(
        Refused(CudaStatus.SYSTEM_NOT_READY, f"{trouble}; look at `sluice node list` and try again")
    )


def _target(grant_service: GrantService, granted: Granted, key: str) -> rpc.RelayTarget:
    node = grant_service.pool.nodes[granted.grant.node]
    return rpc.RelayTarget(
        node=node.name, address=node.address, port=node.port, key=key, tls=node.data_tls
    )
