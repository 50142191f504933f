# SPDX-License-Identifier: Apache-2.0
"""A subject (checkpoint_subject.py) that is in the middle of something when it is suspended.

It compiles code, copies much at once, is in a host function, has an array, and shares memory by
CUDA IPC. What takes a while says `begun` in a line of its own first.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from pathlib import Path
from threading import Event, Thread

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))

from checkpoint_driver import MIB, pointer, size
from checkpoint_subject import Said, Slab, Subject, main

ref = ctypes.byref
KERNELS_OF_MODULE = 400
UNSIGNED_BYTES, HOST, ARRAY = 1, 1, 3
ARRAY_BYTES_WIDE = 1024


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (
        ("width", size),
        ("height", size),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class Copy2d(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *(
            (f"{end}_{name}", kind)
            for end in ("from", "to")
            for name, kind in (
                ("x", size),
                ("y", size),
                ("type", ctypes.c_int),
                ("host", pointer),
                ("device", ctypes.c_uint64),
                ("array", pointer),
                ("pitch", size),
            )
        ),
        ("width", size),
        ("height", size),
    )


def module_that_stores(number: int) -> bytes:
    """PTX that nobody has compiled before: made(p) stores the number; many more kernels."""
    kernels = [
        f""".visible .entry {name}(.param .u64 p) {{
  .reg .u64 %d; .reg .u32 %r;
  ld.param.u64 %d, [p]; mov.u32 %r, {number + place}; st.global.u32 [%d], %r;
  ret;
}}"""
        for place, name in enumerate(["made", *(f"more_{n}" for n in range(KERNELS_OF_MODULE))])
    ]
    return "\n".join([".version 7.8", ".target sm_70", ".address_size 64", *kernels]).encode()


def says(what: str) -> None:
    print(json.dumps({what: True}), flush=True)


class MetSubject(Subject):
    """See above."""

    def begin(self) -> Said:
        said = super().begin()
        self.context = pointer()
        self.call("cuCtxGetCurrent", ref(self.context))
        self.compiled, self.compiling, self.compiler = 0, Event(), None
        self.compiled_wrong: list[str] = []
        return said

    # compiling

    def compile(self) -> Said:
        """A thread that compiles, module after module, and launches a kernel of each."""
        self.compiling.set()
        self.compiler = Thread(target=self._compile)
        self.compiler.start()
        return {}

    def _compile(self) -> None:
        at, got = ctypes.c_uint64(), ctypes.c_uint32()
        try:
            self.call("cuCtxSetCurrent", self.context)
            self.call("cuMemAlloc_v2", ref(at), size(4))
            while self.compiling.is_set():
                number, module, kernel = 1000 * (self.compiled + 1), pointer(), pointer()
                self.call("cuModuleLoadData", ref(module), module_that_stores(number))
                self.call("cuModuleGetFunction", ref(kernel), module, b"made")
                params = (pointer * 1)(ctypes.addressof(at))
                self.call("cuLaunchKernel", kernel, *[1] * 6, 0, None, params, None)
                self.call("cuMemcpyDtoH_v2", ref(got), at, size(4))
                if got.value != number:
                    self.compiled_wrong.append(f"{got.value} for {number}")
                self.call("cuModuleUnload", module)
                self.compiled += 1
        except SystemExit as failed:
            self.compiled_wrong.append(str(failed))

    def count(self) -> Said:
        """How many modules were compiled and right, and what went wrong; no call of CUDA's."""
        return {"compiled": self.compiled, "wrong": self.compiled_wrong}

    def end_compiling(self) -> Said:
        """As `count`."""
        self.compiling.clear()
        self.compiler.join()
        return self.count()

    # a host function

    def wait_in_host_function(self, path: str) -> Said:
        """A host function that ends when there is such a file; then what was filled is checked."""

        def wait(_: object) -> None:
            says("begun")
            while not Path(path).exists():
                time.sleep(0.01)

        function = ctypes.CFUNCTYPE(None, pointer)(wait)
        self.functions.append(function)
        self.call("cuLaunchHostFunc", self.stream, function, None)
        return self.check()

    # copies

    def prepare_copies(self, mib: int, pinned: bool) -> Said:
        """Two pieces of host memory, of which the one has words that the device has filled, and
        memory of the device.
        """
        self.copied = mib * MIB
        self.ends: list[int] = []
        for _ in range(2):
            at = pointer()
            if pinned:
                self.call("cuMemAllocHost_v2", ref(at), size(self.copied))
            else:
                buffer = ctypes.create_string_buffer(self.copied)
                self.functions.append(buffer)
                at = pointer(ctypes.addressof(buffer))
            self.ends.append(at.value)
        self.plain(mib)
        there = ctypes.c_uint64(self.slabs[-1].address)
        self.call("cuMemcpyDtoH_v2", pointer(self.ends[0]), there, size(self.copied))
        return self.check()

    def copy_to_device(self) -> Said:
        """All of it, in one copy, to where nothing of it was."""
        there, count = ctypes.c_uint64(self.slabs[-1].address), size(self.copied)
        self.call("cuMemsetD32Async", there, 0, size(self.copied // 4), self.stream)
        self.wait()
        says("begun")
        self.call("cuMemcpyHtoDAsync_v2", there, pointer(self.ends[0]), count, self.stream)
        self.wait()
        says("copied")
        return self.check()

    def copy_to_host(self) -> Said:
        """All of it, in one copy, to where nothing of it was; it has begun when a byte is there."""
        there, count = ctypes.c_uint64(self.slabs[-1].address), size(self.copied)
        ctypes.memset(self.ends[1], 0, self.copied)

        def watch() -> None:
            while not ctypes.c_ubyte.from_address(self.ends[1]).value:
                time.sleep(0.0005)
            says("begun")

        watcher = Thread(target=watch)
        watcher.start()
        self.call("cuMemcpyDtoHAsync_v2", pointer(self.ends[1]), there, count, self.stream)
        self.wait()
        watcher.join()
        says("copied")
        one, other = ((ctypes.c_char * self.copied).from_address(end) for end in self.ends)
        same = memoryview(one).cast("B") == memoryview(other).cast("B")
        return {"wrong": 0 if same else self.copied}

    # an array

    def array(self, mib: int) -> Said:
        """One with bytes by chance."""
        self.rows = mib * MIB // ARRAY_BYTES_WIDE
        self.in_array = random.Random(11).randbytes(mib * MIB)
        self.array_at = pointer()
        descriptor = ArrayDescriptor(ARRAY_BYTES_WIDE, self.rows, UNSIGNED_BYTES, 1)
        self.call("cuArrayCreate_v2", ref(self.array_at), ref(descriptor))
        self.call("cuMemcpy2D_v2", ref(self._copy(self.in_array, to_array=True)))
        return self.check_array()

    def check_array(self) -> Said:
        """How many of its bytes are wrong."""
        got = bytes(len(self.in_array))
        self.call("cuMemcpy2D_v2", ref(self._copy(got, to_array=False)))
        wrong = 0 if got == self.in_array else sum(map(int.__ne__, got, self.in_array))
        return {"wrong": wrong}

    def _copy(self, host: bytes, to_array: bool) -> Copy2d:
        copy = Copy2d(width=ARRAY_BYTES_WIDE, height=self.rows)
        ends = ("from", "to") if to_array else ("to", "from")
        for end, kind in zip(ends, (HOST, ARRAY), strict=True):
            setattr(copy, f"{end}_type", kind)
        setattr(copy, f"{ends[0]}_host", ctypes.cast(ctypes.c_char_p(host), pointer).value)
        setattr(copy, f"{ends[0]}_pitch", ARRAY_BYTES_WIDE)
        setattr(copy, f"{ends[1]}_array", self.array_at.value)
        return copy

    # CUDA IPC

    def ipc_handle(self) -> Said:
        """Of the first memory by cuMemAlloc, which stands first of all from then on."""
        self.slabs.sort(key=lambda slab: slab.handle != 0)
        slab, handle = self.slabs[0], IpcHandle()
        self.call("cuIpcGetMemHandle", ref(handle), ctypes.c_uint64(slab.address))
        return {"handle": bytes(handle).hex(), "count": slab.bytes, "seed": slab.seed}

    def ipc_open(self, handle: str, count: int, seed: int) -> Said:
        """Another's memory, which is as if it had been filled here from now on."""
        at = ctypes.c_uint64()
        opened = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        self.call("cuIpcOpenMemHandle_v2", ref(at), opened, 1)
        self.slabs.insert(0, Slab(at.value, count, seed, 0))
        return self.check()

    def refill(self, seed: int) -> Said:
        """The first memory, which may be another's, with other words."""
        slab = self.slabs[0]
        self.refilled(seed)
        self.launch("fill", *self._words(slab), ctypes.c_uint32(seed))
        return self.check()

    def refilled(self, seed: int) -> Said:
        """Another fills the first memory."""
        self.slabs[0].seed = seed
        return {}

    def _words(self, slab: Slab) -> tuple[ctypes.c_uint64, ctypes.c_uint64]:
        return ctypes.c_uint64(slab.address), ctypes.c_uint64(slab.bytes // 4)


if __name__ == "__main__":
    main(MetSubject)
