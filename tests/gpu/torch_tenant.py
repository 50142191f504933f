# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program as a tenant of a GPU (tenants.py): a workload of workloads.py, in windows.

    python3 tests/gpu/torch_tenant.py WORKLOAD [--asks 20]

It makes and warms the model, says that it is ready, and for each window that it is told works from
then until `linger` seconds after the window's end, so that those beside it are not alone for their
last step. What it did in the window counts by when steps were done on the GPU, to a fraction of a
step: at 10 % of a GPU few steps end in six seconds. With --asks it answers so many requests a
second instead, at random times that `seed` fixes.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
import time
from collections import deque
from typing import Any

from share_figures import arrivals, work_between
from tenants import Said, say, tasks
from workloads import WORKLOADS

#: Steps that are under way at once: the next one waits on the GPU when one is done.
UNDER_WAY = 2
MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED
FIRST_ANSWERS = 5


class Worker:
    """A model that is ready, and what it does in a window."""

    def __init__(self, torch: Any, name: str) -> None:
        begun = time.monotonic()
        build, warm, _ = WORKLOADS[name]
        torch.manual_seed(0)
        self._torch = torch
        self._step, self.unit, self._count = build(torch)
        #: Whether a step waits for the GPU by itself, as an answer does.
        self._waits = name.endswith("infer")
        for _ in range(warm):
            self._step()
        torch.cuda.synchronize()
        self.took = time.monotonic() - begun

    def work(self, task: Said) -> Said:
        """Steps, one after the other."""
        times = [time.monotonic()]
        until = task["end"] + task.get("linger", 0.0)
        work = self._answers if self._waits else self._keeps_busy
        work(times, until)
        self._torch.cuda.synchronize()
        steps = work_between(times, task["begin"], task["end"])
        each = [after - before for before, after in itertools.pairwise(times)]
        return {
            "steps": steps,
            "rate": steps * self._count / (task["end"] - task["begin"]),
            "unit": self.unit,
            "ms": statistics.median(each) * 1e3,
        }

    def _keeps_busy(self, times: list[float], until: float) -> None:
        under_way: deque[Any] = deque()
        while times[-1] <= until:
            self._step()
            event = self._torch.cuda.Event()
            event.record()
            under_way.append(event)
            if len(under_way) == UNDER_WAY:
                under_way.popleft().synchronize()
                times.append(time.monotonic())

    def _answers(self, times: list[float], until: float) -> None:
        while times[-1] <= until:
            self._step()
            times.append(time.monotonic())

    def ask(self, task: Said, a_second: float) -> Said:
        """Milliseconds from when each request came, and from when it was taken up, to its answer.

        A request that comes while another is answered waits for it, as in any server.
        """
        for _ in range(FIRST_ANSWERS):
            self._step()
        all_of_it, own = [], []
        for at in arrivals(a_second, task["end"] - task["begin"], task["seed"]):
            due = task["begin"] + at
            while (pause := due - time.monotonic()) > 0:
                time.sleep(pause)
            taken = time.monotonic()
            self._step()
            done = time.monotonic()
            all_of_it.append((done - due) * 1e3)
            own.append((done - taken) * 1e3)
        return {"ms": all_of_it, "own_ms": own}


def under_mps() -> int:
    """Whether the driver says that this process is a client of MPS; -1: it does not say."""
    value = ctypes.c_int(-1)
    try:
        ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(value), MPS_ENABLED, 0)
    except (OSError, AttributeError):
        return -1
    return value.value


def main() -> int:
    """Is the tenant."""
    parser = argparse.ArgumentParser(description="A PyTorch program as a tenant of a GPU.")
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--asks", type=float, default=0.0, help="requests a second")
    options = parser.parse_args()
    begun = time.monotonic()
    import torch

    imported = time.monotonic() - begun
    worker = Worker(torch, options.workload)
    shown = torch.cuda.get_device_properties(0)
    say(
        {
            "import_s": imported,
            "ready_s": worker.took,
            "gpu": shown.name,
            "multiprocessors": shown.multi_processor_count,
            "mps": under_mps(),
        }
    )
    for task in tasks():
        say(worker.ask(task, options.asks) if options.asks else worker.work(task))
    return 0


if __name__ == "__main__":
    sys.exit(main())
