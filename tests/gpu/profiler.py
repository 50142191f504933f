# SPDX-License-Identifier: Apache-2.0
"""torch.profiler natively and through Sluice: the same kernels, by name and number.

    python tests/gpu/profiler.py          # natively and by a server of this run; compares
    python tests/gpu/profiler.py --here   # profiles in this process, prints a line of JSON

Needs a GPU and PyTorch. Also held: each kernel was launched by a call of the runtime or the driver
that was recorded, inside of the profiled time, and the kernels' time is within a factor of three of
the native one. Names of copies and fills are compared with their numbers, too.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from run import Server, find_driver  # noqa: E402

MOST_RATIO = 3.0
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")


def work(torch: Any) -> None:
    """Products, a convolution's training step, copies, a fill, elementwise kernels, a graph."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    a = torch.randn(512, 512).to(device)
    pinned = torch.randn(1 << 20).pin_memory()
    there = pinned.to(device, non_blocking=True)
    torch.zeros(1 << 16, device=device)
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 32 * 32, 10),
    ).to(device)
    layer(torch.randn(8, 3, 32, 32, device=device)).sum().backward()
    b = torch.nn.functional.gelu(a @ a) + a.sort()[0]
    (b.sum() + there.sum()).item()
    b.cpu()
    torch.cuda.synchronize()


def profile_here() -> dict[str, Any]:
    """What the profiler says of a second round of the work."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    work(torch)
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            work(torch)
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("ph") == "X"]
    calls = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in CALLS and "correlation" in e.get("args", {})
    }
    ours = [e for e in events if e.get("cat") in GPU]
    linked = [e for e in ours if e["args"].get("correlation") in calls]
    spans = [e for e in events if e.get("cat") == "cpu_op"]
    began = min((e["ts"] for e in spans), default=0)
    ended = max((e["ts"] + e["dur"] for e in events), default=0)
    early = [e["name"] for e in linked if e["ts"] + 5 < calls[e["args"]["correlation"]]["ts"]]
    return {
        "names": dict(collections.Counter(f"{e['cat']}: {e['name']}" for e in ours)),
        "kernels": sum(e["cat"] == "kernel" for e in ours),
        "unlinked": sorted({e["name"] for e in ours if e not in linked}),
        "early": sorted(set(early)),
        "outside": sum(not began - 1e6 <= e["ts"] <= ended for e in ours),
        "kernel_us": sum(e["dur"] for e in ours if e["cat"] == "kernel"),
        "calls": dict(collections.Counter(e["name"] for e in calls.values())),
        "table": profiled.key_averages().table(sort_by="cuda_time_total", row_limit=8),
    }


def run(environment: dict[str, str]) -> dict[str, Any]:
    """The same in a process of its own."""
    result = subprocess.run(
        [sys.executable, str(HERE / "profiler.py"), "--here"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if result.returncode != 0:
        raise SystemExit(f"the profiled program failed:\n{result.stdout}{result.stderr}")
    sys.stderr.write(result.stderr[-4000:])
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def complaints(native: dict[str, Any], sluice: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    said = []
    for name in sorted(native["names"].keys() | sluice["names"].keys()):
        wanted, found = native["names"].get(name, 0), sluice["names"].get(name, 0)
        if wanted != found:
            said.append(f"{name}: {wanted} natively, {found} through Sluice")
    for key in ("unlinked", "early"):
        if sluice[key]:
            said.append(f"{key}: {sluice[key]}")
    if sluice["outside"]:
        said.append(f"{sluice['outside']} records lie outside of the profiled time")
    ratio = sluice["kernel_us"] / max(native["kernel_us"], 1e-9)
    if not 1 / MOST_RATIO <= ratio <= MOST_RATIO:
        said.append(f"kernels took {ratio:.2f} times the native time")
    if not native["kernels"]:
        said.append("the native profiler saw no kernel: nothing was compared")
    return said


def show(where: str, found: dict[str, Any]) -> None:
    """One side in a line."""
    print(f"{where}: {found['kernels']} kernels, {found['kernel_us']:.0f} us, {found['calls']}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--here", action="store_true", help="profile in this process")
    parser.add_argument("--channels", nargs="*", default=["shm", "tcp"])
    options = parser.parse_args()
    if options.here:
        print(json.dumps(profile_here()))
        return 0
    driver = find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as folder:
        Path(folder).chmod(0o755)
        server = Server(driver, Path(folder))
        try:
            native = run({})
            show("natively", native)
            for channel in options.channels:
                sluice = run({**server.environments[channel], "LD_PRELOAD": server.preload})
                said = complaints(native, sluice)
                show(channel, sluice)
                print(sluice["table"])
                print(
                    "\n".join(said) or f"{channel}: the same {len(native['names'])} names, as often"
                )
                passed, failed = passed + (not said), failed + bool(said)
        finally:
            server.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
