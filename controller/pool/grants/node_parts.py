# SPDX-License-Identifier: Apache-2.0
"""Which of a grant's vGPUs a process has on each node, where the grant spans several.

Used by ledger.GrantLedger, granting and adoption. A server numbers the vGPUs that it has from 0;
the ledger's sessions name them as the grant numbers them.
"""

from __future__ import annotations

import itertools

from sluice.controller.pool.model import Grant

Places = tuple[int, ...]


def parts_of(grant: Grant, chosen: Places) -> list[tuple[str, Places]]:
    """What a process that chooses these vGPUs (none: all) has of each node, in its order.

    A node comes again where another's vGPU is between its own; what the grant has not is left out.
    """
    if not chosen:
        return [(node, grant.places_on(node)) for node in grant.nodes_in_order]
    node_of = [key.node for key, _ in grant.placed()]
    known = (place for place in chosen if place < len(node_of))
    by_node = itertools.groupby(known, key=lambda place: node_of[place])
    return [(node, tuple(places)) for node, places in by_node]


def nodes_of(grant: Grant, chosen: Places) -> set[str]:
    """Where a process that chooses these vGPUs (none: all) has sessions."""
    return {node for node, _ in parts_of(grant, chosen)} if grant.spans_nodes else {grant.node}


def numbered_by_grant(grant: Grant, node: str, numbers: Places) -> Places:
    """What a node means by numbers of its own vGPUs; none named: all that it has."""
    places = grant.places_on(node)
    return tuple(places[at] for at in numbers if at < len(places)) or places


def numbered_by_node(grant: Grant, node: str, chosen: Places) -> Places:
    """The same the other way round."""
    places = grant.places_on(node)
    return () if chosen == places else tuple(places.index(place) for place in chosen)
