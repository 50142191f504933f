# SPDX-License-Identifier: Apache-2.0
"""The program of test_nccl.py: calls NCCL through Sluice and holds what the node's NCCL saw.

Run with libnccl.so.2 and libcuda.so.1 of Sluice in the loader's path and fake_nccl.c on the node.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_size_t, c_uint, c_void_p

nccl = ctypes.CDLL("libnccl.so.2")
cuda = ctypes.CDLL("libcuda.so.1")
nccl.ncclGetLastError.restype = ctypes.c_char_p
nccl.ncclGetErrorString.restype = ctypes.c_char_p
INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 4, 5, 6
FLOAT, DOUBLE = 7, 8


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    """ncclConfig_t."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("numbers", c_int * 3),
        ("net_name", ctypes.c_char_p),
        ("more", c_int * 2),
        ("comm_name", ctypes.c_char_p),
        ("rest", c_int * 6),
    )


assert ctypes.sizeof(Config) == 80


def good(status: int) -> None:
    """Fail unless a call succeeded."""
    assert status == 0, status


def seen() -> str:
    """What the node's NCCL was asked for since the last time, as it comes."""
    text: bytes = nccl.ncclGetLastError(None)
    return "" if text == b"." else text.decode()


def round_trips() -> int:
    """How often this process has waited for the node."""
    commands, waits = c_longlong(), c_longlong()
    cuda.sluice_library_statistics(byref(commands), byref(waits))
    return waits.value


def unique_id() -> UniqueId:
    """Another one each time."""
    value = UniqueId()
    good(nccl.ncclGetUniqueId(byref(value)))
    return value


def two_threads_meet(memory: c_void_p) -> list[c_void_p]:
    """Each rank's call returns when the other's has come: both are under way at once."""
    name, comms = unique_id(), [c_void_p(), c_void_p()]

    def join(rank: int) -> None:
        good(nccl.ncclCommInitRank(byref(comms[rank]), 2, name, rank))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert comms[0].value
    assert comms[1].value
    assert comms[0].value != comms[1].value
    number = c_int(-1)
    for rank in (0, 1):
        good(nccl.ncclCommCount(comms[rank], byref(number)))
        assert number.value == 2
        good(nccl.ncclCommUserRank(comms[rank], byref(number)))
        assert number.value == rank
        good(nccl.ncclCommCuDevice(comms[rank], byref(number)))
        assert number.value == 0
        good(nccl.ncclCommGetAsyncError(comms[rank], byref(number)))
        assert number.value == 0
    handle = c_void_p(1)
    good(nccl.ncclCommRegister(comms[0], memory, c_size_t(64), byref(handle)))
    assert handle.value is None
    good(nccl.ncclCommDeregister(comms[0], handle))
    assert "init 0/2" in (text := seen())
    assert "init 1/2" in text
    # a rank may be of another grant, whose worker cannot open this one's files
    assert text.count("files no") == (2 if os.environ["RANKS"] == "are apart" else 0), text
    return comms


def one_rank_is_alone() -> None:
    """NCCL may do what it likes where no other grant takes part."""
    comm = c_void_p()
    good(nccl.ncclCommInitRank(byref(comm), 1, unique_id(), 0))
    assert "files yes" in seen()
    good(nccl.ncclCommDestroy(comm))
    seen()


def exchange(comms: list[c_void_p], memory: c_void_p) -> None:
    """One thread, both ranks: only a group can do that."""
    good(nccl.ncclGroupStart())
    good(nccl.ncclGroupStart())
    for rank in (0, 1):
        peer = 1 - rank
        good(nccl.ncclSend(memory, c_size_t(4), FLOAT, peer, comms[rank], None))
        good(nccl.ncclRecv(memory, c_size_t(4), FLOAT, peer, comms[rank], None))
    good(nccl.ncclGroupEnd())
    good(nccl.ncclGroupEnd())


