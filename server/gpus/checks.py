# SPDX-License-Identifier: Apache-2.0
"""The checks that a GPU must pass, made with CuPy: `python -P gpus.checks`.

Started by gpus.acceptance as a process of its own, which sees one GPU, and by tests/gpu. Nothing
of Sluice's is imported: whatever hangs or crashes here hangs and crashes alone. It prints one JSON
object a line: `{"check", "ok", "text", "figures"}` for each check, `{"unchecked": why}` where the
checks cannot be made. Exit status 0 when it came to its end, whatever it found.

What is compared is compared exactly: patterns by word, products of small whole numbers, which fp32
sums hold without rounding in any order.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

MIB = 1 << 20
COPY_MIB = 256
DEVICE_COPY_MIB = 1024
ROUNDS = 5
PRODUCT_SIZE = 8192
# distinct rows of A and columns of B: primes, so that tiles of the product are all different
ROWS, COLUMNS = 61, 67
LARGEST = 4  # |entry|: 8192 products of at most 16 stay far below 2**24, where fp32 stops counting
# CUDA errors that tell of what is installed: a stub, an old driver, no code for this GPU
NOT_THE_CARDS = (34, 35, 209, 222, 500, 803, 804)
CUDA_R_32F, CUDA_R_16BF = 0, 14
CUBLAS_COMPUTE_32F = 68
PR_SET_PDEATHSIG = 1


class UncheckableError(Exception):
    """The checks cannot be made here; the message says what to install or do."""


def say(**what: Any) -> None:
    """One line to whoever reads."""
    print(json.dumps(what), flush=True)


def load(driver: str) -> Any:
    """CuPy, over the driver that sessions run on; raises UncheckableError."""
    try:
        ctypes.CDLL(driver, mode=ctypes.RTLD_GLOBAL)  # before CuPy asks for it by name
    except OSError as error:
        raise UncheckableError(f"the driver cannot be loaded: {error}") from None
    try:
        import cupy
    except Exception as error:  # it raises more than ImportError where CUDA is in part there
        raise UncheckableError(
            f"CuPy cannot be imported ({_line(error)}); install `sluice-gpu[gpu]` (or "
            "`cupy-cuda13x[ctk]`) for the Python that runs sluice-server"
        ) from None
    try:
        # compiles a kernel: this is where a missing nvrtc shows
        if int(cupy.arange(4).sum()) != 6:
            raise AssertionError("0 + 1 + 2 + 3 is not 6")
    except (ImportError, OSError, RuntimeError) as error:
        status = getattr(error, "status", 0)
        if type(error).__name__ == "CUDARuntimeError" and status not in NOT_THE_CARDS:
            raise
        raise UncheckableError(
            f"CuPy does not work here ({_line(error)}); it needs CUDA's nvrtc and cuBLAS "
            "(`cupy-cuda13x[ctk]`) and a driver that is new enough for it"
        ) from None
    return cupy


def memory_pattern(cupy: Any, most_mib: int) -> dict[str, Any]:
    """Writes words that tell their own place, and their complements, and reads them back."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    size = min(most_mib * MIB, free // 2) // MIB * MIB
    words = size // 8
    memory = cupy.empty(words, dtype=cupy.uint64)
    fill = cupy.ElementwiseKernel(
        "uint64 flip", "uint64 word", "word = (i * 0x9E3779B97F4A7C15ull + 1) ^ flip", "sluice_fill"
    )
    compare = cupy.ElementwiseKernel(  # leaves zeros where all is well
        "uint64 flip",
        "uint64 word",
        "word ^= (i * 0x9E3779B97F4A7C15ull + 1) ^ flip",
        "sluice_compare",
    )
    wrong = 0
    for flip in (0, 0xFFFFFFFFFFFFFFFF):
        fill(cupy.uint64(flip), memory)
        compare(cupy.uint64(flip), memory)
        wrong += int(cupy.count_nonzero(memory))
    text = f"{size // MIB} MiB written and read, both ways"
    if wrong:
        text = f"{wrong} of {2 * words} words of 8 bytes read other than written"
    return {"ok": wrong == 0, "text": text, "figures": {"pattern_mib": size // MIB}}


def _timed(cupy: Any, work: Callable[[], None]) -> float:
    """Seconds of the fastest of some rounds, by the GPU's own clock."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    best = float("inf")
    work()
    for _ in range(ROUNDS):
        begin.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, cupy.cuda.get_elapsed_time(begin, end) / 1000)
    return best


def copies(cupy: Any) -> dict[str, Any]:
    """Copies from and to pinned host memory and within the device, timed and compared."""
    import numpy

    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream.null
    size = COPY_MIB * MIB
    pinned = [cupy.cuda.alloc_pinned_memory(size) for _ in range(2)]
    sent, back = (numpy.frombuffer(p, dtype=numpy.uint64, count=size // 8) for p in pinned)
    sent[:] = numpy.arange(size // 8, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    back[:] = 0
    device = cupy.empty(size, dtype=cupy.uint8)
    arrived = cupy.empty(size, dtype=cupy.uint8)
    copy, pointer = runtime.memcpyAsync, stream.ptr
    up = _timed(cupy, lambda: copy(device.data.ptr, sent.ctypes.data, size, 1, pointer))
    copy(arrived.data.ptr, device.data.ptr, size, 3, pointer)
    down = _timed(cupy, lambda: copy(back.ctypes.data, arrived.data.ptr, size, 2, pointer))
    same = bool((sent == back).all())

    free, _ = runtime.memGetInfo()
    large = min(DEVICE_COPY_MIB * MIB, free // 4)
    one, other = (cupy.empty(large, dtype=cupy.uint8) for _ in range(2))
    one.fill(0xA5)
    within = _timed(cupy, lambda: copy(other.data.ptr, one.data.ptr, large, 3, pointer))
    same = same and int((other != 0xA5).sum()) == 0
    figures = {
        "from_host_gbs": size / up / 1e9,
        "to_host_gbs": size / down / 1e9,
        "on_device_gbs": 2 * large / within / 1e9,  # each byte is read and written
    }
    text = f"{COPY_MIB} MiB each way, {large // MIB} MiB within"
    return {"ok": same, "text": text if same else "what was copied differs", "figures": figures}


def factors(size: int) -> tuple[Any, Any, Any]:
    """Few distinct rows and columns of small whole numbers, and the host's exact product."""
    import numpy

    random = numpy.random.default_rng(20240229)
    rows = random.integers(-LARGEST, LARGEST + 1, (ROWS, size))
    columns = random.integers(-LARGEST, LARGEST + 1, (size, COLUMNS))
    return rows, columns, rows @ columns


def product(cupy: Any, size: int, kind: str) -> dict[str, Any]:
    """A matrix product by cuBLAS, every element compared with what it must be, and timed."""
    import numpy

    free, _ = cupy.cuda.runtime.memGetInfo()
    while size > 256 and 3 * size * size * 4 > free // 2:
        size //= 2
    rows, columns, expected = factors(size)
    rows, columns = rows.astype(numpy.float32), columns.astype(numpy.float32)
    if kind == "bf16":  # the upper half of an fp32; small whole numbers lose nothing
        rows, columns = ((x.view(numpy.uint32) >> 16).astype(numpy.uint16) for x in (rows, columns))
    index = cupy.arange(size)
    a = cupy.ascontiguousarray(cupy.asarray(rows)[index % ROWS])
    b = cupy.ascontiguousarray(cupy.asarray(columns)[:, index % COLUMNS])
    c = cupy.empty((size, size), dtype=cupy.float32)
    multiply = _multiply(cupy, a, b, c, size, kind)
    wanted = cupy.asarray(expected.astype(numpy.float32))[index % ROWS][:, index % COLUMNS]
    seconds, wrong = float("inf"), 0
    for _ in range(2):  # compared after each burst: some errors come with heat
        c.fill(float("nan"))
        seconds = min(seconds, _timed(cupy, multiply))
        wrong += int((c != wanted).sum())
    text = f"{size} x {size}, every element exact"
    if wrong:
        text = f"{wrong} of {2 * size * size} elements are wrong"
    tflops = 2 * size**3 / seconds / 1e12
    return {"ok": wrong == 0, "text": text, "figures": {f"{kind}_tflops": tflops}}


def _multiply(cupy: Any, a: Any, b: Any, c: Any, size: int, kind: str) -> Callable[[], None]:
    from cupy.cuda import cublas, device

    handle = device.get_cublas_handle()
    with suppress(AttributeError):
        cublas.setMathMode(handle, 0)  # fp32 is fp32, not TF32
    one, zero = (ctypes.c_float(x) for x in (1.0, 0.0))
    data = CUDA_R_16BF if kind == "bf16" else CUDA_R_32F
    arguments = (
        handle, 0, 0, size, size, size, ctypes.addressof(one),
        # row by row here is column by column there: the product of the transposes, swapped
        b.data.ptr, data, size, a.data.ptr, data, size,
        ctypes.addressof(zero), c.data.ptr, CUDA_R_32F, size, CUBLAS_COMPUTE_32F, -1,
    )  # fmt: skip

    def multiply(_keep: Any = (one, zero, a, b, c)) -> None:
        cublas.gemmEx(*arguments)

    return multiply


def checks(cupy: Any, memory_mib: int, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every check by name; bf16 where the GPU has it."""
    yield "memory", lambda: memory_pattern(cupy, memory_mib)
    yield "copies", lambda: copies(cupy)
    yield "fp32", lambda: product(cupy, size, "fp32")
    if int(cupy.cuda.Device().compute_capability) >= 80:
        yield "bf16", lambda: product(cupy, size, "bf16")


def main() -> int:
    """Runs every check; one that raises has failed, and so have those after it."""
    parser = argparse.ArgumentParser(description="Checks the one GPU that it sees.")
    parser.add_argument("--driver", default="libcuda.so.1", help="the CUDA driver library")
    parser.add_argument("--memory-mib", type=int, default=4096, help="MiB to try with patterns")
    parser.add_argument("--size", type=int, default=PRODUCT_SIZE, help="rows of the products")
    options = parser.parse_args()
    # a server that is killed takes its checks with it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        cupy = load(options.driver)
    except UncheckableError as error:
        say(unchecked=str(error))
        return 0
    except Exception as error:
        say(check="start", ok=False, text=_line(error), figures={})
        return 0
    for name, check in checks(cupy, options.memory_mib, options.size):
        began = time.monotonic()
        try:
            result = check()
        except (ImportError, AttributeError) as error:
            say(unchecked=f"{name}: CuPy lacks what this needs ({_line(error)})")
            return 0
        except Exception as error:
            say(check=name, ok=False, text=_line(error), figures={})
            return 0
        finally:
            with suppress(Exception):
                cupy.get_default_memory_pool().free_all_blocks()
        say(check=name, seconds=round(time.monotonic() - began, 2), **result)
    return 0


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


if __name__ == "__main__":
    sys.exit(main())
