# SPDX-License-Identifier: Apache-2.0
"""Runs one of Triton's tutorials without its benchmarks: `python tutorial.py FILE`.

A benchmark of a tutorial is a function with `triton.testing.perf_report`; here that makes one whose
run() does nothing. What the tutorial checks and prints before stays, of random numbers that are the
same every time.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
import triton.testing


class NoBenchmark:
    """In place of a benchmark."""

    def run(self, *_: Any, **__: Any) -> None:
        """Measure nothing."""


def no_report(_: Any) -> Any:
    """In place of perf_report."""
    return lambda _: NoBenchmark()


if __name__ == "__main__":
    torch.manual_seed(0)
    triton.testing.perf_report = no_report
    runpy.run_path(sys.argv[1], run_name="__main__")
    print("to its end")
