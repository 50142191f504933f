# SPDX-License-Identifier: Apache-2.0
"""What the console's pages cost with 1,000 nodes and 50,000 vGPUs, and what open consoles cost.

Part of bench.py, and run alone with `python tests/bench/console_load.py [pages] [events] [grants]`.
A real controller has a pool of that size in SQLite, its servers are back on streams of their own
(processes of this bench), and people have signed in by token. Every page is asked for in turn, over
a connection that is open, until its first byte is there; a figure is the worst page's 99th
percentile. What a browser loads the first time is the page and all that it names. Then a hundred
consoles look at the pool, a process of this bench that takes in their event streams, and grants are
asked for anywhere in it as in grant_rates.py, with and without them in turn: a figure is the median
of the ratios of neighbours, of the rate and of the controller's CPU for a pair. The rate is the
machine's as well as the controller's: where the controller waits for a core, which is printed, the
second one says more. An event is on the screen when the stream of a node's page has it; it is asked
for at any phase of the time that lies between two renderings. The machine has two cores for all of
it: where it does other things too, the controller's CPU, printed beside, says more than time does.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import re
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import wait_for  # noqa: E402
from controllers import Controllers  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402
from full_pool import filled, inventories, store_in_sqlite  # noqa: E402
from grant_rates import cpu_seconds, load, percentile, scratch  # noqa: E402
from restart import SERVER_PROCESSES, servers  # noqa: E402

NODES = 1000
CONSOLES = 100
TOKENS = 4  # a token has 50 pages open at most
ROUNDS_OF_PAGES, IN_A_ROW = 10, 10
ROUNDS = 60
SETTLE_SECONDS, STRETCH_SECONDS = 0.7, 2.0
LEAST_PAIRS = 500
EVENTS = 20
WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.2
MOST_MS, MOST_KB, MOST_EVENT_SECONDS, LEAST_RATIO = 100, 300, 1, 0.9


class Console:
    """A person who has signed in."""

    def __init__(self, base: str, token: str) -> None:
        self.client = httpx.Client(base_url=base, timeout=60)
        form = self.client.get("/console/sign-in").text
        csrf = re.search(r'name="csrf" value="([^"]+)"', form)
        assert csrf, form
        fields = {"csrf": csrf[1], "next": "/console/", "token": token}
        answer = self.client.post("/console/sign-in", data=fields, headers={"origin": base})
        assert answer.status_code == 303, answer.text

    def first_byte_ms(self, path: str) -> float:
        """How long the first byte of a page's body takes."""
        begin = time.perf_counter()
        with self.client.stream("GET", f"/console{path}") as answer:
            assert answer.status_code == 200, (path, answer.status_code)
            pieces = answer.iter_raw()
            next(pieces)
            taken = time.perf_counter() - begin
            for _ in pieces:
                pass
        return taken * 1e3

    def first_time_kb(self, path: str) -> float:
        """What a browser loads that has nothing of it: kB of bodies as they are sent."""
        page = self.client.get(f"/console{path}")
        size = int(page.headers["content-length"])
        for name in set(re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page.text)):
            size += int(self.client.get(name).headers["content-length"])
        return size / 1000

    def stream_of(self, path: str) -> str:
        """Where a page's event stream is."""
        found = re.search(r'sse-connect="([^"]+)"', self.client.get(f"/console{path}").text)
        assert found, path
        return found[1].replace("&amp;", "&")

    @property
    def cookies(self) -> dict[str, str]:
        """What shows who it is."""
        return dict(self.client.cookies)


