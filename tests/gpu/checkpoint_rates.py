# SPDX-License-Identifier: Apache-2.0
"""How fast slabs move between the card and host memory; cases of checkpoint_probe.py.

Figures (GiB/s of memory moved, mapping and unmapping included): swap_out_gib_s and swap_in_gib_s
against copies of pinned memory of the same process, swap_first_gib_s with fresh host memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from checkpoint_bench import Bench

GIB = 1024
MOST_GIB, FRESH_GIB, MOVER_GIB, SMALL_GIB = 32, 4, 8, 4
LEFT_GIB = 16  # of the machine's memory, for everything else
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")


def available_mib() -> int:
    """Of the machine's memory."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) >> 10
    return 0


def available_gib() -> int:
    """The same in whole GiB."""
    return available_mib() >> 10


@contextlib.contextmanager
def huge_pages(gib: int) -> Iterator[str]:
    """While the block runs, so much in huge pages, where root may say so; what came of it."""
    try:
        before = HUGE_PAGES.read_text()
        HUGE_PAGES.write_text(str(int(before) + gib * 512))
    except (OSError, ValueError) as error:
        yield f"no huge pages: {error}"
        return
    try:
        yield f"{HUGE_PAGES.read_text().strip()} huge pages"
    finally:
        HUGE_PAGES.write_text(before)


def rates(bench: Bench) -> None:
    """32 GiB out and in, in slabs of 64 MiB; then 4 GiB in slabs of 2 MiB; fresh host memory."""
    gib = max(1, min(MOST_GIB, (available_gib() - LEFT_GIB) // 2))
    with huge_pages(gib) as said:
        told = bench.subject()
        pinned = told.ask("pinned_rates", mib=GIB)
        told.ask("slab", mib=gib * GIB)
        memory = told.ask("memory", 120, mib=gib * GIB)
        bench.row("host memory of a pool", said, gib=gib, **memory)
        for turn in range(3):
            _out_and_in(bench, told, f"{gib} GiB, slabs of 64 MiB, time {turn + 1}", gib, pinned)
        told.kill()
    told = bench.subject()
    told.ask("slab", mib=SMALL_GIB * GIB, piece_mib=2)
    told.ask("memory", mib=SMALL_GIB * GIB)
    _out_and_in(bench, told, f"{SMALL_GIB} GiB, slabs of 2 MiB", SMALL_GIB, {})
    told.kill()
    told = bench.subject()
    told.ask("slab", mib=FRESH_GIB * GIB)
    memory = told.ask("memory", mib=FRESH_GIB * GIB, touched=False)
    out = told.ask("out")
    took = memory["register_s"] + out["copy_s"] + out["drop_s"]
    bench.row(
        "fresh host memory, registered untouched",
        f"{FRESH_GIB} GiB out",
        swap_first_gib_s=FRESH_GIB / took,
        register_s=memory["register_s"],
        **out,
    )


def _out_and_in(bench: Bench, told, name: str, gib: int, pinned: dict[str, float]) -> None:
    out, back = told.ask("out", 60), told.ask("back", 60)
    wrong = told.ask("check")["wrong"]
    floors = {f"{way}_gib_s": rate for way, rate in pinned.items()}
    bench.row(
        name,
        "right" if not wrong else f"{wrong} words wrong",
        swap_out_gib_s=gib / (out["copy_s"] + out["drop_s"]),
        swap_in_gib_s=gib / (back["copy_s"] + back["renew_s"]),
        drop_s=out["drop_s"],
        renew_s=back["renew_s"],
        **floors,
    )


def by_another(bench: Bench) -> None:
    """A mover that has the pool registered opens the slabs by descriptors, and copies them."""
    owner, mover = bench.subject(), bench.subject()
    mover.ask("memory", mib=MOVER_GIB * GIB)
    owner.ask("slab", mib=MOVER_GIB * GIB)
    for way in ("out", "in"):
        path = str(bench.folder / way)
        owner.tell("export", path=path)
        opened = mover.ask("open", path=path)
        owner.answer()
        copied = mover.ask("copy", way=way)
        forgotten = mover.ask("forget")
        took = opened["open_s"] + copied["copy_s"] + forgotten["forget_s"]
        if way == "out":
            owner.ask("drop")
            bench.cycle("its memory moved out by another process", None, pid=owner.pid)
            owner.ask("renew")
        bench.row(
            f"{MOVER_GIB} GiB moved {way} by another process",
            f"{MOVER_GIB / took:.1f} GiB/s",
            **opened,
            **copied,
            **forgotten,
        )
    wrong = owner.ask("check")["wrong"]
    bench.row("   afterwards", "right" if not wrong else f"{wrong} words wrong")
