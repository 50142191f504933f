# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_sessions.py: random programs over RDMA whose connections are cut.

Two at a time, until SECONDS have passed. Each begins over RDMA; the TCP connection beside that ends
at a random moment of its work, and with it what the adapters have under way, whatever that is; the
next ones, over TCP, are cut as well. What programs read they hold against what they wrote.

    cut_programs.py ADDRESS PORT SECONDS

Prints JSON: how many programs there were, their operations, how many reads were wrong, how often
a connection over RDMA was cut and how often any, and what a program that failed said.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from breaking_network import BreakingNetwork

PROGRAM = Path(__file__).resolve().parents[1] / "withstand" / "programs" / "random_program.py"
BY_RDMA = "the session goes over RDMA"
AT_ONCE, WORK_SECONDS, LIMIT_SECONDS = 2, 3, 120
#: From one cut to the next, at most.
PAUSE_SECONDS = 1.5


class Cuts:
    """The network, whose connections all end at each cut."""

    def __init__(self, network: BreakingNetwork, seed: int) -> None:
        self.network = network
        self.random = random.Random(seed)
        self.over_rdma = self.all = 0
        self.opening = threading.Lock()  #: held while a session opens, which may not be cut
        self._lock = threading.Lock()

    def pause(self) -> float:
        """Seconds until the next."""
        with self._lock:
            return self.random.uniform(0, PAUSE_SECONDS)

    def cut(self, over_rdma: bool) -> None:
        """Now."""
        with self.opening, self._lock:
            self.over_rdma += over_rdma
            self.all += 1
            self.network.cut()


def run(seed: int, cuts: Cuts) -> tuple[list[int], str]:
    """A program's seeds, operations and wrong reads; or none, and what it said."""
    pipe = subprocess.PIPE
    command = [sys.executable, str(PROGRAM), str(seed), str(WORK_SECONDS)]
    lines: list[str] = []
    works = threading.Event()
    with cuts.opening:
        program = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

        def listen() -> None:
            assert program.stderr
            for line in program.stderr:
                lines.append(line)
                if BY_RDMA in line:
                    works.set()
            works.set()

        listener = threading.Thread(target=listen)
        listener.start()
        works.wait(LIMIT_SECONDS)
    over_rdma = True
    while True:
        try:
            program.wait(cuts.pause())
            break
        except subprocess.TimeoutExpired:
            cuts.cut(over_rdma)
            over_rdma = False
    listener.join()
    assert program.stdout
    said = program.stdout.read()
    if program.returncode or not any(BY_RDMA in line for line in lines):
        return [], f"exit status {program.returncode}\n{said}{''.join(lines)[-3000:]}"
    return [int(word) for word in said.split()], ""


def main() -> None:
    """One line of JSON."""
    address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    found: dict[str, Any] = {"programs": 0, "operations": 0, "wrong": 0, "failed": []}
    lock, until = threading.Lock(), time.monotonic() + seconds
    with BreakingNetwork(port, address) as network:
        cuts = Cuts(network, seed=16)

        def work(first: int) -> None:
            seed = first
            while time.monotonic() < until and not found["failed"]:
                numbers, failed = run(seed, cuts)
                with lock:
                    if failed:
                        found["failed"].append(f"seed {seed}: {failed}")
                        return
                    seeds, operations, wrong = numbers
                    found["programs"] += 1
                    found["operations"] += operations
                    found["wrong"] += wrong
                seed += seeds

        threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found |= {"over_rdma": cuts.over_rdma, "cuts": cuts.all}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