def look(base: str, each: list[tuple[str, dict[str, str]]], wanted: Any, ready: Any) -> None:
    """A process with open consoles while they are wanted: takes in all that comes.

    People's browsers are not on the controller's machine, so here they are to cost as little as
    they can: sockets that are emptied some times a second, and nothing is made of what is in them.
    """
    host, _, port = base.partition("//")[2].partition(":")
    buffer = bytearray(1 << 20)
    while wanted.wait():
        sockets = []
        for address, cookies in each:
            connected = socket.create_connection((host, int(port)), timeout=60)
            cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
            head = f"GET {address} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n\r\n"
            connected.sendall(head.encode())
            first = connected.recv_into(buffer)
            assert bytes(buffer[:first]).startswith(b"HTTP/1.1 200 "), bytes(buffer[:first])
            connected.setblocking(False)
            sockets.append(connected)
        ready.set()
        while wanted.is_set():
            time.sleep(LOOK_SECONDS)
            for connected in sockets:
                with contextlib.suppress(BlockingIOError):
                    while connected.recv_into(buffer) == len(buffer):
                        pass
        for connected in sockets:
            connected.close()
        ready.clear()


def ask(target: str, nodes: list[str], pairs: Any) -> None:
    """A process that asks for grants and gives them back for ever, and counts the pairs."""
    asyncio.run(load(target, nodes, seconds=3600, count=pairs))


class FullConsole:
    """The controller with its pool, and people."""

    def __init__(self, folder: Path) -> None:
        with_grants, _ = filled(NODES, "bin-pack")
        database = folder / "pool.db"
        asyncio.run(store_in_sqlite(database, list(with_grants.take_changes())))
        self.nodes = list(with_grants.nodes)
        self.several = Controllers(
            folder,
            1,
            {"kind": "sqlite"},
            anew=True,
            pool={"heartbeat_seconds": 5, "node_timeout_seconds": 3600},
            auth={"local": "operator", "requests_per_second": 0},
            database=database,
        )
        self.several.start()
        self.base = f"http://{self.several.rest[0]}"
        reports = [each.SerializeToString() for each in inventories(with_grants)]
        self.servers = [
            multiprocessing.get_context("spawn").Process(
                target=servers,
                args=(self.several.grpc[0], reports[n::SERVER_PROCESSES]),
                daemon=True,
            )
            for n in range(SERVER_PROCESSES)
        ]
        for process in self.servers:
            process.start()
        self.rest = httpx.Client(base_url=f"{self.base}/v1", timeout=60)
        wait_for(lambda: self.rest.get("/pool").json()["nodes_up"] == NODES, seconds=180)
        printed = (folder / "controller0.out").read_text()
        found = re.search(r"shown this once:\s+(\S+)", printed)
        assert found, printed
        headers = {"authorization": f"Bearer {found[1]}"}
        self.people = []
        for number in range(TOKENS):
            wanted = {"role": "admin", "name": f"person {number}"}
            made = self.rest.post("/tokens", json=wanted, headers=headers)
            self.people.append(Console(self.base, made.json()["secret"]))

    def close(self) -> None:
        for process in self.servers:
            process.kill()
        self.several.close()

    def pages(self) -> list[str]:
        """One of each kind."""
        grant = self.rest.get("/grants", params={"limit": 1}).json()["grants"][0]
        gpu = self.rest.get("/gpus", params={"limit": 1}).json()["gpus"][0]["id"]
        session = grant["sessions"][0]
        return [
            *(
                "/",
                "/nodes",
                "/projects",
                "/grants",
                "/sessions",
                "/reservations",
                "/queue",
                "/vms",
            ),
            *(
                "/usage",
                "/usage?by=person",
                "/alerts",
                "/audit",
                "/people",
                "/tokens",
                "/history?of=pool",
            ),
            f"/node?name={grant['node']}",
            f"/gpu?id={quote(gpu)}",
            f"/grant?id={grant['id']}",
            f"/session?id={session}",
            "/project?name=default",
            f"/do?action=node.drain&target={grant['node']}",
        ]


