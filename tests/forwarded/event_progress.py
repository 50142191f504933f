# SPDX-License-Identifier: Apache-2.0
"""A program that asks for many events at a time, which streams come to one after the other.

Prints, as a line of JSON each, what it was told and how often it waited for the node.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_longlong, c_size_t, c_uint64, c_void_p

NOT_READY = 600
NON_BLOCKING = 1
GEQ = 0
MOST_ASKED = 64  # with one question

CU = ctypes.CDLL("libcuda.so.1")
CU.cuStreamWaitValue32_v2.argtypes = (c_void_p, c_uint64, ctypes.c_uint32, ctypes.c_uint)
CU.cuMemcpyDtoHAsync_v2.argtypes = (c_void_p, c_uint64, c_size_t, c_void_p)
CU.cuStreamWaitEvent.argtypes = (c_void_p, c_void_p, ctypes.c_uint)
CU.cuMemsetD32Async.argtypes = (c_uint64, ctypes.c_uint, c_size_t, c_void_p)
CU.cuEventRecord.argtypes = (c_void_p, c_void_p)
CU.cuEventElapsedTime_v2.argtypes = (ctypes.POINTER(c_float), c_void_p, c_void_p)
for one in ("cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2", "cuStreamDestroy_v2"):
    getattr(CU, one).argtypes = (c_void_p,)


def must(status: int) -> None:
    """Fail unless a call succeeded."""
    assert status == 0, status


def stream() -> c_void_p:
    """One that waits for no other."""
    made = c_void_p()
    must(CU.cuStreamCreate(byref(made), NON_BLOCKING))
    return made


def event(flags: int = 2) -> c_void_p:
    """One without a time unless told."""
    made = c_void_p()
    must(CU.cuEventCreate(byref(made), flags))
    return made


class Gate:
    """What streams wait behind: a word in device memory that another stream writes."""

    def __init__(self) -> None:
        self.word, self.opener = c_uint64(), stream()
        must(CU.cuMemAlloc_v2(byref(self.word), c_size_t(4)))
        self.open(0)

    def before(self, waiting: c_void_p, number: int) -> None:
        """What `waiting` gets from here on begins when that number is open."""
        must(CU.cuStreamWaitValue32_v2(waiting, self.word, number, GEQ))

    def read(self, reader: c_void_p) -> int:
        """What the word is, by that stream: tells of no other."""
        value = ctypes.c_uint32()
        must(CU.cuMemcpyDtoHAsync_v2(byref(value), self.word, 4, reader))
        must(CU.cuStreamSynchronize(reader))
        return value.value

    def open(self, number: int, wait: bool = True) -> None:
        """All numbers up to this one."""
        must(CU.cuMemsetD32Async(self.word, number, 1, self.opener))
        if wait:
            must(CU.cuStreamSynchronize(self.opener))


def asked(do: Callable[[], None]) -> int:
    """How often this process waited for the node meanwhile."""
    commands, before, after = c_longlong(), c_longlong(), c_longlong()
    CU.sluice_library_statistics(byref(commands), byref(before))
    do()
    CU.sluice_library_statistics(byref(commands), byref(after))
    return after.value - before.value


def say(**what: object) -> None:
    """One line."""
    print(json.dumps(what), flush=True)


def behind(gate: Gate, on: c_void_p, first: int, count: int) -> list[c_void_p]:
    """Events of which number `first` + i is done when that number is open."""
    events = []
    for number in range(first, first + count):
        gate.before(on, number)
        events.append(event())
        must(CU.cuEventRecord(events[-1], on))
    return events


def until(gate: Gate, on: c_void_p, last: c_void_p, number: int) -> None:
    """Opens a number and waits, by asking alone, until the stream has come to it."""
    gate.open(number)
    while CU.cuEventQuery(last) == NOT_READY:
        pass
    must(CU.cuEventQuery(last))


def in_order(gate: Gate) -> None:
    """One question tells of all that are done."""
    on = stream()
    events = behind(gate, on, 1, 50)
    none = [CU.cuEventQuery(one) for one in events]
    until(gate, on, events[29], 30)
    told: list[int] = []
    first = asked(lambda: told.extend(CU.cuEventQuery(one) for one in events[:30]))
    rest = [CU.cuEventQuery(one) for one in events[30:]]
    gate.open(50)
    must(CU.cuEventSynchronize(events[49]))
    last = asked(lambda: told.extend(CU.cuEventQuery(one) for one in events))
    again = asked(lambda: [must(CU.cuEventSynchronize(one)) for one in events])
    say(
        part="in order",
        none_ready=set(none) == {NOT_READY},
        done=set(told) == {0},
        rest=set(rest) == {NOT_READY},
        asked=[first, last, again],
    )


def one_question(gate: Gate) -> None:
    """Of a list that is done the first question is the only one; as many as fit into it."""
    count = MOST_ASKED + 20
    on, reader = stream(), stream()
    events = behind(gate, on, 1, count)
    gate.open(count)
    while CU.cuStreamQuery(on) == NOT_READY:  # tells of the stream
        pass
    known = asked(lambda: [must(CU.cuEventQuery(one)) for one in events])
    gate.open(0)
    events = behind(gate, on, 1, count)
    must(CU.cuMemsetD32Async(gate.word, count + 1, 1, on))
    gate.open(count)
    while gate.read(reader) != count + 1:
        pass
    first = asked(lambda: [must(CU.cuEventQuery(one)) for one in events[:MOST_ASKED]])
    then = asked(lambda: [must(CU.cuEventQuery(one)) for one in events])
    say(part="one question", asked=[known, first, then])


def recorded_anew(gate: Gate) -> None:
    """The newest record counts, whichever stream it is in; what is destroyed is nobody's."""
    gate.open(0)
    one, two = stream(), stream()
    a, b, c = behind(gate, one, 1, 3)
    until(gate, one, c, 3)
    gate.open(0)
    gate.before(one, 4)
    must(CU.cuEventRecord(a, one))
    anew = CU.cuEventQuery(a)
    must(CU.cuEventRecord(b, two))
    must(CU.cuStreamSynchronize(two))
    elsewhere = CU.cuEventQuery(b)
    d, e, f = behind(gate, one, 5, 3)
    must(CU.cuEventDestroy_v2(e))
    taken = event()  # its place, and it was never recorded
    before = [CU.cuEventQuery(x) for x in (a, d, taken, f)]
    until(gate, one, f, 7)
    after = [CU.cuEventQuery(x) for x in (a, b, d, taken, f)]
    gate.open(0)
    gate.before(two, 1)
    must(CU.cuEventRecord(c, two))
    must(CU.cuStreamDestroy_v2(two))
    three = stream()  # its place
    must(CU.cuEventRecord(d, three))
    must(CU.cuEventSynchronize(d))
    gone = CU.cuEventQuery(c)
    gate.open(1)
    must(CU.cuCtxSynchronize())
    say(
        part="recorded anew",
        anew=anew,
        elsewhere=elsewhere,
        before=before,
        after=after,
        gone=[gone, CU.cuEventQuery(c)],
    )


