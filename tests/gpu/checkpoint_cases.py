# SPDX-License-Identifier: Apache-2.0
"""The native cases of checkpoint_probe.py: what the driver's checkpoint does, without Sluice."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import checkpoint_calls
import mps_daemon
from checkpoint_bench import Bench, Failed, Told, nccl_library
from checkpoint_calls import Card, Checkpointer

GIB = 1024
OUT_FIRST_GIB, KILL_GIB = 8, 8
NOBODY = 65534


def context(bench: Bench) -> None:
    """A context and 2 MiB, which sees one card, as a worker does; again with both maps of GPUs."""
    same = {bench.card.uuid: bench.card.uuid}
    for name, visible, gpus in (
        ("context, one GPU visible", True, None),
        ("context, all GPUs visible", False, None),
        ("the same GPU named at restore, one visible", True, same),
        ("the same GPU named at restore, all visible", False, same),
    ):
        told = bench.subject(visible)
        told.ask("slab", mib=2, piece_mib=2)
        bench.cycle(name, told, gpus=gpus)
        told.kill()


def moved_out(bench: Bench) -> None:
    """Slabs that go out by the virtual memory API first; registered memory stays registered."""
    told = bench.subject()
    told.ask("slab", mib=OUT_FIRST_GIB * GIB)
    told.ask("graph", mib=0)
    memory = told.ask("memory", mib=OUT_FIRST_GIB * GIB)
    for name, registered in (("stays registered", True), ("is unregistered", False)):
        began = time.perf_counter()
        out = told.ask("out")
        unregistered = {} if registered else told.ask("unregister")
        out_s = time.perf_counter() - began

        calls_before = time.perf_counter()
        good = bench.cycle(
            f"{OUT_FIRST_GIB} GiB moved out before, its memory {name}",
            None,
            pid=told.pid,
            out_s=out_s,
            drop_s=out["drop_s"],
            **unregistered,
        )
        off_s = time.perf_counter() - calls_before
        if not good:
            return
        if not registered:
            told.ask("register")
        back = told.ask("back")
        wrong = told.ask("check")["wrong"] + told.ask("again")["wrong"]
        bench.row(
            f"   and back, its memory {name}",
            "right" if not wrong else f"{wrong} words wrong",
            back_s=back["renew_s"] + back["copy_s"],
            renew_s=back["renew_s"],
            off_s=off_s,
            pages=memory["pages"],
        )


def sizes(bench: Bench) -> None:
    """Time by GiB, of slabs and of cuMemAlloc."""
    for gib, how in ((1, "slab"), (4, "slab"), (16, "slab"), (4, "plain")):
        told = bench.subject()
        told.ask(how, mib=gib * GIB)
        bench.cycle(f"{gib} GiB by {'cuMemAlloc' if how == 'plain' else 'slabs'}", told)
        told.kill()


def exported(bench: Bench) -> None:
    """Memory that another process has open, or has had open."""
    one, other = bench.subject(), bench.subject()
    one.ask("slab", mib=256)
    one.ask("export", path="", opened=False)
    bench.cycle("handles exported once, open nowhere", one)
    _open(bench, one, other)
    bench.cycle("memory that another process has open", one)
    other.ask("forget")
    bench.cycle("memory that another process had open", one)
    bench.cycle("the process that had it open", other)
    _open(bench, one, other)
    other.kill()
    bench.cycle("memory that a killed process had open", one)
    third = bench.subject()
    _open(bench, one, third)
    one.ask("drop")
    bench.cycle("who released memory that another still has open", None, pid=one.pid)
    one.ask("renew")


def opener(bench: Bench) -> None:
    """Who has another's memory open; it may never come back."""
    one, other = bench.subject(), bench.subject()
    one.ask("slab", mib=256)
    _open(bench, one, other)
    bench.cycle("the process that has another's memory open", other)


def _open(bench: Bench, one: Told, other: Told) -> None:
    path = str(bench.folder / f"handles-{time.monotonic_ns()}")
    one.tell("export", path=path)
    other.ask("open", path=path)
    one.answer()


def graphs_and_pools(bench: Bench) -> None:
    """An instantiated graph with memory of its own, pools whose freed memory is kept."""
    for name, exportable in (("a pool", False), ("a pool with exportable handles", True)):
        told = bench.subject()
        told.ask("slab", mib=256)
        told.ask("pool", mib=256, exported=exportable)
        bench.cycle(name, told)
        if not exportable:
            told.ask("graph", mib=64)
            bench.cycle("an instantiated graph with memory of its own", told, check="again")
        told.kill()


def arena(bench: Bench) -> None:
    """Registered host memory that kernels reach, and memory of cuMemAllocHost."""
    told = bench.subject()
    told.ask("memory", mib=1024, piece_mib=256)
    told.ask("mapped")
    bench.cycle("1 GiB of registered memory that kernels reach", told)
    told.ask("mapped", back=True)
    told.kill()


