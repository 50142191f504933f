# SPDX-License-Identifier: Apache-2.0
"""A process with several simulated servers and the processes that ask them for vGPUs.

Started by cluster.py as `python -m chaos.rack CONFIG`, in a network namespace of its own; killed
with -9, paused and cut off by disturbances.py. SIGUSR1: ask for nothing new. A rack whose processes
have all had their answers then writes the file `idle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from chaos.node import SimulatedNode

SWAP_MIB = 24_000
KEPT_FOR_EVER = 0.5  # of the nodes run something at the end, so that there is what to lose


class Rack:
    """The nodes of one process."""

    def __init__(self, config: dict[str, Any], life: int) -> None:
        self._config = config
        self._random = random.Random(f"{config['seed']}-{config['name']}-{life}")
        self._draining = asyncio.Event()
        folder = Path(config["folder"])
        self._idle = folder / f"{config['name']}.idle"
        self.nodes = [
            SimulatedNode(
                name,
                config["targets"],
                folder / "account",
                token_file=folder / f"{name}.token",
                address=config["address"],
                seed=self._random.getrandbits(32),
                swap_mib=SWAP_MIB,
            )
            for name in config["nodes"]
        ]

    async def run(self) -> None:
        """Until it is killed."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._draining.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        if self._config["draining"]:
            self._draining.set()
        for node in self.nodes:
            await node.start()
        callers = [
            asyncio.create_task(self._call(node))
            for node in self.nodes
            for _ in range(self._config["callers"])
        ]
        await asyncio.gather(*callers)
        # when nobody waits any more, whom these could keep waiting for ever
        await asyncio.gather(*(self._keep(node) for node in self.nodes))
        self._idle.touch()
        await asyncio.Event().wait()

    async def _call(self, node: SimulatedNode) -> None:
        dice = random.Random(self._random.getrandbits(32))
        while not self._draining.is_set():
            worker = await node.ask(hold_seconds=dice.uniform(0.2, 4.0), **_request(dice))
            # a process that ends, or whose work was ended, may come again at once
            if worker:
                while worker.session in node.workers:
                    await asyncio.sleep(0.1)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), dice.uniform(0.0, 3.0))

    async def _keep(self, node: SimulatedNode) -> None:
        if self._random.random() < KEPT_FOR_EVER:
            await node.ask(
                hold_seconds=None, memory_mib=500, compute_percent=5, wait_seconds=-1, vgpu_count=1
            )


def _request(dice: random.Random) -> dict[str, Any]:
    wide = dice.random() < 0.1
    return {
        "vgpu_count": 2 if wide else 1,
        "memory_mib": dice.choice((1000, 3000, 6000, 9000, 14000)),
        "compute_percent": dice.choice((10, 25, 40, 60, 100)),
        "priority": dice.choice((0, 0, 0, 0, 1, 5)),
        "wait_seconds": dice.choice((-1, -1, 0, 2, 20)),
        "preempt": dice.random() < 0.08,
        "label": dice.choice(("", "", "", "team-a", "team-b")),
    }


def main() -> None:
    """The command."""
    path = Path(sys.argv[1])
    asyncio.run(_live(json.loads(path.read_text()), int(sys.argv[2])))


async def _live(config: dict[str, Any], life: int) -> None:
    await Rack(config, life).run()


if __name__ == "__main__":
    main()
