# SPDX-License-Identifier: Apache-2.0
"""One process with two GPUs: DataParallel, NCCL's communicators of one process, copies.

    python3 tests/gpu/one_process.py    # node_ddp.py --kind one-process does it natively, and not

DataParallel copies its model with each step, has a thread for each GPU and adds gradients up, all
by NCCL. Prints a JSON object as ddp.py does: losses, whether both GPUs end with the same, the rate
of steps and of an all-reduce.
"""

from __future__ import annotations

import faulthandler
import json
import statistics
import sys
import time
from typing import Any

DEVICES = [0, 1]
WINDOWS, STEPS = 6, 20  # of steps, whose median rate counts
ALL_REDUCES = 10
PATIENCE_SECONDS = 75  # then it says where it stands, and ends


def collectives() -> None:
    """Those that torch.cuda.nccl has; an AssertionError where one is wrong."""
    import torch
    from torch.cuda import nccl

    made = [torch.full((1 << 20,), float(d + 1), device=d) for d in DEVICES]
    nccl.all_reduce(made)
    assert all(bool((one == 3).all()) for one in made), "all-reduce"
    parts = [torch.arange(4.0, device=d) + 10 * d for d in DEVICES]
    every = [torch.empty(8, device=d) for d in DEVICES]
    nccl.all_gather(parts, every)
    wanted = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]
    assert [one.tolist() for one in every] == [wanted] * 2, "all-gather"
    halves = [torch.empty(4, device=d) for d in DEVICES]
    nccl.reduce_scatter(every, halves)
    assert [one.tolist() for one in halves] == [
        [2 * n for n in wanted[:4]],
        [2 * n for n in wanted[4:]],
    ], "reduce-scatter"
    nccl.broadcast(made)
    there = torch.arange(1 << 20, device="cuda:0").to("cuda:1").to("cuda:0")
    assert bool((there == torch.arange(1 << 20, device="cuda:0")).all()), "copies"


def main() -> int:
    """Everything; the exit status."""
    import torch
    from torch.cuda import nccl

    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    collectives()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)]
    model: Any = torch.nn.DataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=DEVICES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(512, 1024, device="cuda"), torch.randn(512, 1024, device="cuda")

    def step() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step().item() for _ in range(5)]
    rates = []
    for _ in range(WINDOWS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        rates.append(STEPS / (time.perf_counter() - begun))
    big = [torch.ones(64 << 20, device=d) for d in DEVICES]
    nccl.all_reduce(big)
    begun = time.perf_counter()
    for _ in range(ALL_REDUCES):
        nccl.all_reduce(big)
    for device in DEVICES:
        torch.cuda.synchronize(device)
    rate = ALL_REDUCES * big[0].numel() * 4 / (time.perf_counter() - begun) / 2**30
    said = {
        "losses": [f"{v:.5f}" for v in losses],
        "ranks_agree": bool((big[0] == big[1].to("cuda:0")).all()),
        "steps_per_s": statistics.median(rates),
        "all_reduce_gib_s": rate,
    }
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
