# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator database, natively and through Sluice, compared.

    python tests/gpu/operators.py run --out FOLDER [--shard I --of N] [--samples K] [--until TIME]
    python tests/gpu/operators.py compare NATIVE OURS

`run` takes every operator of torch.testing._internal.common_methods_invocations.op_db that PyTorch
supports on CUDA, in float32, bfloat16 and complex64, calls it with its sample inputs, forward and
backward, and stores what came out: FOLDER/NAME.pt, one file an operator and dtype. It goes on where
it stopped; an operator during which the process died is noted as lost and not tried again. The same
seed gives the same inputs everywhere. Past `--until` (of CLOCK_MONOTONIC) it begins no other.

`compare` takes the results that the native run had as the denominator: a sample that raised
natively is left out, an operator counts as equal when every sample is bit for bit the same, as
close when the rest is within PyTorch's own tolerances, else as different or failing. NATIVE may
name two folders with a comma: where two native runs differ from one another, bits cannot be
compared. Where OURS has the file `stopped` the time was up, and what it lacks is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "complex64")
STOPPED = "stopped"
LARGEST = 1 << 20
"""Elements of a result that are stored; of larger ones a digest and sums."""


def operators(torch: Any) -> list[tuple[Any, Any]]:
    """Every operator with every dtype of ours that it supports on CUDA, in a fixed order."""
    from torch.testing._internal.common_methods_invocations import op_db

    pairs = []
    for op in op_db:
        for name in DTYPES:
            dtype = getattr(torch, name)
            if dtype in op.supported_dtypes("cuda"):
                pairs.append((op, dtype))
    return pairs


def key_of(op: Any, dtype: Any) -> str:
    """Return a file name for an operator and dtype."""
    variant = f".{op.variant_test_name}" if op.variant_test_name else ""
    return f"{op.name}{variant}-{str(dtype).removeprefix('torch.')}"


def tensors(torch: Any, value: Any) -> Iterator[Any]:
    """Every tensor in a result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(torch, item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(torch, item)


def stored(torch: Any, tensor: Any) -> dict[str, Any]:
    """Make what is kept of one tensor."""
    flat = tensor.detach()
    if flat.layout != torch.strided:
        flat = flat.to_dense()
    flat = flat.resolve_conj().resolve_neg().cpu().contiguous()
    raw = flat.flatten().view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
    result = {
        "shape": tuple(flat.shape),
        "dtype": str(flat.dtype),
        "digest": hashlib.sha256(raw.numpy().tobytes()).hexdigest(),
    }
    if flat.numel() <= LARGEST:
        result["values"] = flat.clone()
    return result


def run_sample(torch: Any, op: Any, sample: Any, backward: bool) -> dict[str, Any]:
    """Call an operator once, forward and backward."""
    outputs = op(sample.input, *sample.args, **sample.kwargs)
    if sample.output_process_fn_grad is not None:
        outputs = sample.output_process_fn_grad(outputs)
    found = list(tensors(torch, outputs))
    result: dict[str, Any] = {"forward": [stored(torch, t) for t in found]}
    differentiable = [t for t in found if t.requires_grad]
    leaves = [
        t
        for t in tensors(torch, [sample.input, sample.args, sample.kwargs])
        if t.requires_grad and t.is_leaf
    ]
    if backward and differentiable and leaves:
        grads = torch.autograd.grad(
            differentiable,
            leaves,
            [torch.ones_like(t) for t in differentiable],
            allow_unused=True,
        )
        result["backward"] = [stored(torch, g) for g in grads if g is not None]
    return result


def run_operator(torch: Any, op: Any, dtype: Any, limit: int) -> list[dict[str, Any]]:
    """Every sample of one operator; what a sample raised is its result."""
    backward = bool(op.supports_autograd) and dtype in op.supported_backward_dtypes("cuda")
    torch.manual_seed(1234)
    results: list[dict[str, Any]] = []
    samples = op.sample_inputs("cuda", dtype, requires_grad=backward)
    for number, sample in enumerate(samples):
        if number >= limit:
            break
        torch.manual_seed(number)
        try:
            results.append(run_sample(torch, op, sample, backward))
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            results.append({"raised": text[:300]})
            if "CUDA error" in str(error) or "AcceleratorError" in text:
                raise
    return results


def run(options: argparse.Namespace) -> int:
    """Run the operators of one shard that have no result yet."""
    import torch

    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    options.out.mkdir(parents=True, exist_ok=True)
    pairs = operators(torch)
    for number, (op, dtype) in enumerate(pairs):
        path = options.out / f"{key_of(op, dtype)}.pt"
        if number % options.of != options.shard or path.exists():
            continue
        if options.only and op.name not in options.only:
            continue
        if options.until and time.monotonic() > options.until:
            (options.out / STOPPED).touch()
            return 0
        torch.save({"lost": True}, path)  # stays when the process dies now
        signal.alarm(options.seconds)
        try:
            samples = run_operator(torch, op, dtype, options.samples)
            result: dict[str, Any] = {"samples": samples}
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"[:400]}
        signal.alarm(0)
        torch.save(result, path)
        if "CUDA error" in str(result.get("failed", "")):
            return 3  # the context is lost: the next process goes on
    return 0


def same(torch: Any, a: dict[str, Any], b: dict[str, Any]) -> str:
    """Compare one stored tensor: equal, close or different."""
    if a["shape"] != b["shape"] or a["dtype"] != b["dtype"]:
        return "different"
    if a["digest"] == b["digest"]:
        return "equal"
    if "values" not in a or "values" not in b:
        return "different"
    with contextlib.suppress(AssertionError):
        wide = a["values"].dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(
            b["values"],
            a["values"],
            equal_nan=True,
            rtol=2e-2 if wide else 1e-4,
            atol=2e-2 if wide else 1e-4,
        )
        return "close"
    return "different"


def compare_samples(torch: Any, native: list[Any], ours: list[Any]) -> tuple[str, str]:
    """Compare an operator's samples; the worst decides. Returns (verdict, why)."""
    worst, why = "equal", ""
    order = ("equal", "close", "different", "failing")
    if len(native) != len(ours):
        return "failing", f"{len(ours)} samples instead of {len(native)}"
    for number, (n, o) in enumerate(zip(native, ours, strict=True)):
        if "raised" in n:
            continue
        verdict, text = "equal", ""
        if "raised" in o:
            verdict, text = "failing", o["raised"]
        else:
            for part in ("forward", "backward"):
                a, b = n.get(part, []), o.get(part, [])
                if len(a) != len(b):
                    verdict, text = "different", f"{part}: another number of tensors"
                    break
                for x, y in zip(a, b, strict=True):
                    found = same(torch, x, y)
                    if order.index(found) > order.index(verdict):
                        verdict, text = found, part
        if order.index(verdict) > order.index(worst):
            worst, why = verdict, f"sample {number}: {text}"
    return worst, why


