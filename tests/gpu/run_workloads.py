# SPDX-License-Identifier: Apache-2.0
"""Framework workloads natively and through Sluice in alternation; medians of the paired ratios.

    python tests/gpu/run_workloads.py --rounds 10 --preload LIB:LIB [--channels shm tcp] [NAME ...]
    python tests/gpu/run_workloads.py --python PYTHON --prefix cu12_ [NAME ...]

Each round runs all workloads in one process natively, then in one process for each channel
(workloads.py). Sluice's environment is this process's with SLUICE_* set by the caller; --preload
lists its libraries. With --python the PyTorch is another interpreter's, whose processes are started
by `sluice run`; --prefix goes before the figures' names. A table is printed after every round, so
that a run cut short has one; --out gets a line of JSON for every process, and
build/measurements/workloads.jsonl the medians (dev/measurements.py keeps them for the documents).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "dev"))

from measurements import Measurement, Run, write_measured  # noqa: E402

Lines = dict[str, dict[str, Any]]

#: Workloads whose steps are of several items: what their counts are told for.
ITEMS = {"gpt2_generate": ("_per_token", 128)}


def once(
    words: Sequence[str], names: list[str], environment: dict[str, str], share: float
) -> Lines:
    """One process of an interpreter: its lines by workload."""
    return once_and_errors(words, names, environment, share)[0]


def once_and_errors(
    words: Sequence[str],
    names: list[str],
    environment: dict[str, str],
    share: float,
    limit_seconds: float | None = None,
) -> tuple[Lines, str]:
    """The same, and what was on its standard error."""
    command = [*words, str(HERE / "workloads.py"), *names]
    done = subprocess.run(
        [*command, "--share-of-steps", str(share)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_seconds,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != len(names):
        raise SystemExit(f"exit status {done.returncode}\n{done.stderr[-3000:]}")
    return {line["name"]: line for line in lines}, done.stderr


def torch_version(python: Path | None = None) -> dict[str, str]:
    """The PyTorch that is measured with; of another interpreter with the CUDA that it is for."""
    if python is None:
        return {"PyTorch": version("torch").partition("+")[0]}
    program = (
        "import json, pathlib, torch; at = pathlib.Path(torch.__file__).parents[1] / 'notes.json'; "
        "notes = json.loads(at.read_text()) if at.exists() else {}; "
        "said = f'{torch.__version__.partition(\"+\")[0]} for CUDA {torch.version.cuda}'; "
        "print(json.dumps({'PyTorch': said, **notes}))"
    )
    done = subprocess.run(
        [str(python), "-c", program], env=own(os.environ), capture_output=True, check=True
    )
    said: dict[str, str] = json.loads(done.stdout)
    return said


def own(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what is Sluice's, or of the Python that runs this."""
    return {k: v for k, v in environment.items() if not k.startswith(("SLUICE_", "PYTHON"))}


def by_sluice_run(python: Path) -> list[str]:
    """The words with which `sluice run` starts an interpreter."""
    return [sys.executable, "-m", "sluice.guest_runtime", "run", str(python)]


def table(names: list[str], runs: dict[str, list[Lines]]) -> None:
    """Medians, paired ratios with their spread, round trips and CPU."""
    rounds = len(runs["native"])
    print(
        f"\nafter {rounds} rounds\n{'workload':16} {'channel':7} {'native':>8} {'ours':>8} "
        f"{'unit':9} {'ratio':>6} {'spread':>13} {'trips':>7} {'cmds':>7} {'cpu/step':>17} same"
    )
    for name in names:
        native = [r[name] for r in runs["native"]]
        for channel in [c for c in runs if c != "native"]:
            ours = [r[name] for r in runs[channel]]
            ratios = sorted(b["rate"] / a["rate"] for a, b in zip(native, ours, strict=True))
            same = sum(a["checksum"] == b["checksum"] for a, b in zip(native, ours, strict=True))
            print(
                f"{name:16} {channel:7} {median(a['rate'] for a in native):8.1f} "
                f"{median(b['rate'] for b in ours):8.1f} {ours[-1]['unit']:9} "
                f"{median(ratios):6.3f} {ratios[0]:6.3f}-{ratios[-1]:<6.3f} "
                f"{ours[-1]['round_trips'] or 0:7.2f} {ours[-1]['commands'] or 0:7.0f} "
                f"{median(a['cpu_s'] for a in native):8.4f}>{median(b['cpu_s'] for b in ours):8.4f}"
                f" {same}/{rounds}"
            )
    for key in ("import_s", "first_kernel_s"):
        values = {c: median(r[names[0]][key] for r in rs) for c, rs in runs.items()}
        print(f"{key:24} " + "  ".join(f"{c} {v:.3f}" for c, v in values.items()))
    sys.stdout.flush()


