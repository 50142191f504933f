# SPDX-License-Identifier: Apache-2.0
"""Training over vGPUs of two nodes, beside the same natively over sockets.

    python3 tests/gpu/node_ddp.py [--rounds 3] [--job] [--kind ddp|fsdp|one-process]

Two ranks, each a session with a whole GPU, which are of two servers of this host; natively on the
same two GPUs. With `--job` both are of one job, as `sluice run --share` or torchrun has them: each
sees both nodes' GPUs, and uses that of its rank. They have DistributedDataParallel, or FSDP; `one-
process` has no ranks: one process has both nodes' GPUs (one_process.py). NCCL has neither peer
access nor shared memory on either side, so all of it goes over sockets. Behind that, the test
programs for devices of two nodes print what CUDA documents for such. Exit status 1 if losses,
weights or programs differ; the figures are in build/measurements/node_ddp.jsonl and decide nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "dev"), str(ROOT / "tests" / "demo")]

import programs as cuda  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from run import preload_of  # noqa: E402
from run_ddp import Said, differences, once  # noqa: E402
from run_workloads import torch_version  # noqa: E402
from two_servers import GPUS, ControlPlane, across, gpus, two_servers  # noqa: E402

PROGRAMS = ("two_nodes", "across_nodes")
#: What tells these records from those of ranks that are sessions of their own.
ONE_JOB = "both ranks are one job"
KINDS = {"ddp": "cross_node_ddp", "fsdp": "cross_node_fsdp", "one-process": "cross_node_process"}
WANTED = {"cross_node_ddp": 0.95}  # of native, at least
#: Of both sides; NVLink multicast stays off.
NCCL = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
}


def run_programs(plane: ControlPlane) -> int:
    """How many print something else than devices do that share nothing."""
    wrong = 0
    for program in cuda.load_programs(milestone_only=False, devices=GPUS):
        if program.name not in PROGRAMS:
            continue
        problem = cuda.run_on_host(program, across(plane, 2048), timeout=20).problem()
        print(f"{program.name:16} {problem or 'as documented'}", flush=True)
        wrong += bool(problem)
    return wrong


def figure(run: Run, name: str, unit: str, floors: list[float], found: list[float]) -> Measurement:
    """The median of what was found beside that of what was native."""
    floor = median(floors)
    return run.record(
        name,
        median(found),
        unit,
        channel="tcp",
        floor=floor,
        floor_of="native over sockets",
        values=found,
        pairs=[b / a for a, b in zip(floors, found, strict=True)],
        limit=WANTED[name] * floor if name in WANTED else None,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", action="store_true", help="the ranks are one job over both nodes")
    parser.add_argument("--kind", choices=list(KINDS), default="ddp")
    options = parser.parse_args()
    process, kind_said = options.kind == "one-process", options.kind != "ddp"
    if len(gpus()) < GPUS:
        print("skipped: this machine shows no two NVIDIA GPUs")
        return 0
    native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")} | NCCL
    floors: list[Said] = []
    found: list[Said] = []
    with two_servers(gpu=True, environment=NCCL) as plane:
        # whole GPUs, of which a node has one: so the ranks are on two nodes
        told = {**across(plane, 20000), "SLUICE_RATIO": "100"}
        if not options.job and not process:
            told["SLUICE_VGPU"] = "1"
            del told["SLUICE_CROSS_NODE"]
        ours = {**native, **told, "LD_PRELOAD": preload_of(Path(told["LD_LIBRARY_PATH"]))}
        for _ in range(options.rounds):
            if process:
                floors.append(once(native, program="one_process.py"))
                found.append(once(ours, program="one_process.py"))
                continue
            kind = ["--fsdp"] if options.kind == "fsdp" else []
            floors.append(once(native, *kind, *([] if options.job else ["--one-each"])))
            found.append(once(ours, *kind, "--share" if options.job else "--one-each"))
        wrong = run_programs(plane)
    for name, runs in (("native", floors), ("Sluice", found)):
        rates = [round(said["steps_per_s"], 1) for said in runs]
        print(f"{name:6} losses {' '.join(runs[0]['losses'])}  steps/s {json.dumps(rates)}")
    said = differences(floors, found)
    print("\n".join(said) or "the losses are the same, and the ranks agree")
    words = [*(["--job"] if options.job else []), *(["--kind", options.kind] if kind_said else [])]
    setting = [*([ONE_JOB] if options.job else []), *([options.kind] if kind_said else [])]
    run = Run(
        " ".join(["python3 tests/gpu/node_ddp.py", *words]),
        rounds=options.rounds,
        gpu=True,
        setting=", ".join(setting) or None,
        software=torch_version(),
    )
    kept = [
        figure(run, name, unit, [one[key] for one in floors], [one[key] for one in found])
        for name, key, unit in (
            (KINDS[options.kind], "steps_per_s", "steps/s"),
            ("cross_node_all_reduce_256_mib", "all_reduce_gib_s", "GiB/s"),
        )
    ]
    for one in kept:
        print(f"{one.name:32} {one.value} {one.unit}, natively {one.floor}: {one.ratio}")
    print(f"figures: {write_measured('node_ddp', kept)}")
    return 1 if wrong or said else 0


if __name__ == "__main__":
    sys.exit(main())
