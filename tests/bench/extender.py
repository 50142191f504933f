# SPDX-License-Identifier: Apache-2.0
"""How long the scheduler waits for its extender's filter: 1,000 nodes, 2,000 pods that have room.

    python tests/bench/extender.py [--nodes 1000] [--pods 2000]

Part of bench.py. The pool's books are a simulation: a reservation on each node, of four vGPUs a GPU
and of as many GPUs as let half of the vGPUs be taken, and parts of as many pods as asked. The rest
is real: the extender's HTTP service on loopback, a pod and the names of all nodes in each request,
and between any two filters a pod that is bound or one that is over, so that what is asked is never
what was asked before. Timed is the whole request; the floor is the same request to an address of
the same service that answers at once. Beside it is the processor's time of reading and filtering,
for machines that do other things too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

import aiohttp  # noqa: E402
from aiohttp import web  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402
from grant_rates import percentile  # noqa: E402

from sluice.kubernetes.cluster import Cluster  # noqa: E402
from sluice.kubernetes.configuration import ClusterSection, KubernetesConfig  # noqa: E402
from sluice.kubernetes.extender import Extender  # noqa: E402
from sluice.kubernetes.https_service import application  # noqa: E402
from sluice.kubernetes.naming import container_label  # noqa: E402
from sluice.kubernetes.pod_requests import read_pod  # noqa: E402
from sluice.kubernetes.pool_follower import PoolFollower  # noqa: E402
from sluice.pool_client.access import Access, Credentials  # noqa: E402
from sluice.pool_client.async_client import AsyncPoolClient  # noqa: E402

NODES, PODS = 1000, 2000
FILTERS = 500
LIMIT_MS = 20.0
SLOTS, SLOT_MIB, SLOT_PERCENT = 4, 20_000, 25


def books(nodes: int, each: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Reservations and GPUs as the pool's REST shows them: `each` GPUs a node, of four vGPUs."""
    gpus, reservations = {}, []
    for number in range(nodes):
        slots = []
        for index in range(each):
            gpu = f"node{number}:GPU-{number}-{index}"
            gpus[gpu] = {"state": "up", "mode": "pooled", "health": "ok"}
            slot = {"gpu": gpu, "memory_mib": SLOT_MIB, "compute_percent": SLOT_PERCENT}
            slots += [slot] * SLOTS
        reservations.append(
            {
                "id": f"{number:016x}",
                "owner_kind": "label",
                "owner": "kubernetes",
                "state": "held",
                "within": "",
                "slots": slots,
            }
        )
    return reservations, gpus


def pod(dice: random.Random) -> dict[str, Any]:
    """A pod as the scheduler has it."""
    uid = str(uuid.UUID(int=dice.getrandbits(128)))
    limits = {
        "sluice.io/vgpu": str(dice.choice((1, 1, 1, 2))),
        "sluice.io/vgpu-memory-mib": str(dice.choice((2_000, 10_000, 20_000))),
        "sluice.io/vgpu-compute": str(dice.choice((5, 10, 25))),
    }
    container = {
        "name": "cuda",
        "image": "registry.example/training:1",
        "resources": {"limits": limits, "requests": limits},
        "env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(20)],
    }
    return {
        "metadata": {"uid": uid, "namespace": "default", "name": f"pod-{uid[:8]}"},
        "spec": {"containers": [container]},
    }


class Simulation:
    """Pods that come and go."""

    def __init__(self, pool_follower: PoolFollower, nodes: int) -> None:
        self.dice = random.Random(7)
        self.availability = pool_follower.availability
        self.nodes = [f"node{number}" for number in range(nodes)]
        self.labels: list[str] = []

    def bind(self) -> bool:
        """Whether another pod found room on some node."""
        wanted = read_pod(pod(self.dice))
        for _ in range(50):
            parts = self.availability.fits(self.dice.choice(self.nodes), wanted)
            if not isinstance(parts, str):
                for part in parts:
                    self.availability.take_part(part)
                self.labels.append(container_label(wanted.uid, "cuda"))
                return True
        return False

    def end(self) -> None:
        """Some pod is over."""
        place = self.dice.randrange(len(self.labels))
        self.labels[place], self.labels[-1] = self.labels[-1], self.labels[place]
        self.availability.drop_part(self.labels.pop())


async def measure(nodes: int, pods: int) -> list[Figure]:
    """The figures."""
    section = ClusterSection()
    # neither is asked: filters look at what is known
    pool = AsyncPoolClient(Access.of("127.0.0.1:9", Credentials()), trust_env=False)
    pool_follower = PoolFollower(section, pool, pool)
    each = max(1, 2 * pods // (nodes * SLOTS))  # half of the vGPUs are taken
    pool_follower.availability.take_all(*books(nodes, each))
    pool_follower.is_known = True
    simulation = Simulation(pool_follower, nodes)
    while len(simulation.labels) < pods:
        if not simulation.bind():
            raise SystemExit(f"{nodes} nodes have no room for {pods} pods: name more")
    cluster = Cluster.__new__(Cluster)
    extender = Extender(section, cluster, pool_follower)
    for node in simulation.nodes:
        count = str(SLOTS * each)
        extender.devices.take_node(
            {"metadata": {"name": node}, "status": {"allocatable": {"sluice.io/vgpu": count}}}
        )
    service = application(KubernetesConfig(), extender)

    async def at_once(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"NodeNames": simulation.nodes})

    service.router.add_post("/floor", at_once)
    runner = web.AppRunner(service, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [address] = runner.addresses
    base = f"http://127.0.0.1:{address[1]}"
    taken: dict[str, list[float]] = {"filter": [], "floor": [], "processor": []}
    had_room = 0
    async with aiohttp.ClientSession() as session:
        for number in range(FILTERS):
            body = json.dumps({"Pod": pod(simulation.dice), "NodeNames": simulation.nodes})
            for verb in ("filter", "floor"):
                begin = time.perf_counter()
                async with session.post(f"{base}/{verb}", data=body) as answer:
                    text = await answer.read()
                taken[verb].append((time.perf_counter() - begin) * 1e3)
                if verb == "filter":
                    had_room += bool(json.loads(text)["NodeNames"])
            begin = time.thread_time()
            extender.filter(json.loads(body))
            taken["processor"].append((time.thread_time() - begin) * 1e3)
            if number % 2:
                simulation.bind()
            else:
                simulation.end()
    await runner.cleanup()
    await pool.close()
    if had_room < FILTERS / 2:
        raise SystemExit(f"only {had_room} of {FILTERS} pods found room: no figure of filtering")
    return [
        Figure(
            "extender_filter_p99_ms",
            percentile(taken["filter"], 0.99),
            "ms",
            floor=percentile(taken["floor"], 0.99),
            floor_of="the same request, answered at once",
            limit=LIMIT_MS,
            spread=(min(taken["filter"]), max(taken["filter"])),
        ),
        Figure("extender_filter_cpu_p99_ms", percentile(taken["processor"], 0.99), "ms"),
    ]


def extender_figures(nodes: int = NODES, pods: int = PODS) -> list[Figure]:
    """As bench.py takes them."""
    return asyncio.run(measure(nodes, pods))


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="What the scheduler's extender takes.")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--pods", type=int, default=PODS)
    words = parser.parse_args()
    run = Run("python tests/bench/extender.py")
    publish("extender", extender_figures(words.nodes, words.pods), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
