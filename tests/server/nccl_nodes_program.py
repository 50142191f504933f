# SPDX-License-Identifier: Apache-2.0
"""The program of test_several_nodes.py's NCCL: one process, a device on each of two nodes.

Run with libnccl.so.2 and libcuda.so.1 of Sluice in the loader's path and fake_nccl.c on the nodes.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from nccl_program import FLOAT, cuda, good, nccl, seen, unique_id

INVALID_ARGUMENT = 4  # of ncclResult_t


def use(context: c_void_p) -> None:
    """Makes a device's context current."""
    good(cuda.cuCtxSetCurrent(context))


def main() -> None:
    """What a group has for each node goes there, as one group."""
    good(cuda.cuInit(0))
    contexts, memory, comms = [c_void_p(), c_void_p()], [c_uint64(), c_uint64()], []
    for device, context in enumerate(contexts):
        good(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
        use(context)
        good(cuda.cuMemAlloc_v2(byref(memory[device]), c_size_t(4096)))
    good(nccl.ncclGroupStart())
    for context in contexts:
        use(context)
        comms.append(c_void_p())
        good(nccl.ncclCommInitRank(byref(comms[-1]), 1, unique_id(), 0))
    good(nccl.ncclGroupEnd())
    said = []
    for context in contexts:
        use(context)
        said.append(seen())
    assert all(text.startswith("start;+init 0/1 ") and text.endswith(";end;") for text in said), (
        said
    )
    # Device 1 is current, and each communicator knows its own.
    number = c_int(-1)
    for device, comm in enumerate(comms):
        good(nccl.ncclCommCuDevice(comm, byref(number)))
        assert number.value == device
        good(nccl.ncclCommCount(comm, byref(number)))
        assert number.value == 1
    for _ in range(3):
        good(nccl.ncclGroupStart())
        for device, comm in enumerate(comms):
            at = c_void_p(memory[device].value)
            good(nccl.ncclAllReduce(at, at, c_size_t(4 + device), FLOAT, 0, comm, None))
        good(nccl.ncclGroupEnd())
    for device, context in enumerate(contexts):
        use(context)
        good(cuda.cuCtxSynchronize())
        assert (text := seen()) == f"start;+allreduce {4 + device} 7 0;end;" * 3, text
    # Memory of the other node is none of a communicator's, and costs nothing but the call.
    far = c_void_p(memory[1].value)
    assert nccl.ncclAllReduce(far, far, c_size_t(8), FLOAT, 0, comms[0], None) == INVALID_ARGUMENT
    # Alone, for the other node's communicator.
    at = c_void_p(memory[0].value)
    good(nccl.ncclAllReduce(at, at, c_size_t(8), FLOAT, 0, comms[0], None))
    use(contexts[0])
    assert seen() == "allreduce 8 7 0;"
    good(nccl.ncclGroupStart())
    for comm in comms:
        good(nccl.ncclCommDestroy(comm))
    good(nccl.ncclGroupEnd())
    for context in contexts:
        use(context)
        assert (text := seen()) == "start;+destroy 0;end;", text
    print("all of it")


if __name__ == "__main__":
    main()