def told_otherwise(gate: Gate, context: c_void_p, rounds: int) -> None:
    """Who hears by another way that an event is done is not told that it is not."""
    on, other, wrong = stream(), stream(), 0
    for _ in range(rounds):
        gate.open(0)
        events = behind(gate, on, 1, 4)
        must(CU.cuStreamWaitEvent(other, events[3], 0))
        heard = threading.Event()

        def wait(heard: threading.Event = heard) -> None:
            must(CU.cuCtxSetCurrent(context))
            assert gate.read(other) == 4
            heard.set()

        waits = threading.Thread(target=wait)
        waits.start()
        gate.open(4, wait=False)
        while not heard.is_set():
            CU.cuEventQuery(events[0])
        wrong += any(CU.cuEventQuery(one) for one in events[1:])
        waits.join()
        for one in events:
            must(CU.cuEventDestroy_v2(one))
    say(part="told otherwise", wrong=wrong)


def many(gate: Gate) -> None:
    """More events of a stream than anybody keeps a list of; times between two."""
    gate.open(0)
    on = stream()
    events = behind(gate, on, 1, 600)
    until(gate, on, events[399], 400)
    told = [CU.cuEventQuery(one) for one in events]
    gate.open(600)
    must(CU.cuStreamSynchronize(on))
    all_done = [CU.cuEventQuery(one) for one in reversed(events)]
    begin, end, took = event(0), event(0), c_float(-1)
    must(CU.cuEventRecord(begin, on))
    must(CU.cuEventRecord(end, on))
    must(CU.cuEventSynchronize(end))
    waits = asked(lambda: must(CU.cuEventElapsedTime_v2(byref(took), begin, end)))
    say(
        part="many",
        done=told == [0] * 400 + [NOT_READY] * 200,
        all_done=set(all_done) == {0},
        elapsed=took.value >= 0,
        asked=waits,
    )


def threads(context: c_void_p, seed: int, turns: int) -> None:
    """Threads that record, ask for and destroy events in streams that they share."""
    gates, streams = [Gate(), Gate()], [stream(), stream()]
    locks = [threading.Lock(), threading.Lock()]
    numbers = [0, 0]
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        must(CU.cuCtxSetCurrent(context))
        mine: list[tuple[int, c_void_p]] = []
        for _ in range(turns):
            which = rng.randrange(2)
            with locks[which]:
                numbers[which] += 1
                gates[which].before(streams[which], numbers[which])
                one = event()
                must(CU.cuEventRecord(one, streams[which]))
                mine.append((which, one))
                last = numbers[which]
            if rng.random() < 0.3:
                # Once opened all up to it are done, whoever recorded them.
                with locks[which]:
                    gates[which].open(numbers[which])
                must(CU.cuEventSynchronize(one))
                early = [e for w, e in mine if w == which and CU.cuEventQuery(e)]
                if early:
                    wrong.append(f"{len(early)} of thread {number} before {last} are not done")
            for _, e in mine:
                if CU.cuEventQuery(e) not in {0, NOT_READY}:
                    wrong.append("a status")
            if len(mine) > 20:
                for _, e in mine[:10]:
                    must(CU.cuEventDestroy_v2(e))
                del mine[:10]

    each = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    say(part="threads", wrong=wrong)


def main() -> None:
    """Every part, or the one that is named."""
    context, device = c_void_p(), c_int()
    must(CU.cuInit(0))
    must(CU.cuDeviceGet(byref(device), 0))
    must(CU.cuDevicePrimaryCtxRetain(byref(context), device))
    must(CU.cuCtxSetCurrent(context))
    in_order(Gate())
    one_question(Gate())
    recorded_anew(Gate())
    told_otherwise(Gate(), context, 60)
    many(Gate())
    threads(context, int(sys.argv[1]) if len(sys.argv) > 1 else 1, 120)


if __name__ == "__main__":
    main()
