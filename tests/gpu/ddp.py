# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel, or FSDP, over NCCL: two processes, a GPU each.

    python tests/gpu/ddp.py [--ranks 2] [--share]  # run_ddp.py does it natively and through Sluice
    sluice run --share --vgpu 2 --processes 2 python tests/gpu/ddp.py

Each process is a session of its own when this runs under Sluice. With `--share`, or under `sluice
run --share`, all are sessions of one job, whose vGPUs (SLUICE_VGPU, one for each rank unless set)
and memory they share: static_server.py needs `--vgpus` and `--visible-devices` for as many. With
`--one-each` a rank has one GPU and sees no other, as schedulers of clusters give them out; with
`--fsdp` the ranks have parts of the weights, not copies. Prints a JSON object: the losses of some
steps (the same natively and through Sluice), whether all ranks end with the same weights, the rate
of an all-reduce and of training steps. In a job it also checks that every rank sees the same vGPUs
and that a rank's allocation is taken from what the others have left.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import sys
import time
from typing import Any

WINDOWS = 6  # of 100 steps, whose median rate counts: hosts of two ranks have slow seconds
#: Set for the ranks of `--one-each`.
ONE_EACH = "DDP_ONE_EACH"
#: Set for the ranks of `--fsdp`.
FSDP = "DDP_FSDP"


def rank_main(rank: int, ranks: int, port: int) -> None:
    """One process."""
    device = rank
    if os.environ.get(ONE_EACH):
        device = 0
        if "SLUICE_VGPU" not in os.environ:  # else its session has no other
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    if os.environ.get("SLUICE_JOB"):
        check_job(rank, ranks)
    ones = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(ones)
    wanted = ranks * (ranks + 1) / 2
    assert bool((ones == wanted).all()), "all-reduce"
    gathered = [torch.empty(4, device="cuda") for _ in range(ranks)]
    dist.all_gather(gathered, torch.arange(4.0, device="cuda") + 10 * rank)
    assert [g[0].item() for g in gathered] == [10.0 * i for i in range(ranks)], "all-gather"
    if ranks > 1:
        peer = torch.zeros(8, device="cuda")
        if rank == 0:
            dist.send(torch.full((8,), 5.0, device="cuda"), 1)
        elif rank == 1:
            dist.recv(peer, 0)
            assert bool((peer == 5).all()), "send and receive"
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    if os.environ.get(FSDP):
        model = sharded(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank + 1)
    x, y = torch.randn(256, 1024, device="cuda"), torch.randn(256, 1024, device="cuda")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rates = []
    for _ in range(WINDOWS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        rates.append(100 / (time.perf_counter() - begun))
    steps = statistics.median(rates)
    big = torch.ones(64 << 20, device="cuda")
    dist.all_reduce(big)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(20):
        dist.all_reduce(big)
    torch.cuda.synchronize()
    rate = 20 * big.numel() * 4 / (time.perf_counter() - begun) / 2**30
    total = sum(whole(p).double().sum() for p in model.parameters())
    totals = [torch.zeros((), dtype=torch.float64, device="cuda") for _ in range(ranks)]
    dist.all_gather(totals, total)
    if rank == 0:
        said = {
            "losses": [f"{v:.5f}" for v in losses],
            "ranks_agree": all(t.item() == totals[0].item() for t in totals),
            "steps_per_s": steps,
            "all_reduce_gib_s": rate,
        }
        print(json.dumps(said), flush=True)
    dist.destroy_process_group()


def sharded(model: Any) -> Any:
    """Each rank has its part of each layer's weights."""
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def whole(parameter: Any) -> Any:
    """All of it, gathered from the ranks where they have parts."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def check_job(rank: int, ranks: int) -> None:
    """All ranks are sessions of one job: the same vGPUs, and one memory of each."""
    import torch
    import torch.distributed as dist

    assert torch.cuda.device_count() >= ranks, "a job's session has all of its vGPUs"
    names = [str(torch.cuda.get_device_properties(i).uuid) for i in range(ranks)]
    everybodys: list[Any] = [None] * ranks
    dist.all_gather_object(everybodys, names)
    assert everybodys == [names] * ranks, everybodys
    size = 256 << 20
    dist.barrier()
    before = torch.cuda.mem_get_info(0)[0]
    dist.barrier()
    piece = torch.empty(size, dtype=torch.uint8, device="cuda:0") if rank == 0 else None
    dist.barrier()
    left = torch.cuda.mem_get_info(0)[0]
    # every rank may have taken a slab for the barrier itself meanwhile
    assert size <= before - left <= size + (64 << 20), f"rank {rank}: {before} then {left} bytes"
    dist.barrier()
    del piece
    torch.cuda.empty_cache()
    if rank == 0:
        print(f"job: {ranks} sessions share {torch.cuda.device_count()} vGPUs", file=sys.stderr)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="DistributedDataParallel over NCCL.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true", help="all ranks are one job (under Sluice)")
    parser.add_argument("--one-each", action="store_true", help="a rank sees its own GPU alone")
    parser.add_argument("--fsdp", action="store_true", help="weights are in parts")
    options = parser.parse_args()
    if options.one_each:
        os.environ[ONE_EACH] = "1"
    if options.fsdp:
        os.environ[FSDP] = "1"
    if options.share:
        os.environ.setdefault("SLUICE_JOB", secrets.token_hex(16))
        os.environ.setdefault("SLUICE_VGPU", str(options.ranks))
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (options.ranks, port), nprocs=options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
