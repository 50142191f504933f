# SPDX-License-Identifier: Apache-2.0
"""What a process on one card of two is when the driver has restored it on the other.

    python3 tests/gpu/moving_probe.py [CASE ...] [--seconds 85]     # as root, two cards

For sessions that move (docs/decisions/0012): a process sees all cards, its own first, by the order
of CUDA_VISIBLE_DEVICES; it is checkpointed, restored with a map that names all that it sees, and
looked at from inside and by NVML. The cases are timed_cases.py's. Needs nothing but a driver from
570 on; without two cards it says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from checkpoint_bench import Bench, Failed, Told  # noqa: E402
from checkpoint_calls import Card, Checkpointer  # noqa: E402
from timed_cases import main_of  # noqa: E402

SUBJECT = HERE / "moving_subject.py"
GIB = 1024
OUT_GIB = 2


class Cards:
    """All cards of this machine, and processes that see them in an order."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.all = [Card(index) for index in range(Card.count())]
        self.uuids = [card.uuid for card in self.all]

    def subject(self, *order: int, hide_order: bool = False) -> Told:
        """Sees these cards, so ordered; `hide_order`: all, without CUDA_VISIBLE_DEVICES."""
        seen = {} if hide_order else {"CUDA_VISIBLE_DEVICES": ",".join(self._uuids(order))}
        return self.bench.told([sys.executable, str(SUBJECT)], {**self.bench.natively, **seen})

    def _uuids(self, order: tuple[int, ...]) -> list[str]:
        return [self.uuids[index] for index in order]

    def used(self) -> list[int]:
        """MiB of each card."""
        return [card.used_mib() for card in self.all]

    def exchanged(self, one: int, other: int) -> dict[str, str]:
        """A map that names all cards, and exchanges two."""
        return dict(
            zip(
                self.uuids,
                self._uuids(
                    tuple(
                        {one: other, other: one}.get(index, index) for index in range(len(self.all))
                    )
                ),
                strict=True,
            )
        )

    def where(self, uuids: list[str]) -> str:
        """UUIDs as numbers of cards."""
        return " ".join(str(self.uuids.index(u)) if u in self.uuids else u for u in uuids)


def move(cards: Cards, told: Told, name: str, gpus: dict[str, str] | None) -> bool:
    """One row: the calls, what the process says then, what NVML says of the cards."""
    bench, calls = cards.bench, Checkpointer(told.pid)
    before, said = cards.used(), []
    times = {}
    for what in ("lock", "checkpoint", "restore", "unlock"):
        answer = calls.restore(gpus) if what == "restore" else getattr(calls, what)()
        times[f"{what}_s"] = answer.seconds
        if what == "checkpoint":
            times["off_mib"] = cards.used()
        if not answer.good:
            said.append(f"{what}: {answer.status}, then {calls.state()}")
            break
    else:
        said.append("done")
    row = {"before_mib": before, "now_mib": cards.used(), **times}
    if said == ["done"]:
        try:
            identity = told.ask("identity", 10)
            row["device_uuids_are_cards"] = cards.where(identity["uuids"])
            row["buses"] = identity["buses"]
            row["device_0_free_mib"] = identity["free_mib"]
        except Failed as error:
            said.append(str(error)[-200:])
    bench.row(name, "; ".join(said), **row)
    return said == ["done"]


def right(cards: Cards, told: Told, name: str, *asked: str) -> None:
    """What comes of asking it to look, one row."""
    try:
        words = {what: told.ask(what, 15).get("wrong") for what in asked}
        result = "right" if not any(words.values()) else f"wrong words: {words}"
    except Failed as error:
        result = str(error)[-200:]
    cards.bench.row(name, result, now_mib=cards.used())