def groups(comms: list[c_void_p], memory: c_void_p) -> None:
    """What a group collects runs as one, on one thread, once; the second time nobody waits."""
    whole = "start;+send 0>1;+recv 0<1;+send 1>0;+recv 1<0;end;"
    exchange(comms, memory)
    assert seen() == whole
    before = round_trips()
    exchange(comms, memory)
    assert round_trips() == before
    assert seen() == whole
    good(nccl.ncclGroupStart())
    good(nccl.ncclGroupEnd())
    assert nccl.ncclGroupEnd() == INVALID_USAGE
    # A call that is wrong spoils its group, of which nothing is run.
    good(nccl.ncclGroupStart())
    good(nccl.ncclAllReduce(memory, memory, c_size_t(4), FLOAT, 0, comms[0], None))
    bad = nccl.ncclAllReduce(memory, memory, c_size_t(4), FLOAT, 0, c_void_p(77), None)
    assert bad == INVALID_ARGUMENT
    assert nccl.ncclGroupEnd() == INVALID_ARGUMENT
    assert seen() == ""
    # So does one that NCCL refuses, which is learned at the end.
    good(nccl.ncclGroupStart())
    good(nccl.ncclAllReduce(memory, memory, c_size_t(13), FLOAT, 0, comms[0], None))
    assert nccl.ncclGroupEnd() == INVALID_ARGUMENT
    assert seen() == "start;end;"
    good(nccl.ncclGroupStart())
    assert nccl.ncclGroupSimulateEnd(None) == INVALID_USAGE


def asked_for_errors(memory: c_void_p) -> None:
    """That all is well holds for 10 ms, until a call fails, of communicators that wait."""
    comm, number = c_void_p(), c_int(-1)
    good(nccl.ncclCommInitRank(byref(comm), 1, unique_id(), 0))
    before, begun = round_trips(), time.monotonic()
    for _ in range(500):
        good(nccl.ncclCommGetAsyncError(comm, byref(number)))
        assert number.value == 0
    assert round_trips() - before <= 2 + (time.monotonic() - begun) / 0.01
    refused = nccl.ncclAllReduce(memory, memory, c_size_t(13), FLOAT, 0, comm, None)
    assert refused == INVALID_ARGUMENT
    for _ in range(2):
        good(nccl.ncclCommGetAsyncError(comm, byref(number)))
        assert number.value == REMOTE_ERROR
    good(nccl.ncclCommAbort(comm))
    assert nccl.ncclCommGetAsyncError(comm, byref(number)) == INVALID_ARGUMENT
    config = Config(size=80, magic=0xCAFEBEEF, blocking=0)
    good(nccl.ncclCommInitRankConfig(byref(comm), 1, unique_id(), 0, byref(config)))
    before = round_trips()
    for _ in range(5):
        good(nccl.ncclCommGetAsyncError(comm, byref(number)))
    assert round_trips() == before + 5
    good(nccl.ncclCommDestroy(comm))
    seen()


def collectives(comm: c_void_p, memory: c_void_p) -> None:
    """Outside of groups, by either name."""
    good(nccl.ncclAllReduce(memory, memory, c_size_t(4), FLOAT, 0, comm, None))
    before = round_trips()
    good(nccl.ncclAllReduce(memory, memory, c_size_t(4), FLOAT, 0, comm, None))
    good(nccl.pncclAllReduce(memory, memory, c_size_t(4), FLOAT, 0, comm, None))
    assert round_trips() == before
    good(nccl.ncclAllReduce(memory, memory, c_size_t(5), FLOAT, 0, comm, None))
    assert round_trips() == before + 1, "another count may take another algorithm"
    assert seen() == "allreduce 4 7 0;" * 3 + "allreduce 5 7 0;"
    op = c_int()
    good(nccl.ncclRedOpCreatePreMulSum(byref(op), byref(c_float(2.5)), FLOAT, 1, comm))
    assert op.value == 7
    good(nccl.ncclRedOpCreatePreMulSum(byref(op), byref(c_double(0.25)), DOUBLE, 1, comm))
    good(nccl.ncclRedOpCreatePreMulSum(byref(op), memory, DOUBLE, 0, comm))
    on_host = nccl.ncclRedOpCreatePreMulSum(byref(op), byref(c_double(1)), DOUBLE, 0, comm)
    assert on_host == INVALID_ARGUMENT
    assert seen() == "premul 2.5;premul 0.25;premul device;"