def load(torch: Any, folder: Path) -> dict[str, Any]:
    """Read every result of a run."""
    return {
        p.stem: torch.load(p, weights_only=False, map_location="cpu")
        for p in sorted(folder.glob("*.pt"))
    }


def compare(options: argparse.Namespace) -> int:
    """Print the table of verdicts and what is not equal; exit status 1 below the threshold."""
    import torch

    natives = [load(torch, Path(p)) for p in str(options.native).split(",")]
    ours = load(torch, options.ours)
    counts: dict[str, Counter[str]] = {d: Counter() for d in DTYPES}
    lines = []
    stopped, not_reached = (options.ours / STOPPED).exists(), 0
    for key, native in natives[0].items():
        samples = native.get("samples")
        if not samples or all("raised" in s for s in samples):
            continue
        dtype = key.rsplit("-", 1)[1]
        got = ours.get(key)
        if got is None and stopped:
            not_reached += 1
            continue
        if got is None:
            verdict, why = "failing", "not run"
        elif "samples" not in got:
            verdict, why = "failing", str(got.get("failed", "the process died"))
        else:
            verdict, why = compare_samples(torch, samples, got["samples"])
        again = natives[-1].get(key, {}).get("samples") if len(natives) > 1 else None
        differs = again and compare_samples(torch, samples, again)[0] == "different"
        if verdict == "different" and differs:
            verdict = "not reproducible natively"
        counts[dtype][verdict] += 1
        if verdict not in ("equal", "close"):
            lines.append(f"{verdict:12} {key:50} {why[:160]}")
    print("\n".join(sorted(lines)))
    total: Counter[str] = sum(counts.values(), Counter())
    verdicts = ["equal", "close", "different", "failing", "not reproducible natively"]
    print(f"\n{'dtype':12} {'operators':>9} " + " ".join(f"{v:>10}" for v in verdicts))
    for name, row in [*counts.items(), ("all", total)]:
        print(f"{name:12} {sum(row.values()):9} " + " ".join(f"{row[v]:10}" for v in verdicts))
    good = total["equal"] + total["close"] + total["not reproducible natively"]
    share = good / max(1, sum(total.values()))
    print(
        f"\nas native: {share:.2%} of {sum(total.values())} operators and dtypes that run natively"
        + (f"; {not_reached} more were not reached in the time given" if not_reached else "")
    )
    if (Path(str(options.native).split(",")[0]) / STOPPED).exists():
        print("natively the time given did not suffice for all operators")
    if not total:
        print("nothing was compared")
        return 1
    if options.figure:
        record_share(torch, options, share)
    return 0 if share >= options.threshold else 1


def record_share(torch: Any, options: argparse.Namespace, share: float) -> None:
    """The share of operators as native, into build/measurements."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "dev"), str(Path(__file__).parent)]
    from measurements import Run, write_measured
    from run_workloads import torch_version

    python = Path(sys.executable) if torch.version.cuda.startswith("12") else None
    command = f"python tests/gpu/conformance.py{' --python PYTHON' if python else ''}"
    run = Run(f"{command} --parts operators", gpu=True, rounds=1, software=torch_version(python))
    kept = run.record(
        options.figure, share, "ratio", channel="shm", better="higher", limit=options.threshold
    )
    print(f"figures: {write_measured('workloads', [kept])}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="PyTorch's operator database, compared.")
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--shard", type=int, default=0)
    runner.add_argument("--of", type=int, default=1)
    runner.add_argument("--samples", type=int, default=1000)
    runner.add_argument("--seconds", type=int, default=60, help="for one operator and dtype")
    runner.add_argument("--only", nargs="*", help="these operators")
    runner.add_argument("--until", type=float, default=0.0, help="CLOCK_MONOTONIC, seconds")
    runner.set_defaults(run=run)
    comparer = commands.add_parser("compare")
    comparer.add_argument("native")
    comparer.add_argument("ours", type=Path)
    comparer.add_argument("--threshold", type=float, default=0.97)
    comparer.add_argument("--figure", default="", help="the name under which the share is recorded")
    comparer.set_defaults(run=compare)
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Some samples are in the order of a set: it has to be the same in every process.
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