def page_figures(full: FullConsole) -> list[Figure]:
    """The first byte of every page, and what a browser loads the first time."""
    pages, person = full.pages(), full.people[0]
    for path in pages:
        person.first_byte_ms(path)  # templates are compiled once
    taken: dict[str, list[float]] = {path: [] for path in pages}
    computed = dict.fromkeys(pages, 0.0)  # s of the controller's CPU, whatever else runs here
    for _ in range(ROUNDS_OF_PAGES):
        for path in pages:
            before = cpu_seconds(full.several, 0)
            taken[path] += [person.first_byte_ms(path) for _ in range(IN_A_ROW)]
            computed[path] += cpu_seconds(full.several, 0) - before
    worst = {path: percentile(values, 0.99) for path, values in taken.items()}
    sizes = {path: person.first_time_kb(path) for path in pages}
    for path, value in sorted(worst.items(), key=lambda each: -each[1]):
        print(
            f"{path.partition('=')[0]}: first byte {statistics.median(taken[path]):.1f} ms, p99 "
            f"{value:.1f}; {1e3 * computed[path] / len(taken[path]):.1f} ms of the controller's "
            f"CPU; {sizes[path]:.0f} kB the first time",
            file=sys.stderr,
        )
    print(f"load of the machine {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return [
        Figure("console_page_p99_ms", max(worst.values()), "ms", limit=MOST_MS),
        Figure(
            "console_page_cpu_ms",
            max(1e3 * computed[path] / len(taken[path]) for path in pages),
            "ms",
        ),
        Figure("console_page_kb", max(sizes.values()), "kB", limit=MOST_KB),
    ]


class Consoles:
    """A hundred of them, opened and closed at once."""

    def __init__(self, full: FullConsole) -> None:
        each = [
            (person.stream_of("/"), person.cookies)
            for person in (full.people[n % TOKENS] for n in range(CONSOLES))
        ]
        context = multiprocessing.get_context("spawn")
        self._wanted, self._ready = context.Event(), context.Event()
        self._process = context.Process(
            target=look, args=(full.base, each, self._wanted, self._ready), daemon=True
        )
        self._process.start()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """They look while the block runs."""
        self._wanted.set()
        if not self._ready.wait(WAIT_SECONDS):
            raise SystemExit("the consoles do not open")
        try:
            yield
        finally:
            self._wanted.clear()
            wait_for(lambda: not self._ready.is_set())

    def close(self) -> None:
        self._process.kill()
        self._process.join()


class Slice(NamedTuple):
    """What one stretch of the load came to."""

    rate: float  # pairs a second
    cpu: float  # s of the controller's, for a pair
    waited: float  # share of the time in which the controller's first thread wanted a core


def grant_figures(full: FullConsole) -> list[Figure]:
    """Grants a second with and without open consoles, in turn, and what a pair costs.

    The load goes on all the time. Stretches are short and many, as whatever else runs on the
    machine comes and goes; the order is turned round each time, so that what grows or shrinks
    favours neither.
    """
    context = multiprocessing.get_context("spawn")
    pairs = context.Value("Q", 0)
    asking = context.Process(
        target=ask, args=(full.several.grpc[0], full.nodes, pairs), daemon=True
    )
    asking.start()
    consoles = Consoles(full)
    alone: list[Slice] = []
    watched: list[Slice] = []
    try:
        wait_for(lambda: pairs.value > LEAST_PAIRS)
        for number in range(ROUNDS):
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                with consoles.open() if is_watched else contextlib.nullcontext():
                    (watched if is_watched else alone).append(stretch(full, pairs))
    finally:
        consoles.close()
        asking.kill()
    rates = [b.rate / a.rate for a, b in zip(alone, watched, strict=True)]
    costs = [a.cpu / b.cpu for a, b in zip(alone, watched, strict=True)]
    for what, found in (("alone", alone), (f"with {CONSOLES} consoles", watched)):
        rate, cpu, waited = (statistics.median(each) for each in zip(*found, strict=True))
        print(
            f"{what}: {rate:,.0f} grants a second; {cpu * 1e6:,.0f} us of the controller's CPU a "
            f"pair; waiting for a core {waited:.0%} of the time",
            file=sys.stderr,
        )
    print(
        f"ratios of rates {said(rates)}; of CPU {said(costs)}; load of the machine "
        f"{os.getloadavg()[0]:.1f}",
        file=sys.stderr,
    )
    return [
        Figure(
            name,
            statistics.median(ratios),
            "ratio",
            limit=LEAST_RATIO,
            better="higher",
            spread=quartiles(ratios),
            rounds=ROUNDS,
        )
        for name, ratios in (("console_grants_ratio", rates), ("console_cpu_ratio", costs))
    ]


