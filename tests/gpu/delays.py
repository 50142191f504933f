# SPDX-License-Identifier: Apache-2.0
"""Batch-1 inference and generation over long and narrow networks, natively beside them.

    python3 tests/gpu/delays.py [--rounds 5] [--seconds 1] [--generations 1] [NAME ...]

A network is delaying_network.cc before a data port: half of the round trip in each direction. The
native run has none, as its GPU is here. The programs, one natively and one over each network, are
started and warm before any of them measures. Then they take turns of a second (turns.py), each
network's between two native ones, which its rate is held against; a program that waits has nothing
to do. Each network has a server of its own: to its arbiter the session there is alone. Another
generation begins with fresh processes.

Prints rates, ratios, and where a program's round trips belong: start, setting up, a step. Figures
are in build/measurements/delays.jsonl, and decide nothing. Takes about two and a half minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from run import Server, built, find_driver, native_environment
from run_workloads import torch_version
from tenants import Tenant, TenantFailed, Tenants, undisturbed
from turns import of_neighbours, order, take_turns

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "dev"), str(HERE.parent / "harness")]

from delaying_network import DelayingNetwork  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402

Line = dict[str, Any]


@dataclass(frozen=True)
class Network:
    """A way to a server's data port."""

    trip_us: float
    gbit_s: float  #: 0: as fast as this host is
    address: str
    http_port: int  #: whose tickets name that address
    data_port: int


NATIVE = "native"
NETWORKS = {
    "loopback": Network(0, 0, "127.0.0.1", 19123, 19200),
    "delay100": Network(100, 25, "127.0.0.5", 19125, 19201),
    "delay250": Network(250, 10, "127.0.0.6", 19126, 19202),
}
#: Of the port at which a server gives tickets without a network.
STRAIGHT = 100
NAMES = ("resnet50_infer_sent", "gpt2_generate")
FIGURES = {"resnet50_infer_sent": "infer", "gpt2_generate": "generate"}
#: What is wanted of native.
WANTED = {
    "delay100_infer": 1.15,
    "delay250_infer": 1.05,
    "delay100_generate": 1.05,
    "delay250_generate": 0.95,
}
#: What is not measured of a turn, at least a step: caches and threads come back to their work.
LEAD_SECONDS = 0.1


@dataclass
class Measured:
    """What a workload's turns gave, in their order."""

    lines: dict[str, list[Line]] = field(default_factory=dict)  #: by who had the turn
    beside: dict[str, list[float]] = field(default_factory=dict)  #: native rates, by network
    pairs: dict[str, list[float]] = field(default_factory=dict)  #: ratios, by network

    def add(self, names: Sequence[str], lines: Sequence[Line]) -> None:
        """A round."""
        for name, line in zip(names, lines, strict=True):
            self.lines.setdefault(name, []).append(line)
        rates = [line["rate"] for line in lines]
        for name, native in of_neighbours(names, rates).items():
            self.beside.setdefault(name, []).append(native)
            self.pairs.setdefault(name, []).append(rates[names.index(name)] / native)

    def rates(self, name: str) -> list[float]:
        """Of one's turns."""
        return [line["rate"] for line in self.lines[name]]


def environments(servers: Mapping[str, Server]) -> dict[str, dict[str, str]]:
    """Of a native program, and of one over each network."""
    found = {NATIVE: native_environment()}
    for name, server in servers.items():
        found[name] = server.preloading("tcp", NETWORKS[name].http_port)
    return found


def serve(stack: ExitStack, driver: str, folder: Path) -> dict[str, Server]:
    """A server for each network, and the network before it."""
    servers = {}
    for name, network in NETWORKS.items():
        own = folder / name
        own.mkdir()
        own.chmod(0o755)
        options = ["--data-port", str(network.data_port)]
        options += ["--way", f"{network.http_port}={network.address}"]
        straight = network.http_port + STRAIGHT
        servers[name] = Server(driver, own, options=options, http_port=straight)
        stack.callback(servers[name].close)
        if network.trip_us:
            delays = (network.trip_us / 2, network.gbit_s)
            program = built("delaying_network")
            at = (network.address, network.data_port)
            stack.enter_context(DelayingNetwork(program, *at, *delays))
    return servers


def start(
    tenants: Tenants, environments: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> dict[str, Tenant]:
    """All programs at once, warm; raises TenantFailed."""
    command = [sys.executable, str(HERE / "workloads.py"), *names, "--when-told"]
    started = {who: tenants.start(who, command, given) for who, given in environments.items()}
    tenants.wait_ready()
    with undisturbed(show=True):  # nobody is told anything, so nobody should do anything
        time.sleep(1)
    return started


def records(measured: Mapping[str, Measured], rounds: int) -> list[Measurement]:
    """Prints the tables."""
    run = Run("python3 tests/gpu/delays.py", rounds=rounds, gpu=True, software=torch_version())
    found = []
    print(f"\nafter {rounds} rounds\n{'':22}{'network':10}{'native':>9}{'ours':>9}{'ratio':>7}")
    for name, of in measured.items():
        for network in NETWORKS:
            ours, native, pairs = of.rates(network), of.beside[network], of.pairs[network]
            print(
                f"{name:22}{network:10}{median(native):9.1f}{median(ours):9.1f}{median(pairs):7.2f}"
                f"  {min(pairs):.2f}-{max(pairs):.2f}"
            )
            figure = f"{network}_{FIGURES.get(name, name)}"
            wanted = WANTED.get(figure)
            found.append(
                run.record(
                    figure,
                    median(ours),
                    of.lines[NATIVE][0]["unit"],
                    channel="tcp",
                    floor=median(native),
                    floor_of="native, without a network",
                    limit=wanted and wanted * median(native),
                    values=ours,
                    pairs=pairs,
                )
            )
    print(f"\nround trips{'':22}{'start':>8}{'set-up':>8}{'step':>8}")
    for name, of in measured.items():
        line = of.lines["loopback"][-1]
        trips = {
            "start": line["start_trips"],
            "set_up": line["set_up_trips"],
            "step": line["round_trips"],
        }
        print(f"{name:33}" + "".join(f"{count or 0:8.1f}" for count in trips.values()))
        for phase, count in trips.items():
            if count is not None:
                figure = f"{name}_trips_{phase}"
                found.append(run.record(figure, count, "1", channel="tcp", better="lower"))
    sys.stdout.flush()
    return found


def measure(environments: Mapping[str, Mapping[str, str]], options: argparse.Namespace) -> Path:
    """All generations; where the figures are. Raises TenantFailed."""
    measured = {name: Measured() for name in options.names}
    done = 0
    for _ in range(options.generations):
        with Tenants() as tenants:
            began = time.monotonic()
            programs = start(tenants, environments, options.names)
            print(f"{len(programs)} programs are warm after {time.monotonic() - began:.0f} s")
            for _ in range(options.rounds):
                names = order(NATIVE, list(NETWORKS), done)
                for name, of in measured.items():
                    task = {"name": name, "lead": LEAD_SECONDS, "seconds": options.seconds}
                    of.add(names, take_turns(programs, names, task))
                done += 1
                path = write_measured("delays", records(measured, done))
    return path


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Workloads over long networks.")
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=5, help="of each generation")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--generations", type=int, default=1, help="sets of processes")
    options = parser.parse_args()
    driver = find_driver()
    if not driver:
        print("there is no GPU: nothing is measured")
        return 0
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-delays-")))
        folder.chmod(0o755)
        try:
            path = measure(environments(serve(stack, driver, folder)), options)
        except TenantFailed as error:
            raise SystemExit(str(error)) from None
    print(f"figures: {path}; all of it took {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
