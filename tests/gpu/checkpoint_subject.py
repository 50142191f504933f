# SPDX-License-Identifier: Apache-2.0
"""A process for checkpoint_probe.py: does what each line of its standard input says, and answers.

    echo '{"do": "begin"}' | python3 tests/gpu/checkpoint_subject.py

A line is an object whose `do` names a method of Subject and whose other members are its arguments;
the answer is an object: what the method returns, or `error`. It uses the driver API by ctypes and
nothing else, as sluice-worker does it: memory in slabs of the virtual memory API with handles that
can be exported, at fixed addresses, an arena that is registered. So it can be run natively, through
Sluice, and against the software GPU. Memory is filled by a kernel and checked whole.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import socket
import sys
import time
from typing import Any

from checkpoint_driver import (
    MIB,
    AccessDesc,
    AllocationProp,
    HostMemory,
    Location,
    PoolProps,
    pointer,
    size,
)
from checkpoint_kernels import PTX

WINDOW = 0x200000000000
BLOCKS = 1024
NOBODY = 65534
POSIX_FD = 1
PORTABLE_MAPPED = 3  # cuMemHostRegister: portable, device map
PR_SET_DUMPABLE = 4

ref = ctypes.byref
Said = dict[str, Any]


class Slab:
    """Device memory that was filled; `handle` is 0 where it is not of the virtual memory API."""

    def __init__(self, address: int, count: int, seed: int, handle: int) -> None:
        self.address, self.bytes, self.seed, self.handle = address, count, seed, handle


class Subject:
    """A context and what is in it."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.slabs: list[Slab] = []
        self.host: HostMemory | None = None
        self.registered: list[tuple[int, int]] = []
        self.reserved = 0
        self.functions: list[Any] = []
        self.hogged: list[Any] = []

    def call(self, name: str, *arguments: object) -> None:
        """Raises SystemExit with the status."""
        if status := getattr(self.cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ref(text))
            raise SystemExit(f"{name}: {(text.value or b'?').decode()} ({status})")

    def begin(self) -> Said:
        """The primary context of the first GPU, a stream and the kernels."""
        device, context, module = ctypes.c_int(), pointer(), pointer()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ref(module), PTX)
        self.kernels = {}
        for name in ("fill", "check", "spin"):
            self.kernels[name] = pointer()
            self.call("cuModuleGetFunction", ref(self.kernels[name]), module, name.encode())
        self.stream = pointer()
        self.call("cuStreamCreate", ref(self.stream), 1)
        self.wrong = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ref(self.wrong), size(4))
        return {"pid": os.getpid()}

    def launch(self, name: str, *arguments: Any, blocks: int = BLOCKS) -> None:
        params = (pointer * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        threads = 1 if name == "spin" else 256
        kernel = self.kernels[name]
        self.call(
            "cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, self.stream, params, None
        )

    def wait(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def _fill(self, slab: Slab) -> None:
        at, count = ctypes.c_uint64(slab.address), ctypes.c_uint64(slab.bytes // 4)
        self.launch("fill", at, count, ctypes.c_uint32(slab.seed))
        self.slabs.append(slab)

    def _back(self, address: int, count: int) -> int:
        """Memory of the GPU under an address; its handle."""
        prop = AllocationProp(type=1, handles=POSIX_FD, location=Location(1, 0))
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ref(handle), size(count), ref(prop), ctypes.c_uint64(0))
        self._map(address, count, handle.value)
        return handle.value

    def _map(self, address: int, count: int, handle: int) -> None:
        at, access = ctypes.c_uint64(address), AccessDesc(Location(1, 0), 3)
        self.call("cuMemMap", at, size(count), size(0), ctypes.c_uint64(handle), ctypes.c_uint64(0))
        self.call("cuMemSetAccess", at, size(count), ref(access), size(1))

    def _unmap(self, address: int, count: int, handle: int) -> None:
        self.call("cuMemUnmap", ctypes.c_uint64(address), size(count))
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    def _next(self, count: int) -> int:
        """Addresses of the window, which is reserved once."""
        if not self.reserved:
            at, most = ctypes.c_uint64(), size(1 << 40)
            wanted = ctypes.c_uint64(WINDOW)
            self.call("cuMemAddressReserve", ref(at), most, size(0), wanted, ctypes.c_uint64(0))
            self.reserved = at.value
        at_last = self.reserved
        self.reserved += count
        return at_last

    def slab(self, mib: int, piece_mib: int = 64) -> Said:
        """Memory as the worker maps it."""
        for _ in range(mib // piece_mib):
            address = self._next(piece_mib * MIB)
            handle = self._back(address, piece_mib * MIB)
            self._fill(Slab(address, piece_mib * MIB, len(self.slabs) + 17, handle))
        self.wait()
        return {"fixed": self.reserved >= WINDOW}

    def plain(self, mib: int) -> Said:
        """Memory by cuMemAlloc."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ref(at), size(mib * MIB))
        self._fill(Slab(at.value, mib * MIB, len(self.slabs) + 17, 0))
        self.wait()
        return {}

    def most(self, but_mib: int) -> Said:
        """All memory that is free but so much, not filled."""
        free, total, at = size(), size(), ctypes.c_uint64()
        self.call("cuMemGetInfo_v2", ref(free), ref(total))
        mib = (free.value // MIB - but_mib) & ~1
        self.call("cuMemAlloc_v2", ref(at), size(max(mib, 2) * MIB))
        self.hogged.append(at)
        return {"mib": mib}

    def give_back(self) -> Said:
        """What `most` has taken."""
        for at in self.hogged:
            self.call("cuMemFree_v2", at)
        self.hogged.clear()
        return {}

    def pool(self, mib: int, exported: bool = False) -> Said:
        """Memory of a pool, allocated in stream order; one more allocation was freed into it."""
        props = PoolProps(type=1, handles=POSIX_FD * exported, location=Location(1, 0))
        pool, all_of_it = pointer(), ctypes.c_uint64((1 << 64) - 1)
        self.call("cuMemPoolCreate", ref(pool), ref(props))
        self.call("cuMemPoolSetAttribute", pool, 4, ref(all_of_it))  # release threshold
        pair = (ctypes.c_uint64(), ctypes.c_uint64())
        for at in pair:
            self.call("cuMemAllocFromPoolAsync", ref(at), size(mib * MIB), pool, self.stream)
        self.call("cuMemFreeAsync", pair[1], self.stream)
        self._fill(Slab(pair[0].value, mib * MIB, len(self.slabs) + 17, 0))
        self.wait()
        return {}

    def graph(self, mib: int) -> Said:
        """An instantiated graph that fills all slabs anew, with so much memory of its own."""
        made, ready, own = pointer(), pointer(), ctypes.c_uint64()
        self.call("cuStreamBeginCapture_v2", self.stream, 2)
        if mib:
            self.call("cuMemAllocAsync", ref(own), size(mib * MIB), self.stream)
            count = ctypes.c_uint64(mib * MIB // 4)
            self.launch("fill", own, count, ctypes.c_uint32(5))
            self.launch("check", own, count, ctypes.c_uint32(5), self.wrong)
            self.call("cuMemFreeAsync", own, self.stream)
        for one, other in zip(self.slabs, self.slabs[1:], strict=False):
            # nodes that name memory without a kernel, before all of it is filled
            at, here = ctypes.c_uint64(other.address), ctypes.c_uint64(one.address)
            both = min(one.bytes, other.bytes)
            self.call("cuMemsetD32Async", here, 9, size(one.bytes // 4), self.stream)
            self.call("cuMemcpyDtoDAsync_v2", at, here, size(both), self.stream)
        for slab in self.slabs:
            at, words = ctypes.c_uint64(slab.address), ctypes.c_uint64(slab.bytes // 4)
            self.launch("fill", at, words, ctypes.c_uint32(slab.seed + 100))
        self.call("cuStreamEndCapture", self.stream, ref(made))
        self.call("cuGraphInstantiateWithFlags", ref(ready), made, ctypes.c_ulonglong(0))
        self.ready = ready
        self.call("cuGraphLaunch", ready, self.stream)
        self.wait()
        for slab in self.slabs:
            slab.seed += 100
        return {}

    def capture(self) -> Said:
        """A stream of its own begins to capture, and has begun."""
        self.capturing = pointer()
        self.call("cuStreamCreate", ref(self.capturing), 1)
        self.call("cuStreamBeginCapture_v2", self.capturing, 2)
        return self.check()  # a wait, behind which everything before it is done

    def end_capture(self) -> Said:
        """And ends."""
        made = pointer()
        self.call("cuStreamEndCapture", self.capturing, ref(made))
        return {}

    def again(self) -> Said:
        """Launches the graph once more, over memory that was cleared; then as `check`."""
        for slab in self.slabs:
            at = ctypes.c_uint64(slab.address)
            self.call("cuMemsetD32Async", at, 0, size(slab.bytes // 4), self.stream)
        self.call("cuGraphLaunch", self.ready, self.stream)
        return self.check()

    def check(self) -> Said:
        """How many words of all slabs are wrong."""
        self.call("cuMemsetD32Async", self.wrong, 0, size(1), self.stream)
        for slab in self.slabs:
            at, count = ctypes.c_uint64(slab.address), ctypes.c_uint64(slab.bytes // 4)
            self.launch("check", at, count, ctypes.c_uint32(slab.seed), self.wrong)
        self.wait()
        wrong = ctypes.c_uint32(77)
        self.call("cuMemcpyDtoH_v2", ref(wrong), self.wrong, size(4))
        return {"wrong": wrong.value}

    def events(self) -> Said:
        """Two events, recorded around work; the time between them has to stay."""
        self.pair = (pointer(), pointer())
        for event in self.pair:
            self.call("cuEventCreate", ref(event), 0)
            self.call("cuEventRecord", event, self.stream)
            self.launch("spin", ctypes.c_uint64(20_000_000), blocks=1)
        self.wait()
        return self.between()

    def between(self) -> Said:
        """Milliseconds between the two events."""
        took = ctypes.c_float()
        name = "cuEventElapsedTime_v2" if hasattr(self.cuda, "cuEventElapsedTime_v2") else ""
        self.call(name or "cuEventElapsedTime", ref(took), *self.pair)
        return {"ms": round(took.value, 3)}

    def work(self, seconds: float) -> Said:
        """Kernels of 5 ms, each waited for: when each was done, by the monotonic clock."""
        done: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.launch("spin", ctypes.c_uint64(5_000_000), blocks=1)
            self.wait()
            done.append(time.perf_counter())
        return {"done": done, **self.check()}

    def spin(self, seconds: float) -> Said:
        """Work that is under way when this returns."""
        self.launch("spin", ctypes.c_uint64(int(seconds * 1e9)), blocks=1)
        return {}

    def host_function(self, seconds: float) -> Said:
        """A host function that takes so long, under way when this returns."""
        function = ctypes.CFUNCTYPE(None, pointer)(lambda _: time.sleep(seconds))
        self.functions.append(function)
        self.call("cuLaunchHostFunc", self.stream, function, None)
        return {}

    def finish(self) -> Said:
        """Waits for all work."""
        self.wait()
        return {}

    def memory(self, mib: int, piece_mib: int = 1024, touched: bool = True) -> Said:
        """Host memory, prefaulted, and registered in pieces: seconds of each."""
        self.host = HostMemory(mib)
        prefault = self.host.prefault() if touched else 0.0
        return {"prefault_s": prefault, "pages": self.host.pages, **self.register(piece_mib)}

    def register(self, piece_mib: int = 1024) -> Said:
        """The host memory, with the driver."""
        assert self.host
        began = time.perf_counter()
        for begin in range(0, self.host.bytes, piece_mib * MIB):
            count = min(piece_mib * MIB, self.host.bytes - begin)
            at = self.host.address + begin
            self.call("cuMemHostRegister_v2", pointer(at), size(count), PORTABLE_MAPPED)
            self.registered.append((at, count))
        return {"register_s": time.perf_counter() - began}

    def unregister(self) -> Said:
        """The driver forgets it."""
        began = time.perf_counter()
        for at, _ in self.registered:
            self.call("cuMemHostUnregister", pointer(at))
        self.registered.clear()
        return {"unregister_s": time.perf_counter() - began}

    def mapped(self, back: bool = False) -> Said:
        """A kernel fills the registered memory by its own address; `back`: it is only checked."""
        assert self.host
        address = ctypes.c_uint64()
        self.call("cuMemHostGetDevicePointer_v2", ref(address), pointer(self.host.address), 0)
        if not back:
            self._fill(Slab(address.value, self.registered[0][1], 3, 0))
        self.wait()
        return {"same address": address.value == self.host.address}

    @property
    def _movable(self) -> list[Slab]:
        return [slab for slab in self.slabs if slab.handle]

    def copy(self, way: str) -> Said:
        """What can move to the host memory ("out") or from there ("in"), and nothing else."""
        assert self.host
        began, at = time.perf_counter(), self.host.address
        for slab in self._movable:
            there, count = ctypes.c_uint64(slab.address), size(slab.bytes)
            if way == "out":
                self.call("cuMemcpyDtoHAsync_v2", pointer(at), there, count, self.stream)
            else:
                self.call("cuMemcpyHtoDAsync_v2", there, pointer(at), count, self.stream)
            at += slab.bytes
        self.wait()
        return {"copy_s": time.perf_counter() - began}

    def drop(self) -> Said:
        """Takes what can move off the card, without copying it."""
        began = time.perf_counter()
        for slab in self._movable:
            self._unmap(slab.address, slab.bytes, slab.handle)
        return {"drop_s": time.perf_counter() - began}

    def renew(self) -> Said:
        """Fresh memory under the addresses of what `drop` has dropped."""
        began = time.perf_counter()
        for slab in self._movable:
            slab.handle = self._back(slab.address, slab.bytes)
        return {"renew_s": time.perf_counter() - began}

    def out(self) -> Said:
        """All that can move into the host memory, and off the card."""
        return self.copy("out") | self.drop()

    def back(self) -> Said:
        """Under their addresses again."""
        return self.renew() | self.copy("in")

    def copy_about(self, mib: int, times: int) -> Said:
        """The first `mib` of the slabs to pageable and pinned memory and back, so many times."""
        count, pinned = size(mib * MIB), pointer()
        pageable = (ctypes.c_char * (mib * MIB))()
        first = ctypes.c_uint64(self.slabs[0].address)
        self.call("cuMemAllocHost_v2", ref(pinned), count)
        for _ in range(times):
            self.call("cuMemcpyDtoH_v2", pageable, first, count)
            self.call("cuMemcpyHtoDAsync_v2", first, pageable, count, self.stream)
            self.call("cuMemcpyDtoHAsync_v2", pinned, first, count, self.stream)
            self.call("cuMemcpyHtoDAsync_v2", first, pinned, count, self.stream)
            self.wait()
        self.call("cuMemFreeHost", pinned)
        return self.check()

    def pinned_rates(self, mib: int) -> Said:
        """Copies of slabs to memory of cuMemAllocHost and back, at the best of three: GiB/s."""
        at, best = pointer(), {"to_host": 0.0, "to_device": 0.0}
        self.call("cuMemAllocHost_v2", ref(at), size(mib * MIB))
        device, count = ctypes.c_uint64(), size(mib * MIB)
        self.call("cuMemAlloc_v2", ref(device), count)
        for _ in range(4):  # the first is not warm
            for way in best:
                began = time.perf_counter()
                if way == "to_host":
                    self.call("cuMemcpyDtoHAsync_v2", at, device, count, self.stream)
                else:
                    self.call("cuMemcpyHtoDAsync_v2", device, at, count, self.stream)
                self.wait()
                best[way] = max(best[way], mib / 1024 / (time.perf_counter() - began))
        self.call("cuMemFree_v2", device)
        self.call("cuMemFreeHost", at)
        return dict(best)

    def export(self, path: str, opened: bool = True) -> Said:
        """Sends the descriptors of all slabs to who connects; `opened`: else only makes them."""
        fds = []
        for slab in self._movable:
            fd = ctypes.c_int()
            self.call(
                "cuMemExportToShareableHandle",
                ref(fd),
                ctypes.c_uint64(slab.handle),
                POSIX_FD,
                ctypes.c_ulonglong(0),
            )
            fds.append(fd.value)
        if opened:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(1)
                peer, _ = listener.accept()
                with peer:
                    plan = json.dumps([[s.bytes, s.seed] for s in self._movable]).encode()
                    peer.sendmsg(
                        [plan],
                        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))],
                    )
        for fd in fds:
            os.close(fd)
        return {"handles": len(fds)}

    def open(self, path: str) -> Said:
        """Maps another process's slabs, whose descriptors it sends."""
        began = time.perf_counter()
        with socket.socket(socket.AF_UNIX) as peer:
            while True:
                try:
                    peer.connect(path)
                    break
                except OSError:
                    if time.perf_counter() - began > 5:
                        raise
                    time.sleep(0.01)
            plan, fds, _, _ = socket.recv_fds(peer, 1 << 16, 250)
        for (count, seed), fd in zip(json.loads(plan), fds, strict=True):
            handle, address = ctypes.c_uint64(), self._next(count)
            self.call("cuMemImportFromShareableHandle", ref(handle), pointer(fd), POSIX_FD)
            os.close(fd)
            self._map(address, count, handle.value)
            self.slabs.append(Slab(address, count, seed, handle.value))
        return {"open_s": time.perf_counter() - began}

    def forget(self) -> Said:
        """Unmaps and releases all slabs."""
        began = time.perf_counter()
        for slab in self._movable:
            self._unmap(slab.address, slab.bytes, slab.handle)
        self.slabs.clear()
        return {"forget_s": time.perf_counter() - began}

    def hide(self) -> Said:
        """As a worker is: another user's, not dumpable, without root's rights."""
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        return {}

    def nccl(self, library: str) -> Said:
        """A communicator of one rank."""
        self.nccl_library = ctypes.CDLL(library)
        self.communicator = pointer()
        devices = (ctypes.c_int * 1)(0)
        if status := self.nccl_library.ncclCommInitAll(ref(self.communicator), 1, devices):
            raise SystemExit(f"ncclCommInitAll: {status}")
        return self.reduce()

    def reduce(self) -> Said:
        """An all-reduce of the first slab onto itself: the sum of one rank changes nothing."""
        at, count = ctypes.c_void_p(self.slabs[0].address), size(self.slabs[0].bytes // 4)
        status = self.nccl_library.ncclAllReduce(
            at,
            at,
            count,
            3,
            0,
            self.communicator,
            self.stream,  # uint32, sum
        )
        if status:
            raise SystemExit(f"ncclAllReduce: {status}")
        return self.check()


def main(kind: type[Subject] = Subject) -> None:
    """Until the input ends."""
    subject = kind()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = getattr(subject, asked.pop("do"))(**asked)
        except (SystemExit, OSError) as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