def other_ways(parent: c_void_p) -> None:
    """Configurations, several unique ids, splits, shrinks, all devices at once."""
    made = c_void_p()
    config = Config(size=80, magic=0xCAFEBEEF, blocking=1, net_name=b"Socket", comm_name=b"mine")
    name = unique_id()
    good(nccl.ncclCommInitRankConfig(byref(made), 1, name, 0, byref(config)))
    assert seen() == "config size 80 blocking 1 net Socket name mine;"
    good(nccl.ncclCommAbort(made))
    assert nccl.ncclCommAbort(made) == INVALID_ARGUMENT
    config.size = 24
    good(nccl.ncclCommInitRankConfig(byref(made), 1, unique_id(), 0, byref(config)))
    # The worker makes the whole of it anew; what an older program lacks is as by default.
    assert seen() == "abort 0;config size 80 blocking 1 net - name -;"
    good(nccl.ncclCommDestroy(made))
    names = (UniqueId * 3)(unique_id(), unique_id(), unique_id())
    good(nccl.ncclCommInitRankScalable(byref(made), 1, 0, 3, names, None))
    assert seen().startswith("destroy 0;scalable 3 ids last ")
    good(nccl.ncclCommSplit(parent, -1, 0, byref(made), None))
    assert made.value is None
    good(nccl.ncclCommSplit(parent, 3, 9, byref(made), None))
    assert made.value
    good(nccl.ncclCommShrink(parent, (c_int * 1)(1), 1, byref(made), None, 1))
    assert seen() == "split -1 0 0;split 3 9 0;shrink 1 first 1 flags 1 0;"
    # A rank that the parent does not have is refused before NCCL sees it.
    beyond = nccl.ncclCommShrink(parent, (c_int * 2)(1, 5), 2, byref(made), None, 1)
    assert beyond == INVALID_ARGUMENT
    assert seen() == ""
    # Refused by NCCL: there is no communicator, and its id means nothing.
    assert nccl.ncclCommInitRank(byref(made), 1, unique_id(), 4) == INVALID_ARGUMENT
    assert made.value is None
    seen()
    pair = (c_void_p * 2)()
    good(nccl.ncclCommInitAll(pair, 2, (c_int * 2)(0, 0)))
    text = seen()
    assert text.startswith("start;+init 0/2"), text
    assert text.endswith("end;")
    good(nccl.ncclGroupStart())
    for comm in pair:
        good(nccl.ncclCommDestroy(c_void_p(comm)))
    good(nccl.ncclGroupEnd())
    assert seen() == "start;+destroy 0;+destroy 1;end;"
    number = c_int()
    assert nccl.ncclCommCount(c_void_p(pair[0]), byref(number)) == INVALID_ARGUMENT
    # What a group makes is there at its end, not before.
    good(nccl.ncclGroupStart())
    good(nccl.ncclCommInitRank(byref(made), 1, unique_id(), 0))
    assert nccl.ncclCommCount(made, byref(number)) == INVALID_ARGUMENT
    good(nccl.ncclGroupEnd())
    good(nccl.ncclCommCount(made, byref(number)))


def main() -> None:
    """All of it."""
    version = c_int()
    good(nccl.ncclGetVersion(byref(version)))
    assert version.value == 22809
    assert nccl.ncclGetErrorString(0) == b"no error"
    memory = c_void_p()
    good(nccl.ncclMemAlloc(byref(memory), c_size_t(4096)))
    one_rank_is_alone()
    comms = two_threads_meet(memory)
    groups(comms, memory)
    asked_for_errors(memory)
    collectives(comms[0], memory)
    other_ways(comms[0])
    assert nccl.ncclCommWindowRegister(comms[0], memory, c_size_t(64), None, 0) == INVALID_ARGUMENT
    window = c_void_p(1)
    good(nccl.ncclCommWindowRegister(comms[0], memory, c_size_t(64), byref(window), 0))
    assert window.value is None, "NCCL has no windows here, and goes without"
    good(nccl.ncclCommWindowDeregister(comms[0], window))
    good(nccl.ncclMemFree(memory))
    good(cuda.cuCtxSynchronize())
    print("all of it")


if __name__ == "__main__":
    main()
