# SPDX-License-Identifier: Apache-2.0
"""The first generation of a process: 64 tokens of GPT-2 in fp16, cuDNN's plans included.

    python3 tests/gpu/first_use.py [--rounds 5] [--tokens 64] [--no-cache]

Each run is a process of its own that generates once. Natively with the driver's cache of compiled
kernels (~/.nv/ComputeCache) empty and filled, with --no-cache also off, which takes half a minute
longer; through Sluice twice, so that the second finds what the first left on the node. Figures are
in build/measurements/first_use.jsonl, and decide nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from run import Server, find_driver, native_environment
from run_workloads import torch_version

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "dev"))

from measurements import Run, write_measured  # noqa: E402


def generate(tokens: int) -> dict[str, Any]:
    """In this process: what a generation takes first, and again."""
    import time

    import torch
    from workloads import counters, gpt2

    model = gpt2(torch).half().eval()
    prompt = torch.randint(0, 50257, (1, 16), device="cuda")
    seconds, trips = [], []
    for _ in range(2):
        torch.cuda.synchronize()
        before, begun = counters(), time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=50256,
            )
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        after = counters()
        trips.append(after[1] - before[1] if before and after else None)
    return {"seconds": seconds, "trips": trips, "checksum": int(out.sum())}


def once(tokens: int, environment: dict[str, str]) -> dict[str, Any]:
    """A process of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--here", "--tokens", str(tokens)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"exit status {done.returncode}\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-cache", action="store_true", help="natively without one, too")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(generate(options.tokens)))
        return 0
    driver = find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    plain = native_environment()
    runs: dict[str, list[dict[str, Any]]] = {}

    def take(name: str, environment: dict[str, str]) -> None:
        got = once(options.tokens, environment)
        runs.setdefault(name, []).append(got)
        first, again = got["seconds"]
        trips = " ".join(str(n) for n in got["trips"])
        print(
            f"{name:28}{first:9.2f} s{again:9.2f} s   round trips {trips}  {got['checksum']}",
            flush=True,
        )

    print(f"{'':28}{'first':>11}{'again':>11}")
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="sluice-first-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            kept = folder / "kept"
            take("native, empty cache", {**plain, "CUDA_CACHE_PATH": str(kept)})
            take("native, filled cache", {**plain, "CUDA_CACHE_PATH": str(kept)})
            if options.no_cache:
                take("native, no cache", {**plain, "CUDA_CACHE_DISABLE": "1"})
            server = Server(driver, folder, uid=None)
            try:
                ours = {**plain, **server.environments["shm"], "LD_PRELOAD": server.preload}
                take("ours, first process", ours)
                take("ours, second process", ours)
            finally:
                server.close()
    run = Run(
        "python3 tests/gpu/first_use.py", rounds=options.rounds, gpu=True, software=torch_version()
    )
    found = []
    for figure, ours_name in (("first", "ours, first process"), ("second", "ours, second process")):
        native = [r["seconds"][0] for r in runs["native, empty cache"]]
        values = [r["seconds"][0] for r in runs[ours_name]]
        found.append(
            run.record(
                f"cudnn_{figure}_generation",
                median(values),
                "s",
                channel="shm",
                better="lower",
                floor=median(native),
                floor_of="native, empty cache",
                values=values,
                pairs=[o / n for o, n in zip(values, native, strict=True)],
            )
        )
        print(f"cudnn_{figure}_generation  {median(values):.2f} s, {median(native):.2f} natively")
    print(f"figures: {write_measured('first_use', found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
