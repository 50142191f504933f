# SPDX-License-Identifier: Apache-2.0
"""Everything that a chaos run is made of, as real processes: controllers, etcd, racks, a network.

Used by test_chaos.py. A Cluster owns its processes and its network and ends both. What is done to
a process goes through `kill`, `start`, `pause`, `go_on`, `cut` and `join`, by its name:
controller0, etcd1, rack3.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from control_plane import PYTHON_PATH
from controllers import Controllers
from etcd_members import EtcdMembers

from . import network
from .jumping_clock import VARIABLE, set_clock

TESTS = Path(__file__).resolve().parents[1]
PROJECTS = ("vision", "speech")
NODES_IN_A_RACK = 5


class Cluster:
    """One pool; start() first."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        nodes: int,
        callers: int,
        controllers: int,
        node_timeout_seconds: float,
    ) -> None:
        self.folder = folder
        self.accounts = folder / "account"
        self.accounts.mkdir()
        self.network = network.make()
        self._seed = seed
        self._callers = callers
        self._clock = folder / "clock"
        set_clock(self._clock, 0.0)
        self.etcd: EtcdMembers | None = None
        store = {"kind": "sqlite"}
        if controllers > 1:
            places = [self.network.place(f"etcd{n}") for n in range(3)]
            self.etcd = EtcdMembers(folder / "etcd", 3, places=places)
            store = {"kind": "etcd", "endpoints": ",".join(self.etcd.endpoints)}
        path = os.pathsep.join((str(PYTHON_PATH), str(TESTS), str(TESTS / "harness")))
        self._environment = {**os.environ, "PYTHONPATH": path, VARIABLE: str(self._clock)}
        self.controllers = Controllers(
            folder,
            controllers,
            store,
            anew=True,
            pool={
                "node_timeout_seconds": node_timeout_seconds,
                "key_seconds": 5,
                "waiting_line_seconds": 1,
                "opening_seconds": 20,
                "events_kept": 10_000_000,
                "ended_grants_kept": 500,
            },
            auth={"required": "yes", "requests_per_second": 0},
            places=[self.network.place(f"controller{n}") for n in range(controllers)],
            program=("-m", "chaos.jumping_clock"),
            environment=self._environment,
        )
        names = [f"node-{n:02}" for n in range(nodes)]
        self.racks = {
            f"rack{n}": names[n * NODES_IN_A_RACK : (n + 1) * NODES_IN_A_RACK]
            for n in range((nodes + NODES_IN_A_RACK - 1) // NODES_IN_A_RACK)
        }
        self._rack_processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lives = dict.fromkeys(self.racks, 0)
        self._draining = False
        self.tenants: dict[str, str] = {}  # tokens by project

    @property
    def names(self) -> list[str]:
        """Every process."""
        etcd = [f"etcd{n}" for n in range(3)] if self.etcd else []
        controllers = [f"controller{n}" for n in range(len(self.controllers.processes))]
        return [*controllers, *etcd, *self.racks]

    @property
    def nodes(self) -> list[str]:
        """Every node."""
        return [node for nodes in self.racks.values() for node in nodes]

    def start(self) -> None:
        """Starts all, with a token for each node and each project."""
        if self.etcd:
            self.etcd.start()
        self.controllers.start()
        self.controllers.token = self.controllers.first_token()
        with httpx.Client(
            base_url=f"http://{self.controllers.rest[self.controllers.leader()]}/v1",
            headers={"Authorization": f"Bearer {self.controllers.token}"},
            timeout=30,
        ) as rest:

            def token(**body: str) -> str:
                answer = rest.post("/tokens", json=body)
                assert answer.status_code == 201, answer.text
                return str(answer.json()["secret"])

            for node in self.nodes:
                (self.folder / f"{node}.token").write_text(token(role="node", node=node))
            self.tenants = {p: token(role="tenant", project=p) for p in PROJECTS}
            for project, quota in {
                "default": {"may_preempt": True},
                "vision": {"may_preempt": True, "memory_mib": 120_000, "max_priority": 2},
                "speech": {"vgpus": 12, "max_priority": 2},
            }.items():
                assert rest.put(f"/quotas/{project}", json=quota).status_code == 200
        for name in self.racks:
            self.start_process(name)

    # what is done to a process

    def process(self, name: str) -> subprocess.Popen[bytes] | None:
        """Its process, if it runs."""
        if name in self.racks:
            return self._rack_processes.get(name)
        number = int(name[-1])
        if name.startswith("etcd"):
            assert self.etcd
            return self.etcd.processes[number]
        return self.controllers.processes[number]

    def start_process(self, name: str) -> None:
        """Starts one, anew or again."""
        if name.startswith("etcd"):
            assert self.etcd
            self.etcd.start_member(int(name[-1]))
        elif name.startswith("controller"):
            self.controllers.start_one(int(name[-1]))
        else:
            self._start_rack(name)

    def kill(self, name: str) -> None:
        """Kill -9."""
        if name in self.racks:
            process = self._rack_processes.pop(name)
            process.kill()
            process.wait()
        elif name.startswith("etcd"):
            assert self.etcd
            self.etcd.signal(int(name[-1]), signal.SIGKILL)
        else:
            self.controllers.signal(int(name[-1]), signal.SIGKILL)

    def send(self, name: str, what: signal.Signals) -> None:
        """A signal to one that runs."""
        if process := self.process(name):
            process.send_signal(what)

    def set_clock(self, wrong_by_seconds: float) -> None:
        """Moves every controller's wall clock."""
        set_clock(self._clock, wrong_by_seconds)

    def drain(self) -> None:
        """Processes on the nodes finish what they do and ask for nothing new."""
        self._draining = True
        for name in self.racks:
            self.send(name, signal.SIGUSR1)

    def busy_racks(self) -> list[str]:
        """Those whose processes have not all had their answers."""
        return [name for name in self.racks if not (self.folder / f"{name}.idle").exists()]

    def died(self) -> list[str]:
        """What has ended without being told to."""
        running = [(name, self.process(name)) for name in self.names]
        return [name for name, process in running if process and process.poll() is not None]

    def close(self) -> None:
        """Ends all."""
        for process in self._rack_processes.values():
            process.kill()
            process.wait()
        self.controllers.close()
        if self.etcd:
            self.etcd.close()
        self.network.close()

    def _start_rack(self, name: str) -> None:
        self._lives[name] += 1
        place = self.network.place(name)
        config = self.folder / f"{name}.json"
        config.write_text(
            json.dumps(
                {
                    "name": name,
                    "nodes": self.racks[name],
                    "targets": self.controllers.grpc,
                    "address": place.address,
                    "folder": str(self.folder),
                    "seed": self._seed,
                    "callers": self._callers,
                    "draining": self._draining,
                }
            )
        )
        # a drain before the rack can hear it is to wait there, and not to end it
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            with (self.folder / f"{name}.out").open("ab") as out:
                self._rack_processes[name] = subprocess.Popen(
                    [
                        *(*place.enter, sys.executable, "-m", "chaos.rack"),
                        *(str(config), str(self._lives[name])),
                    ],
                    stdout=out,
                    stderr=out,
                    env=self._environment,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
