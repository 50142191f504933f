# SPDX-License-Identifier: Apache-2.0
"""Which of the driver's calls stand still while a stream waits for a word, and whom they stop.

    python3 tests/gpu/pending_wait_probe.py [--jobs 8] [--only "first launch"]

A link between nodes has a stream wait for a word in pinned memory (`cuStreamWaitValue64`) which a
thread of the worker's writes when the other node's bytes have come, by copies of its own. If a call
of another thread (a kernel's first launch, say, which loads its code) stands still until the
context's streams are done, and keeps such copies from being issued, nobody ever goes on. For each
call, in a process of its own: does it return while a stream waits, and does a copy to the card in
another stream, with a host function behind it, come to its end meanwhile? And one in a stream of
another priority, and of another context? And what another stream was given before, behind a word
that is written now: a host function, a copy, a kernel that looks at a word itself? The stream that
waits is the default stream, or one that does not synchronize with it. Before that: how many of 64
other streams do a copy, or a kernel, while one waits. Prints a line for each, decides nothing.
Without a GPU it says that it was skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

MIB = 1 << 20
PATIENCE_SECONDS = 2.0  # a call that has not returned by then stands still
LIMIT_SECONDS = 40
STREAMS = 64
NON_BLOCKING, DISABLE_TIMING, PORTABLE, MAPPED, GEQ = 1, 2, 1, 2, 0
SOURCE = """
extern "C" __global__ void known(int* at) { atomicAdd(at, 1); }
extern "C" __global__ void fresh(int* at) { atomicAdd(at, 2); }
__device__ int large[1 << 20];
extern "C" __global__ void looks(volatile unsigned long long* words) {
  while (words[10] == 0) {}
  words[11] = 1;
}
extern "C" __global__ void other(int* at) { large[threadIdx.x] = *at; atomicAdd(at, 4); }
"""
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class Bench:
    """A context whose one stream waits, and what calls are tried on."""

    def __init__(self, default_stream: bool, code: bytes) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.code = code
        self.context, self.device = c_void_p(), c_int()
        self.ok(self.cuda.cuInit(0))
        self.ok(self.cuda.cuDeviceGet(byref(self.device), 0))
        self.ok(self.cuda.cuDevicePrimaryCtxRetain(byref(self.context), self.device))
        self.use()
        self.waiting, self.other, self.spare = c_void_p(), c_void_p(), c_void_p()
        if not default_stream:
            self.ok(self.cuda.cuStreamCreate(byref(self.waiting), NON_BLOCKING))
        self.ok(self.cuda.cuStreamCreate(byref(self.other), NON_BLOCKING))
        self.ok(self.cuda.cuStreamCreate(byref(self.spare), NON_BLOCKING))
        self.memory, self.freed = c_uint64(), c_uint64()
        self.ok(self.cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(64 * MIB)))
        self.ok(self.cuda.cuMemAlloc_v2(byref(self.freed), c_size_t(64 * MIB)))
        self.pinned, self.pinned_freed = c_void_p(), c_void_p()
        for at in (self.pinned, self.pinned_freed):
            self.ok(self.cuda.cuMemHostAlloc(byref(at), c_size_t(16 * MIB), PORTABLE | MAPPED))
        self.word_at = c_uint64()
        self.ok(self.cuda.cuMemHostGetDevicePointer_v2(byref(self.word_at), self.pinned, 0))
        self.word = ctypes.cast(self.pinned, ctypes.POINTER(ctypes.c_uint64))
        self.word[0] = 0
        self.event = c_void_p()
        self.ok(self.cuda.cuEventCreate(byref(self.event), DISABLE_TIMING))
        self.module = self.load()
        self.known, self.fresh = self.function("known"), self.function("fresh")
        self.looks, self.function_ran = self.function("looks"), threading.Event()
        self.launch(self.known, self.waiting)
        self.word[10] = 1
        self.launch(self.looks, self.waiting, self.word_at)
        self.ok(self.cuda.cuCtxSynchronize())
        self.word[10] = self.word[11] = 0
        self.before = c_void_p()
        self.ok(self.cuda.cuStreamCreate(byref(self.before), NON_BLOCKING))
        self.library, self.kernel = self.load_library(), c_void_p()
        self.ok(self.cuda.cuLibraryGetKernel(byref(self.kernel), self.library, b"fresh"))
        self.size = c_size_t(64 * MIB)
        self.place = (c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)  # pinned, of the device 0
        self.mapped = self.map()
        self.ok(self.cuda.cuCtxSynchronize())
        self.urgent, self.apart_stream, self.apart = c_void_p(), c_void_p(), c_void_p()
        self.ok(self.cuda.cuStreamCreateWithPriority(byref(self.urgent), NON_BLOCKING, c_int(-5)))
        self.ok(self.cuda.cuCtxCreate_v2(byref(self.apart), 0, self.device))
        self.ok(self.cuda.cuStreamCreate(byref(self.apart_stream), NON_BLOCKING))
        self.use()
        self.told: list[Any] = []  # functions that the driver may still call

    @staticmethod
    def ok(status: int) -> None:
        """Raises RuntimeError."""
        if status:
            raise RuntimeError(f"CUresult {status}")

    def use(self) -> None:
        """In each thread."""
        self.ok(self.cuda.cuCtxSetCurrent(self.context))

    def load(self) -> c_void_p:
        """Its code once more."""
        module = c_void_p()
        self.ok(self.cuda.cuModuleLoadData(byref(module), c_char_p(self.code)))
        return module

    def load_library(self) -> c_void_p:
        """Its code as a library."""
        library, nothing = c_void_p(), c_uint(0)
        self.ok(
            self.cuda.cuLibraryLoadData(
                byref(library), c_char_p(self.code), None, None, nothing, None, None, nothing
            )
        )
        return library

    def map(self) -> c_uint64:
        """New memory at a new address."""
        handle, at = c_uint64(), c_uint64()
        self.ok(self.cuda.cuMemCreate(byref(handle), self.size, self.place, c_uint64(0)))
        none = c_uint64(0)
        self.ok(self.cuda.cuMemAddressReserve(byref(at), self.size, c_size_t(0), none, none))
        self.ok(self.cuda.cuMemMap(at, self.size, c_size_t(0), handle, none))
        self.ok(self.cuda.cuMemSetAccess(at, self.size, (c_int * 3)(1, 0, 3), c_size_t(1)))
        self.ok(self.cuda.cuMemRelease(handle))
        return at

    def function(self, name: str) -> c_void_p:
        """Of the module."""
        found = c_void_p()
        self.ok(self.cuda.cuModuleGetFunction(byref(found), self.module, name.encode()))
        return found

    def launch(self, function: c_void_p, stream: c_void_p, of: c_uint64 | None = None) -> None:
        """One block of one thread."""
        argument = ctypes.cast(byref(of or self.memory), c_void_p)
        arguments = (c_void_p * 1)(argument)
        one = c_uint(1)
        self.ok(
            self.cuda.cuLaunchKernel(
                function, one, one, one, one, one, one, c_uint(0), stream, arguments, None
            )
        )

    def wait_for_word(self) -> None:
        """The stream does, from now on."""
        self.ok(
            self.cuda.cuStreamWaitValue64_v2(
                self.waiting, self.word_at, c_uint64(1), c_uint(GEQ)
            )
        )  # fmt: skip

    def ahead(self) -> None:
        """What a stream is given before the call, behind word 8: see the words that it writes."""
        self.ok(
            self.cuda.cuStreamWaitValue64_v2(
                self.before, c_uint64(self.word_at.value + 64), c_uint64(1), c_uint(GEQ)
            )
        )
        self.told.append(HOST_FUNCTION(lambda _: self.function_ran.set()))
        self.ok(self.cuda.cuLaunchHostFunc(self.before, self.told[-1], None))
        to = c_uint64(self.memory.value + 48 * MIB)
        source = c_void_p((self.pinned.value or 0) + MIB)
        self.ok(self.cuda.cuMemcpyHtoDAsync_v2(to, source, c_size_t(2 * MIB), self.before))
        self.ok(
            self.cuda.cuStreamWriteValue64_v2(
                self.before, c_uint64(self.word_at.value + 72), c_uint64(1), c_uint(0)
            )
        )
        self.launch(self.looks, self.before, self.word_at)

    def went_on(self) -> list[str]:
        """What of that goes on now."""
        self.word[8] = 1
        found = ["a host function"] if self.function_ran.wait(PATIENCE_SECONDS / 2) else []
        end = time.monotonic() + PATIENCE_SECONDS / 2
        self.word[10] = 1
        while time.monotonic() < end and self.word[11] == 0:
            time.sleep(0.001)
        return found + ["a copy"] * bool(self.word[9]) + ["a kernel"] * bool(self.word[11])

    def copy(self, stream: c_void_p, context: c_void_p) -> None:
        """To the card in another stream, a host function behind it, and that it is done."""
        done = threading.Event()
        tells = HOST_FUNCTION(lambda _: done.set())
        self.told.append(tells)
        self.ok(self.cuda.cuCtxSetCurrent(context))
        to = c_uint64(self.memory.value + 32 * MIB)
        source = c_void_p((self.pinned.value or 0) + MIB)
        self.ok(self.cuda.cuMemcpyHtoDAsync_v2(to, source, c_size_t(2 * MIB), stream))
        self.ok(self.cuda.cuLaunchHostFunc(stream, tells, None))
        done.wait()

    def ways(self) -> dict[str, tuple[c_void_p, c_void_p]]:
        """Streams in which such a copy may be, each with its context."""
        return {
            "a stream": (self.other, self.context),
            "of priority": (self.urgent, self.context),
            "another context's": (self.apart_stream, self.apart),
        }

    # what is tried

    def allocate(self) -> None:
        at = c_uint64()
        self.ok(self.cuda.cuMemAlloc_v2(byref(at), c_size_t(256 * MIB)))

    def free(self) -> None:
        self.ok(self.cuda.cuMemFree_v2(self.freed))

    def pin(self) -> None:
        at = c_void_p()
        self.ok(self.cuda.cuMemHostAlloc(byref(at), c_size_t(64 * MIB), PORTABLE))

    def unpin(self) -> None:
        self.ok(self.cuda.cuMemFreeHost(self.pinned_freed))

    def attributes(self) -> None:
        value = c_int()
        self.ok(self.cuda.cuFuncGetAttribute(byref(value), 4, self.fresh))

    def global_variable(self) -> None:
        at, size = c_uint64(), c_size_t()
        self.ok(self.cuda.cuModuleGetGlobal_v2(byref(at), byref(size), self.module, b"large"))

    def query(self) -> None:
        self.cuda.cuStreamQuery(self.waiting)

    def record(self) -> None:
        self.ok(self.cuda.cuEventRecord(self.event, self.waiting))
        self.ok(self.cuda.cuStreamWaitEvent(self.spare, self.event, 0))

    def new_stream(self) -> None:
        made = c_void_p()
        self.ok(self.cuda.cuStreamCreate(byref(made), NON_BLOCKING))

    def end_stream(self) -> None:
        self.ok(self.cuda.cuStreamDestroy_v2(self.spare))

    def print_limit(self) -> None:
        self.ok(self.cuda.cuCtxSetLimit(1, c_size_t(8 * MIB)))

    def pageable(self) -> None:
        host = ctypes.create_string_buffer(MIB)
        to = c_uint64(self.memory.value + 16 * MIB)
        self.ok(self.cuda.cuMemcpyHtoDAsync_v2(to, host, c_size_t(MIB), self.waiting))

    def function_of(self) -> None:
        self.function("other")


CALLS: dict[str, Callable[[Bench], Any]] = {
    "launch again, the stream that waits": lambda b: b.launch(b.known, b.waiting),
    "launch again, another stream": lambda b: b.launch(b.known, b.spare),
    "first launch, the stream that waits": lambda b: b.launch(b.fresh, b.waiting),
    "first launch, another stream": lambda b: b.launch(b.fresh, b.spare),
    "cuFuncLoad": lambda b: b.ok(b.cuda.cuFuncLoad(b.fresh)),
    "cuFuncGetAttribute of what was not launched": Bench.attributes,
    "cuModuleLoadData": Bench.load,
    "cuModuleGetFunction": Bench.function_of,
    "cuModuleGetGlobal": Bench.global_variable,
    "cuLibraryLoadData": Bench.load_library,
    "first launch of a library's kernel": lambda b: b.launch(b.kernel, b.spare),
    "cuMemCreate, cuMemMap, cuMemSetAccess": Bench.map,
    "cuMemUnmap": lambda b: b.ok(b.cuda.cuMemUnmap(b.mapped, b.size)),
    "cuModuleUnload": lambda b: b.ok(b.cuda.cuModuleUnload(b.module)),
    "cuMemAlloc": Bench.allocate,
    "cuMemFree": Bench.free,
    "cuMemHostAlloc": Bench.pin,
    "cuMemFreeHost": Bench.unpin,
    "cuStreamCreate": Bench.new_stream,
    "cuStreamDestroy": Bench.end_stream,
    "cuStreamQuery": Bench.query,
    "cuEventRecord, cuStreamWaitEvent": Bench.record,
    "cuCtxSetLimit": Bench.print_limit,
    "a copy of pageable memory": Bench.pageable,
    "cuStreamSynchronize": lambda b: b.ok(b.cuda.cuStreamSynchronize(b.waiting)),
    "cuCtxSynchronize": lambda b: b.ok(b.cuda.cuCtxSynchronize()),
}


def thread_of(what: Callable[[], Any], said: list[str]) -> threading.Thread:
    """It, with what went wrong."""

    def run() -> None:
        try:
            what()
        except RuntimeError as error:
            said.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def try_one(name: str, default_stream: bool, code: Path) -> None:
    """In a process of its own; prints JSON."""
    bench = Bench(default_stream, code.read_bytes())
    bench.wait_for_word()
    bench.ahead()
    said: list[str] = []

    def call() -> None:
        bench.use()
        CALLS[name](bench)

    calling = thread_of(call, said)
    calling.join(PATIENCE_SECONDS)
    returned = not calling.is_alive()
    went_on = bench.went_on()
    copying = {
        way: thread_of(functools.partial(bench.copy, *where), said)
        for way, where in bench.ways().items()
    }
    end = time.monotonic() + PATIENCE_SECONDS
    for thread in copying.values():
        thread.join(max(0.0, end - time.monotonic()))
    copied = [way for way, thread in copying.items() if not thread.is_alive()]
    bench.word[0] = 1
    for thread in (calling, *copying.values()):
        thread.join(PATIENCE_SECONDS)
    behind = not any(thread.is_alive() for thread in (calling, *copying.values()))
    result = {
        "returns": returned,
        "copies": copied,
        "behind": behind,
        "said": said,
        "ahead": went_on,
    }
    print(json.dumps(result), flush=True)


def beside(default_stream: bool, code: Path) -> None:
    """How many other streams go on while one waits; in a process of its own."""
    bench = Bench(default_stream, code.read_bytes())
    streams = [c_void_p() for _ in range(STREAMS)]
    for stream in streams:
        bench.ok(bench.cuda.cuStreamCreate(byref(stream), NON_BLOCKING))
        bench.launch(bench.known, stream)
    bench.ok(bench.cuda.cuCtxSynchronize())
    bench.wait_for_word()
    to, source = c_uint64(bench.memory.value + 32 * MIB), c_void_p((bench.pinned.value or 0) + MIB)
    said = {}
    for what in ("copy in", "copy out", "launch"):
        for stream in streams:
            if what == "copy in":
                bench.ok(bench.cuda.cuMemcpyHtoDAsync_v2(to, source, c_size_t(MIB), stream))
            elif what == "copy out":
                bench.ok(bench.cuda.cuMemcpyDtoHAsync_v2(source, to, c_size_t(MIB), stream))
            else:
                bench.launch(bench.known, stream)
        time.sleep(PATIENCE_SECONDS)
        said[what] = sum(bench.cuda.cuStreamQuery(stream) == 0 for stream in streams)
    print(
        f"beside a stream that waits ({default_stream=}), of {STREAMS} others: {said}", flush=True
    )
    bench.word[0] = 1


def compiled(folder: Path) -> Path:
    """Machine code of this card where there is nvcc, so that the driver loads it lazily."""
    source, to = folder / "code.cu", folder / "code.cubin"
    source.write_text(SOURCE)
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([nvcc, "-arch=native", "--cubin", "-o", to, source], check=True)
    return to


def row(name: str, default_stream: bool, code: Path) -> str:
    """Its line."""
    command = [sys.executable, __file__, "--one", name, str(int(default_stream)), str(code)]
    where = "default stream" if default_stream else "another"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name:44s} | {where:14s} | never ended"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return f"{name:44s} | {where:14s} | failed: {done.stderr[-200:]!r}"
    said = json.loads(lines[-1])
    returns = "returns" if said["returns"] else "STANDS STILL"
    copies = f"copies go on in {', '.join(said['copies'])}" if said["copies"] else "NO COPY GOES ON"
    copies += f" | of what was ahead: {', '.join(said['ahead']) or 'NOTHING'}"
    behind = "" if said["behind"] else " | and behind it"
    errors = f" | {'; '.join(said['said'])}" if said["said"] else ""
    return f"{name:44s} | {where:14s} | {returns:12s} | {copies}{behind}{errors}"


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", default="", help="calls whose names begin so")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, default_stream, code = options.one
        if name == "beside":
            beside(default_stream == "1", Path(code))
            return 0
        try_one(name, default_stream == "1", Path(code))
        return 0
    try:
        count = c_int()
        cuda = ctypes.CDLL("libcuda.so.1")
        there = cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(byref(count)) == 0
    except OSError:
        there = False
    if not there or not count.value:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        code = compiled(Path(folder))
        began = time.monotonic()
        for default in ("1", "0"):
            command = [sys.executable, __file__, "--one", "beside", default, str(code)]
            subprocess.run(command, timeout=LIMIT_SECONDS, check=False)
        wanted = [(n, d) for n in CALLS if n.startswith(options.only) for d in (True, False)]
        for line in pool.map(lambda asked: row(asked[0], asked[1], code), wanted):
            print(line, flush=True)
        print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
