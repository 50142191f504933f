# SPDX-License-Identifier: Apache-2.0
"""Why a grant cannot be suspended, in words: pure, for suspending and move_orders."""

from __future__ import annotations

from sluice.controller.pool.model import Grant, Node, NodeState, Session, SessionState, Sharing


def why_never(grant: Grant, node: Node | None) -> str:
    """Why a grant of its kind cannot be, on its node as it is; "": it can."""
    if grant.spans_nodes:
        return (
            f"grant {grant.id} has vGPUs of {grant.nodes_in_words}, which cannot be "
            "suspended together: end it instead"
        )
    if any(vgpu.sharing is Sharing.CONCURRENT for vgpu in grant.vgpus):
        return (
            f"grant {grant.id} runs at once with others (MPS) and cannot be suspended alone: "
            "end it instead"
        )
    # of one that is away nobody knows: its server says so when it comes back
    if node and node.state is NodeState.UP and not node.swap_mib:
        return (
            f"node {grant.node} has no host memory for suspended sessions: set [suspend] "
            "swap_mib in its server.conf (an older sluice-server suspends nothing)"
        )
    return ""


def why_not_now(grant: Grant, node: Node | None, live: list[Session]) -> str:
    """What is in the way at the moment; "": nothing is. `live`: its sessions."""
    if node is None or node.state is not NodeState.UP:
        return f"node {grant.node} of grant {grant.id} is not connected; try later"
    if not live:
        return f"nothing of grant {grant.id} runs: there is nothing to be suspended"
    if any(session.state is SessionState.OPENING for session in live):
        return f"a session of grant {grant.id} is being opened; try again"
    return ""