def records(
    names: list[str], runs: dict[str, list[Lines]], run: Run, prefix: str = ""
) -> list[Measurement]:
    """Rates with their paired ratios, what each step sent, and the program's CPU."""
    run.rounds = len(runs["native"])
    found = []
    for name in names:
        native = [r[name] for r in runs["native"]]
        for channel in [c for c in runs if c != "native"]:
            ours = [r[name] for r in runs[channel]]
            rates = [b["rate"] for b in ours]
            found.append(
                run.record(
                    f"{prefix}{name}",
                    median(rates),
                    ours[-1]["unit"],
                    channel=channel,
                    floor=median(a["rate"] for a in native),
                    floor_of="native",
                    values=rates,
                    pairs=[b["rate"] / a["rate"] for a, b in zip(native, ours, strict=True)],
                )
            )
            end, items = ITEMS.get(name, ("", 1))
            for what in ("round_trips", "commands"):
                if ours[-1][what] is not None:
                    count = ours[-1][what] / items
                    figure = f"{prefix}{name}_{what}{end}"
                    found.append(run.record(figure, count, "1", channel=channel, better="lower"))
    of_processes = [("import_s", "import_s"), ("first_kernel_s", "first_kernel_s")]
    for channel in [c for c in runs if c != "native"]:
        for name, (key, figure) in [(names[0], pair) for pair in of_processes] + [
            (name, ("cpu_s", f"{name}_cpu_s")) for name in names
        ]:
            own, other = ([r[name][key] for r in runs[c]] for c in ("native", channel))
            found.append(
                run.record(
                    f"{prefix}{figure}",
                    median(other),
                    "s",
                    channel=channel,
                    floor=median(own),
                    floor_of="native",
                    values=other,
                )
            )
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Workloads, natively and through Sluice.")
    parser.add_argument("names", nargs="*", default=["resnet50_train", "resnet50_infer"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--preload", help="Sluice's libraries; not with --python")
    parser.add_argument("--python", type=Path, help="of an environment of its own")
    parser.add_argument("--prefix", default="", help="of the figures' names")
    parser.add_argument("--channels", nargs="*", default=["shm"])
    parser.add_argument("--share-of-steps", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if bool(options.preload) == bool(options.python):
        parser.error("either --preload or --python")
    native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    ours = {**os.environ, "LD_PRELOAD": options.preload or ""}
    words, by_us = [sys.executable], [sys.executable]
    if options.python:
        words, by_us = [str(options.python)], by_sluice_run(options.python)
        native = own(native)
        ours = {k: v for k, v in os.environ.items() if k.startswith("SLUICE_")}
        ours = {**native, **ours, "PYTHONPATH": str(HERE.parents[1] / "python")}
    environments = {"native": native}
    for channel in options.channels:
        environments[channel] = {**ours, "SLUICE_CHANNEL": channel}
    said = "run_workloads.py"
    if options.python:
        said = "conformance.py --python PYTHON --parts workloads"
    run = Run(f"python tests/gpu/{said}", gpu=True, software=torch_version(options.python))
    runs: dict[str, list[Lines]] = {c: [] for c in environments}
    for _ in range(options.rounds):
        for channel, environment in environments.items():
            of = words if channel == "native" else by_us
            runs[channel].append(once(of, options.names, environment, options.share_of_steps))
            time.sleep(0.5)  # the next worker warms up meanwhile
            if options.out:
                with options.out.open("a") as file:
                    line = {"channel": channel, "runs": runs[channel][-1]}
                    file.write(json.dumps(line) + "\n")
        table(options.names, runs)
        path = write_measured("workloads", records(options.names, runs, run, options.prefix))
    print(f"figures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
