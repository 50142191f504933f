# SPDX-License-Identifier: Apache-2.0
"""Framework workloads in this process: for each, warm up, measure, print one line of JSON.

    python tests/gpu/workloads.py NAME [NAME ...] [--share-of-steps 0.5]
    python tests/gpu/workloads.py NAME [NAME ...] --when-told

Run natively or with Sluice's libraries preloaded; run_workloads.py does both in turn and compares.
The line has `rate` (in `unit`), `round_trips` and `commands` for each step (null natively), the
round trips of the start (`start_trips`: import, the first kernel), of setting up (`set_up_trips`:
the model's way to the device, the first steps), a
`checksum` of the result, the seconds of CPU that a step took here, and the seconds that import, the
first kernel and the warm-up took. Models
have random weights from a fixed seed, so nothing is downloaded.

With --when-told it is a tenant (tenants.py): it warms all of them up, says that it is ready, and
does for each line of its input, {"name": NAME, "lead": SECONDS, "seconds": SECONDS}, steps of that
one, which it measures once `lead` is over and whose line it prints. Each phase has a step or more.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tenants import say, tasks

START = time.perf_counter()


def counters() -> tuple[int, int] | None:
    """(commands, round trips) of this process's session; None natively."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        read = library.sluice_library_statistics
    except (OSError, AttributeError):
        return None
    commands, trips = ctypes.c_uint64(), ctypes.c_uint64()
    read(ctypes.byref(commands), ctypes.byref(trips))
    return commands.value, trips.value


def smoke(torch: Any) -> tuple[Callable[[], Any], str, float]:
    """A little of everything, checked against the CPU."""
    device = torch.device("cuda")

    def step() -> Any:
        a = torch.randn(256, 256)
        b = torch.randn(256, 256)
        product = (a.to(device) @ b.to(device)).cpu()
        assert torch.allclose(product, a @ b, atol=1e-2), "matrix product"
        half = torch.nn.functional.linear(
            a.to(device).half(), b.to(device).half(), b[0].to(device).half()
        )
        assert half.isfinite().all(), "linear in half precision"
        x = torch.randn(4, 3, 32, 32)
        w = torch.randn(8, 3, 3, 3)
        y = torch.nn.functional.conv2d(x.to(device), w.to(device), padding=1).cpu()
        assert torch.allclose(y, torch.nn.functional.conv2d(x, w, padding=1), atol=1e-2), "conv"
        assert torch.equal(torch.sort(a.to(device).flatten())[0].cpu(), torch.sort(a.flatten())[0])
        return product.sum()

    return step, "steps/s", 1.0