def events(bench: Bench) -> None:
    """Events keep their times; work, and a host function, while the lock is taken."""
    told = bench.subject()
    told.ask("slab", mib=64)
    before = told.ask("events")["ms"]
    bench.cycle("recorded events", told)
    after = told.ask("between")["ms"]
    bench.row("   their time between", "the same" if before == after else f"{before}, {after}")
    calls = Checkpointer(told.pid)
    for name, do, wait_ms in (
        ("a kernel of 2 s under way, lock within 5 s", "spin", 5000),
        ("a kernel of 2 s under way, lock within 0.2 s", "spin", 200),
        ("a host function of 2 s under way, lock within 5 s", "host_function", 5000),
        ("a host function of 2 s under way, lock within 0.2 s", "host_function", 200),
    ):
        told.ask(do, seconds=2)
        lock = calls.lock(wait_ms)
        said = str(lock)
        if lock.good:
            checkpoint = calls.checkpoint()
            said += f", checkpoint {checkpoint}"
            if checkpoint.good:
                said += f", restore {calls.restore()}"
            said += f", unlock {calls.unlock().status}"
        told.ask("finish")
        wrong = told.ask("check")["wrong"]
        bench.row(name, said, after="right" if not wrong else f"{wrong} words wrong")
    told.tell("spin", seconds=2)
    told.answer()
    told.tell("finish")
    bench.row("a call that waits for 2 s of work, lock within 5 s", str(calls.lock(5000)))
    bench.row("   unlocked", calls.unlock().status)
    told.answer()


def no_room(bench: Bench) -> None:
    """Another process takes the memory meanwhile; then it is there again."""
    told, hog = bench.subject(), bench.subject()
    told.ask("slab", mib=4 * GIB)
    calls = Checkpointer(told.pid)
    bench.row("no room: off the card", f"lock {calls.lock()}, checkpoint {calls.checkpoint()}")
    hog.ask("most", but_mib=256)
    bench.row("no room: restore", str(calls.restore()), free_mib=bench.card.free_mib())
    bench.row("no room: then its state is", calls.state())
    hog.ask("give_back")
    bench.row("no room: restore with room again", str(calls.restore()), state=calls.state())
    bench.row("no room: unlock", calls.unlock().status)
    try:
        wrong = told.ask("check", 5)["wrong"]
        bench.row("no room: afterwards", "right" if not wrong else f"{wrong} words wrong")
    except Failed as error:
        bench.row("no room: afterwards", str(error))
    told.kill()
    hog.kill()
    bench.row("no room: both killed", "all is free" if bench.held_mib() < 64 else "not free")


def reserved_room(bench: Bench) -> None:
    """How much must be free for a restore, beyond what the checkpoint gave back, of a context."""
    for beyond in (0, 16, 64, 128, 256, 512, 1024):
        hog = bench.subject()
        mine = bench.held_mib()
        told = bench.subject()
        told.ask("slab", mib=2, piece_mib=2)
        took = bench.held_mib() - mine
        calls = Checkpointer(told.pid)
        said = f"lock {calls.lock()}, checkpoint {calls.checkpoint()}"
        hog.ask("most", but_mib=took + beyond)
        free = bench.card.free_mib()
        restore = calls.restore()
        if restore.good:
            calls.unlock()
            said += f", {told.ask('check')['wrong']} words wrong"
        name = f"a context's room and {beyond} MiB more are free"
        bench.row(name, str(restore), took_mib=took, free_mib=free, before=said)
        told.kill()
        hog.kill()


def mps(bench: Bench) -> None:
    """A client of NVIDIA's MPS."""
    try:
        with mps_daemon.mps_daemon(bench.folder / "mps", bench.natively) as told_of_it:
            told = bench.subject(**told_of_it)
            told.ask("slab", mib=64)
            bench.cycle("a client of MPS", told)
            told.kill()
    except mps_daemon.NoMps as error:
        bench.row("a client of MPS", f"not tried: {error}")


def killed(bench: Bench) -> None:
    """The process is killed while it is off the card, and while it is taken off."""

    def gone(told: Told) -> float:
        began = time.perf_counter()
        told.kill()
        return time.perf_counter() - began

    told = bench.subject()
    told.ask("slab", mib=2 * GIB)
    calls = Checkpointer(told.pid)
    said = f"lock {calls.lock()}, checkpoint {calls.checkpoint()}"
    took = gone(told)
    bench.row("killed while off the card", said, gone_s=took, left_mib=bench.held_mib())
    bench.row("   its state then", calls.state())
    for what in ("checkpoint", "restore"):
        told = bench.subject()
        told.ask("slab", mib=KILL_GIB * GIB)
        calls = Checkpointer(told.pid)
        said = f"lock {calls.lock().status}"
        if what == "restore":
            said += f", checkpoint {calls.checkpoint()}"
        answers: list[str] = []
        call = getattr(calls, what)
        thread = threading.Thread(target=lambda c=call, a=answers: a.append(str(c())), daemon=True)
        thread.start()
        time.sleep(0.5)
        took = gone(told)
        thread.join(10)
        said += f", {what} {answers[0] if answers else 'has not returned in 10 s'}"
        bench.row(f"killed during the {what}", said, gone_s=took, left_mib=bench.held_mib())


