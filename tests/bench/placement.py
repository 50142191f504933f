# SPDX-License-Identifier: Apache-2.0
"""How long a placement takes in pools of 100, 300 and 1,000 nodes.

Part of bench.py, and run alone with `python tests/bench/placement.py`. A pool is filled until its
GPUs of 141 GB hold 50 vGPUs a node, then works on: each decision is taken by the pool's own
placement and timed alone, after which the grant is made and a random one given back. The mix is of
single slices, default slices, several vGPUs on one node, whole cards, labels and models. Time is
the wall's; the processor's is printed beside it, for machines that do other things too.
"""

from __future__ import annotations

import os
import sys
import time

from figure import Figure, Run, publish
from full_pool import SIZES, Load, filled
from grant_rates import percentile

from sluice.controller import garbage
from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.model import Grant, GrantState
from sluice.controller.pool.placement import feasibility, placement
from sluice.controller.pool.placement.policies import POLICIES
from sluice.controller.pool.pool import Pool
from sluice.resources.ends import End, EndCause

DECISIONS = 4000
LEAST_GIVEN = 0.5


def decisions(pool: Pool, load: Load, policy: str) -> tuple[list[float], list[float]]:
    """What each decision took, in ms of the wall and of the processor."""
    chooses = POLICIES[policy]()
    taken: list[float] = []
    computed: list[float] = []
    live = [grant for grant in pool.grants.values() if grant.state is GrantState.LIVE]
    wanted = sum(len(grant.vgpus) for grant in live)
    held = wanted
    given = 0
    while len(taken) < DECISIONS:
        request = load.any()
        begin, cpu = time.perf_counter(), time.thread_time()
        refused = feasibility.never(request, pool.capacity)
        chosen = None if refused else placement.choose(chooses, request, pool.capacity)
        computed.append((time.thread_time() - cpu) * 1e3)
        taken.append((time.perf_counter() - begin) * 1e3)
        if chosen:
            [answer] = pool.requests.submit(request).answers.values()
            if isinstance(answer, Granted):
                given += 1
                live.append(answer.grant)
                held += len(answer.grant.vgpus)
        while held > wanted:
            place = load.dice.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            gone: Grant = live.pop()
            held -= len(gone.vgpus)
            pool.lifecycle.release(gone.id, End(EndCause.CLIENT_ENDED, "done"))
        pool.take_changes()
    if given < len(taken) * LEAST_GIVEN:
        raise SystemExit(
            f"only {given:,} of {len(taken):,} decisions found a place: what is refused at the "
            "door costs next to nothing, so this is no figure of placing"
        )
    return taken, computed


def decision_figures() -> list[Figure]:
    """Placement decisions in pools of three sizes, by each policy."""
    figures = []
    for nodes in SIZES:
        for policy in POLICIES:
            with garbage.held():  # as the controller does
                pool, load = filled(nodes, policy)
            taken, computed = decisions(pool, load, policy)
            p99 = percentile(taken, 0.99)
            live = sum(pool.usage(key).vgpus for key in pool.gpus)
            print(
                f"{nodes} nodes, {live:,} vGPUs, {policy}: a decision {percentile(taken, 0.5):.3f} "
                f"ms, p99 {p99:.3f}, most {max(taken):.2f}; of the processor's time p99 "
                f"{percentile(computed, 0.99):.3f}, most {max(computed):.2f}; load of the machine "
                f"{os.getloadavg()[0]:.1f}",
                file=sys.stderr,
            )
            end = "" if nodes == SIZES[-1] else f"_{nodes}_nodes"
            end += "" if policy == "bin-pack" else f"_{policy}"
            middle, computing = percentile(taken, 0.5), percentile(computed, 0.99)
            figures += [
                Figure(f"placement_p99_ms{end}", p99, "ms", limit=None if end else 2),
                Figure(f"placement_median_ms{end}", middle, "ms"),
                Figure(f"placement_cpu_p99_ms{end}", computing, "ms"),
            ]
    return figures


def main() -> int:
    """Measures and prints."""
    run = Run("python tests/bench/placement.py")
    publish("bench", decision_figures(), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