def resnet(torch: Any, train: bool, batch: int) -> tuple[Callable[[], Any], str, float]:
    """ResNet-50 in float32."""
    import torchvision

    torch.backends.cudnn.benchmark = False
    model = torchvision.models.resnet50(weights=None).cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    if not train:
        model.eval()

        def infer() -> Any:
            with torch.inference_mode():
                return model(images).sum().item()

        return infer, "img/s", float(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step, "img/s", float(batch)


def resnet_sent(torch: Any) -> tuple[Callable[[], Any], str, float]:
    """ResNet-50 in float32, batch 1, whose input comes from the host for each."""
    import torchvision

    torch.backends.cudnn.benchmark = False
    model = torchvision.models.resnet50(weights=None).cuda().eval()
    image = torch.randn(1, 3, 224, 224)

    def infer() -> Any:
        with torch.inference_mode():
            return model(image.cuda()).sum().item()

    return infer, "img/s", 1.0


def gpt2(torch: Any) -> Any:
    """GPT-2, 124 M parameters, random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).cuda()


def gpt2_generate(torch: Any) -> tuple[Callable[[], Any], str, float]:
    """Greedy generation of 128 tokens from 16, float32, key/value cache."""
    model = gpt2(torch).eval()
    prompt = torch.randint(0, 50257, (1, 16), device="cuda")
    mask = torch.ones_like(prompt)

    def step() -> Any:
        with torch.inference_mode():
            return model.generate(
                prompt,
                attention_mask=mask,
                max_new_tokens=128,
                min_new_tokens=128,
                do_sample=False,
                pad_token_id=50256,
            )

    return step, "tokens/s", 128.0


def gpt2_train(torch: Any, dtype: str = "float32") -> tuple[Callable[[], Any], str, float]:
    """A training step, batch 8 of 512 tokens."""
    model = gpt2(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(0, 50257, (8, 512), device="cuda")

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return step, "steps/s", 1.0


WORKLOADS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "smoke": (smoke, 1, 2),
    "resnet50_train": (lambda t: resnet(t, True, 64), 8, 30),
    "resnet50_infer": (lambda t: resnet(t, False, 1), 20, 200),
    "resnet50_infer_sent": (resnet_sent, 20, 200),
    "gpt2_generate": (gpt2_generate, 2, 3),
    "gpt2_train": (gpt2_train, 5, 20),
    "gpt2_train_bf16": (lambda t: gpt2_train(t, "bfloat16"), 5, 20),
}


class Warm:
    """A workload that is made and warm."""

    def __init__(self, torch: Any, name: str) -> None:
        self._torch, self._name = torch, name
        build, warmup, self.steps = WORKLOADS[name]
        torch.manual_seed(0)
        first = counters()
        begun = time.perf_counter()
        self._step, self._unit, self._count = build(torch)
        for _ in range(warmup):
            self._step()
        torch.cuda.synchronize()
        self._warmup_s = time.perf_counter() - begun
        now = counters()
        self._set_up_trips = now[1] - first[1] if first and now else None

    def measure(self, steps: int, seconds: float = 0.0) -> dict[str, Any]:
        """The line of so many steps, and of as many more as begin within so many seconds."""
        done = 0
        before = counters()
        begun, cpu = time.perf_counter(), time.process_time()
        while done < steps or time.perf_counter() - begun < seconds:
            result = self._step()
            done += 1
        self._torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        after = counters()
        line: dict[str, Any] = {
            "name": self._name,
            "rate": self._count * done / seconds,
            "unit": self._unit,
            "commands": None,
            "round_trips": None,
            "set_up_trips": self._set_up_trips,
            "cpu_s": cpu / done,
            "warmup_s": self._warmup_s,
            "checksum": float(self._torch.as_tensor(result).detach().double().sum()),
        }
        if before and after:
            line["commands"] = (after[0] - before[0]) / done
            line["round_trips"] = (after[1] - before[1]) / done
        return line


def measure_when_told(torch: Any, names: Sequence[str], of_process: dict[str, Any]) -> None:
    """Until the input ends."""
    warm = {name: Warm(torch, name) for name in names}
    say({"ready": list(warm)})
    for task in tasks():
        one = warm[task["name"]]
        one.measure(1, task["lead"])
        say(one.measure(1, task["seconds"]) | of_process)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Framework workloads, a line of JSON for each.")
    parser.add_argument("names", nargs="+", choices=sorted(WORKLOADS))
    parser.add_argument("--share-of-steps", type=float, default=1.0)
    parser.add_argument("--when-told", action="store_true", help="by lines of standard input")
    options = parser.parse_args()
    import torch

    imported = time.perf_counter() - START
    torch.zeros(1, device="cuda").add_(1).item()
    first = time.perf_counter() - START - imported
    started = counters()
    of_process = {
        "import_s": imported,
        "first_kernel_s": first,
        "start_trips": started[1] if started else None,
    }
    if options.when_told:
        measure_when_told(torch, options.names, of_process)
        return 0
    for name in options.names:
        one = Warm(torch, name)
        steps = max(1, round(one.steps * options.share_of_steps))
        print(json.dumps(one.measure(steps) | of_process), flush=True)
        del one
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
