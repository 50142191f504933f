# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, compiled where it runs: tokens of a small model, and its own tests of operators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..entry import HERE, Entry, Place, Programs, Snapshot
from ..packages import PackageError

KINDS = ("F16", "Q8_0", "Q4_0")
OPERATORS = (
    *("ADD", "MUL", "SCALE", "SQR", "CPY", "CONT", "GET_ROWS", "SET_ROWS", "SUM_ROWS", "ARGSORT"),
    *("RMS_NORM", "NORM", "SOFT_MAX", "ROPE", "IM2COL", "POOL_2D", "CONCAT", "PAD", "OUT_PROD"),
    *("UPSCALE", "SSM_CONV", "SSM_SCAN", "CROSS_ENTROPY_LOSS", "OPT_STEP_ADAMW", "MUL_MAT_ID"),
)
PROGRAMS = HERE / "programs" / "llama"


def called(command: list[str], what: str) -> None:
    """Runs a step of the build; PackageError with its last words."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " | ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise PackageError(f"llama.cpp: {what} failed: {said[-600:]}")


def build(sources: Path, to: Path) -> None:
    """Compiles it for the GPU that is here, and writes the models; CUDA_HOME names the toolkit.

    Its kernels for attention are left out, which would take most of the time.
    """
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if not (toolkit / "bin" / "nvcc").exists():
        raise PackageError(f"{toolkit} has no nvcc: CUDA_HOME names a CUDA toolkit")
    code, built = sources / "llama.cpp", to / "built"
    options = ["-DGGML_CUDA=ON", "-DGGML_CUDA_FA=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    options += ["-DCMAKE_CUDA_ARCHITECTURES=90-real", f"-DLLAMA_CPP={code}"]
    options += [f"-DCMAKE_CUDA_COMPILER={toolkit / 'bin' / 'nvcc'}"]
    configure = ["cmake", "-G", "Ninja", "-S", str(PROGRAMS), "-B", str(built), *options]
    called(configure, "configuring")
    jobs = str(len(os.sched_getaffinity(0)))
    called(["cmake", "--build", str(built), "-j", jobs], "compiling")
    for kind in KINDS:
        model = [sys.executable, str(PROGRAMS / "small_model.py"), str(code / "gguf-py"), kind]
        called([*model, str(to / f"{kind}.gguf")], f"the model {kind}")


def tokens(place: Place) -> dict[str, list[str]]:
    """Sixty tokens of each model, all layers on the GPU."""
    program = str(place.sources / "built" / "llama-simple")
    options = ["-ngl", "99", "-n", "60"]
    return {
        kind: [program, "-m", str(place.sources / f"{kind}.gguf"), *options, "Sluice"]
        for kind in KINDS
    }


def operators(place: Place) -> dict[str, list[str]]:
    """llama.cpp's own tests, each operator on the GPU against the CPU."""
    program = str(place.sources / "built" / "test-backend-ops")
    show = [sys.executable, str(PROGRAMS / "counted.py"), program]
    return {name: [*show, "test", "-b", "CUDA0", "-o", name] for name in OPERATORS}


ENTRY = Entry(
    name="llama-cpp",
    title="llama.cpp",
    what="a small model's tokens, and its own tests of operators",
    parts=(Programs("tokens", tokens), Programs("operators", operators)),
    snapshots=(
        Snapshot(
            "ggml-org/llama.cpp",
            "f53577432541bb9edc1588c4ef45c66bf07e4468",
            (
                *("CMakeLists.txt", "cmake", "ggml", "include", "src", "vendor", "licenses"),
                *("LICENSE", "gguf-py", "examples/simple", "tests/test-backend-ops.cpp"),
            ),
        ),
    ),
    build=build,
    gibibytes=0.1,
    seconds=300,
)
