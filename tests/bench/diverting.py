# SPDX-License-Identifier: Apache-2.0
"""What the loader hook adds to the loading of an object: one with NVIDIA's static runtime inside,
which it diverts, and one without. Used by bench.py.

A program loads and unloads each a few hundred times, in turn under the hook that diverts and the
hook that does not; the figure is the difference of the medians.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from statistics import median

from figure import Figure

import build as programs_build

OBJECT = r"""
#include <cuda_runtime.h>
extern "C" int answer() { int n = 0; return cudaGetDeviceCount(&n); }
"""
LOADS = r"""
#include <cstdio>
#include <ctime>
#include <dlfcn.h>
int main(int, char** names) {
  for (int i = 0; i < 200; ++i) {
    timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    void* library = dlopen(names[1], RTLD_LAZY | RTLD_LOCAL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    dlclose(library);
    const double us = (b.tv_sec - a.tv_sec) * 1e6 + (b.tv_nsec - a.tv_nsec) / 1e3;
    std::printf("%s%.3f", i ? ", " : "[", us);
  }
  std::puts("]");
}
"""


def diverting_figures(libraries: Path, folder: Path, rounds: int) -> list[Figure]:
    """`libraries`: ours; `folder`: for what is compiled."""
    toolkit = programs_build.find_toolkit()
    (folder / "inside.cu").write_text(OBJECT)
    (folder / "loads.cc").write_text(LOADS)
    inside, loads, archives = folder / "libinside.so", folder / "loads", toolkit.runtime.parent
    options = ["-shared", "-Xcompiler=-fPIC", "-cudart=static", "-cudadevrt=none"]
    named = [f"-L{archives}", "-o", str(inside), str(folder / "inside.cu")]
    subprocess.run([str(toolkit.nvcc), *options, *named], check=True)
    subprocess.run(["g++", "-O2", "-o", loads, folder / "loads.cc", "-ldl"], check=True)
    hook = {
        **os.environ,
        "LD_AUDIT": str(libraries / "libsluice-audit.so"),
        "LD_PRELOAD": str(libraries / "libcudart.so.13"),
    }

    def microseconds(name: str, *, diverts: bool) -> float:
        told = {"SLUICE_STATIC_RUNTIME": "divert"} if diverts else {}
        done = subprocess.run(
            [loads, name], env={**hook, **told}, capture_output=True, text=True, check=True
        )
        times: list[float] = json.loads(done.stdout)
        return median(times)

    figures = []
    for figure, name, unit, per, limit in (
        ("divert_match_ms", str(inside), "ms", 1000, 2.0),
        ("divert_miss_us", "libcrypt.so.1", "us", 1, 50.0),
    ):
        pairs = [
            (microseconds(name, diverts=False), microseconds(name, diverts=True))
            for _ in range(rounds)
        ]
        added = median(b - a for a, b in pairs) / per
        without = median(a for a, _ in pairs) / per
        figures.append(Figure(figure, added, unit, without, "loading it without", limit))
    return figures