def _out_and_there(bench: Bench, order: tuple[int, int], name: str) -> None:
    """As a session that moves: its memory goes out before, and comes back behind the restore."""
    cards = Cards(bench)
    own, other = order
    rest = tuple(index for index in range(len(cards.all)) if index not in order)
    told = cards.subject(*order, *rest)
    told.ask("start")
    bench.row(f"{name}: its devices are cards", cards.where(told.ask("identity")["uuids"]))
    told.ask("slab", mib=OUT_GIB * GIB)
    told.ask("graph", mib=0)
    told.ask("events")
    told.ask("memory", mib=OUT_GIB * GIB)
    for step, gpus in (
        ("there", cards.exchanged(own, other)),
        ("there, no map", None),  # it stays there, or is back where it began
        ("back", cards.exchanged(other, own)),
        ("there again", cards.exchanged(own, other)),
    ):
        told.ask("out")
        told.ask("unregister")
        if not move(cards, told, f"{name}, {step}", gpus):
            return
        told.ask("register")
        told.ask("back")
        right(cards, told, f"   its memory, renewed by device 0, {step}", "check", "again")
        bench.row("   between its events", str(told.ask("between")["ms"]))


def own_first(bench: Bench) -> None:
    """CUDA_VISIBLE_DEVICES=own,other, its own the first card of the machine."""
    _out_and_there(bench, (0, 1), "sees 0,1")


def other_order(bench: Bench) -> None:
    """The same with the order turned round."""
    _out_and_there(bench, (1, 0), "sees 1,0")


def start(bench: Bench) -> None:
    """What seeing two cards costs a process, against seeing one."""
    cards = Cards(bench)
    everything = tuple(range(len(cards.all)))
    for name, order in (("one card", (0,)), ("all cards", everything), ("all again", everything)):
        before = cards.used()
        told = cards.subject(*order)
        said = told.ask("start")
        took = [now - then for now, then in zip(cards.used(), before, strict=True)]
        bench.row(f"a process that sees {name}", "started", took_mib=took, **said)
        told.kill()


def registered(bench: Bench) -> None:
    """Host memory that stays registered, written by a kernel by its address, there and back."""
    cards = Cards(bench)
    rest = tuple(range(2, len(cards.all)))
    told = cards.subject(0, 1, *rest)
    told.ask("start")
    told.ask("slab", mib=GIB)
    told.ask("memory", mib=GIB)
    told.ask("mapped")
    name = "1 GiB of slabs left to the driver, 1 GiB of host memory registered"
    if move(cards, told, name, cards.exchanged(0, 1)):
        right(cards, told, "   both", "check")
        told.ask("slab", mib=64)
        right(cards, told, "   with 64 MiB more", "check")


def unordered(bench: Bench) -> None:
    """Without CUDA_VISIBLE_DEVICES."""
    cards = Cards(bench)
    told = cards.subject(hide_order=True)
    told.ask("start")
    told.ask("slab", mib=64)
    if move(cards, told, "no CUDA_VISIBLE_DEVICES", cards.exchanged(0, 1)):
        right(cards, told, "   its memory", "check")


def from_where_it_began(bench: Bench) -> None:
    """Moved once, then named by the cards that it began on: does `old` mean those, or where it is?

    With two cards both maps are one; with three the first row fails or the process is elsewhere.
    """
    cards = Cards(bench)
    if len(cards.all) < 3:
        bench.row("the old of a map: where it began, or where it is", "not tried: two cards")
        return
    told = cards.subject(*range(len(cards.all)))
    told.ask("start")
    told.ask("slab", mib=64)
    if move(cards, told, "0 to 1", cards.exchanged(0, 1)) and move(
        cards, told, "then 1 to 2, by where it is", cards.exchanged(1, 2)
    ):
        right(cards, told, "   its memory", "check")


def one_named(bench: Bench) -> None:
    """A map that names its own card alone; last, as it may hang."""
    cards = Cards(bench)
    told = cards.subject(*range(len(cards.all)))
    told.ask("start")
    told.ask("slab", mib=64)
    move(cards, told, "one named of all that it sees", {cards.uuids[0]: cards.uuids[1]})


#: With the seconds that each may take.
CASES = {
    "own_first": (own_first, 30),
    "start": (start, 15),
    "other_order": (other_order, 25),
    "registered": (registered, 20),
    "unordered": (unordered, 12),
    "from_where_it_began": (from_where_it_began, 15),
    "one_named": (one_named, 12),
}


def why_not() -> str:
    """What this machine lacks."""
    count = Card.count()
    return f"this machine shows {count} NVIDIA GPUs, and two are needed" if count < 2 else ""


if __name__ == "__main__":
    [summary, *_] = (__doc__ or "").splitlines()
    sys.exit(main_of(Path(__file__), summary, CASES, 85, why_not=why_not))