def quartiles(values: list[float]) -> tuple[float, float]:
    """Between which the middle half lies."""
    first, _, third = statistics.quantiles(values, n=4)
    return first, third


def said(values: list[float]) -> str:
    """The median, the middle half, and how sure the median is."""
    first, third = quartiles(values)
    sure = 1.25 * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.median(values):.3f} ({first:.3f} to {third:.3f}) ± {sure:.3f}"


def stretch(full: FullConsole, pairs: Any) -> Slice:
    """A stretch of the load, a moment after consoles were opened or closed."""
    time.sleep(SETTLE_SECONDS)
    before = pairs.value, *used_seconds(full), time.perf_counter()
    time.sleep(STRETCH_SECONDS)
    after = pairs.value, *used_seconds(full), time.perf_counter()
    count, cpu, waited, taken = (b - a for a, b in zip(before, after, strict=True))
    return Slice(count / taken, cpu / max(1, count), waited / taken)


def used_seconds(full: FullConsole) -> tuple[float, float]:
    """The CPU of the controller so far, and how long its event loop's thread waited for a core."""
    process = full.several.processes[0]
    assert process
    threads = [
        [int(word) / 1e9 for word in (each / "schedstat").read_text().split()[:2]]
        for each in Path(f"/proc/{process.pid}/task").iterdir()
    ]
    first = (Path("/proc") / str(process.pid) / "schedstat").read_text().split()
    return sum(ran for ran, _ in threads), int(first[1]) / 1e9


async def event_seconds(full: FullConsole) -> list[float]:
    """How long after a change was answered the stream of a node's page has it."""
    person, node = full.people[0], full.nodes[7]
    address, dice = person.stream_of(f"/node?name={node}"), random.Random(1)
    taken: list[float] = []
    async with (
        httpx.AsyncClient(base_url=full.base, cookies=person.cookies, timeout=60) as browser,
        httpx.AsyncClient(base_url=full.base, timeout=60) as rest,
        browser.stream("GET", address) as answer,
    ):
        events = _events(answer)
        await asyncio.sleep(2)
        for number in range(EVENTS):
            drains = number % 2 == 0
            await asyncio.sleep(dice.uniform(0.0, 1.5))
            begin = time.perf_counter()
            path = f"/v1/nodes/{node}/drain"
            done = await (rest.put(path) if drains else rest.delete(path))
            assert done.status_code == 200, done.text
            async for event in events:
                if "Return to the pool" in event if drains else "Drain" in event:
                    break
            taken.append(time.perf_counter() - begin)
    return taken


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    text = ""
    async for piece in answer.aiter_text():
        text += piece
        while "\n\n" in text:
            event, _, text = text.partition("\n\n")
            yield event


def event_figures(full: FullConsole) -> list[Figure]:
    """A change on the screen beside a hundred consoles."""
    consoles = Consoles(full)
    try:
        with consoles.open():
            taken = asyncio.run(event_seconds(full))
    finally:
        consoles.close()
    print(f"events: median {statistics.median(taken):.2f} s, worst {max(taken):.2f}",
          file=sys.stderr)  # fmt: skip
    return [Figure("console_event_s", max(taken), "s", limit=MOST_EVENT_SECONDS)]


PARTS = {"pages": page_figures, "events": event_figures, "grants": grant_figures}


def console_figures(wanted: Sequence[str] = ()) -> list[Figure]:
    """The console's pages, events and cost, with 1,000 nodes and 50,000 vGPUs."""
    with scratch() as folder:
        full = FullConsole(folder)
        try:
            return [each for name in wanted or PARTS for each in PARTS[name](full)]
        finally:
            full.close()


def main() -> int:
    """Measures what is named, or everything."""
    run = Run("python tests/bench/console_load.py")
    publish("bench", console_figures(sys.argv[1:]), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