def caller_gone(bench: Bench) -> None:
    """Who asked for it ends, or is killed in the middle; another one goes on."""
    told = bench.subject()
    told.ask("slab", mib=KILL_GIB * GIB)
    calls = Checkpointer(told.pid)
    command = [sys.executable, str(Path(checkpoint_calls.__file__)), str(told.pid)]
    done = subprocess.run(
        [*command, "lock", "checkpoint"], capture_output=True, text=True, check=False
    )
    bench.row("checkpointed by a process that ended", done.stdout.replace("\n", " "))
    said = f"restore {calls.restore()}, unlock {calls.unlock().status}"
    bench.row("   restored by another", said, after=str(told.ask("check")))
    other = subprocess.Popen([*command, "lock", "checkpoint"], stdout=subprocess.PIPE)
    assert other.stdout
    other.stdout.readline()  # the lock is taken
    time.sleep(0.5)
    other.kill()
    other.wait()
    began, states = time.perf_counter(), [calls.state()]
    while time.perf_counter() - began < 10 and calls.state() == "locked":
        time.sleep(0.1)
    states.append(calls.state())
    bench.row(
        "who asked is killed 0.5 s into the checkpoint",
        " then ".join(states),
        waited_s=time.perf_counter() - began,
    )
    if calls.state() == "checkpointed":
        bench.row("   restore", str(calls.restore()))
    bench.row("   unlock", str(calls.unlock()), after=str(told.ask("check", 10)))


def nccl(bench: Bench) -> None:
    """A communicator of one rank."""
    library = nccl_library()
    if library is None:
        bench.row("an NCCL communicator of one rank", "not tried: no libnccl.so.2")
        return
    told = bench.subject()
    told.ask("slab", mib=64)
    told.ask("nccl", library=library)
    bench.cycle("an NCCL communicator of one rank", told, check="reduce")


def hidden(bench: Bench) -> None:
    """A process of another user that is not dumpable; asked by root, and by its own user."""
    told = bench.subject()
    told.ask("slab", mib=64)
    told.ask("hide")
    bench.cycle("of user nobody, not dumpable, asked by root", told)
    command = [sys.executable, str(Path(checkpoint_calls.__file__)), str(told.pid)]
    try:
        done = subprocess.run(
            [*command, "lock", "unlock"], capture_output=True, text=True, check=False, user=NOBODY
        )
        said = (done.stdout + done.stderr)[-120:].replace("\n", " ")
    except OSError as error:
        said = f"not tried: {error}"
    bench.row("   asked by nobody", said)


def repeated(bench: Bench) -> None:
    """Ten times in a row: times, and whether anything stays behind."""
    told = bench.subject()
    told.ask("slab", mib=GIB)
    calls, held = Checkpointer(told.pid), []
    times: dict[str, list[float]] = {"checkpoint": [], "restore": []}
    for _ in range(10):
        if not calls.lock().good:
            break
        for what, took in times.items():
            took.append(getattr(calls, what)().seconds)
        calls.unlock()
        held.append(bench.held_mib())
    wrong = told.ask("check")["wrong"]
    shown = {k: [round(one, 3) for one in v] for k, v in times.items()}
    bench.row("ten times, 1 GiB", f"{wrong} words wrong", held=held, **shown)


def other_gpu(bench: Bench) -> None:
    """Restored on the second GPU; only where there are two."""
    if Card.count() < 2:
        bench.row("restored on another GPU", "not tried: one GPU")
        return
    second = Card(1)
    there, back = {bench.card.uuid: second.uuid}, {second.uuid: bench.card.uuid}
    both = {bench.card.uuid: second.uuid, second.uuid: bench.card.uuid}
    for name, visible, gpus in (
        ("all GPUs visible, one named", False, there),
        ("all GPUs visible, both named", False, both),
        ("one GPU visible", True, there),
    ):
        told = bench.subject(visible)
        told.ask("slab", mib=GIB)
        before = second.used_mib()
        if bench.cycle(f"restored on another GPU, {name}", told, gpus=gpus):
            there_mib, here_mib = second.used_mib() - before, bench.held_mib()
            bench.row("   there, and here", "seen", there_mib=there_mib, here_mib=here_mib)
            bench.cycle("   and back again", told, gpus=both if gpus is both else back)
        told.kill()
