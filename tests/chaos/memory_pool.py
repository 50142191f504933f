# SPDX-License-Identifier: Apache-2.0
"""A host whose GPUs' memory is promised twice, an operator who suspends, and what happens to both.

Used by test_memory.py, and by moving_pool.py for what moves between its GPUs. Controller, server,
arbiter, workers and programs are real, the GPUs the software's. MemoryPool owns the programs, the
operator and who looks; `disturb` kills and stops what serves them. What is on the GPUs and in the
host's memory is read off the kernel: every allocation there is a file of memory of its own, which a
worker has open.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from control_plane import ControlPlane
from standing_processes import standing_processes

from .memory_clients import Client, Excuses, Work

GPUS, GPU_MIB, FACTOR, SWAP_MIB = 2, 128, 2.0, 224
SUSPEND = {
    "swap_mib": SWAP_MIB,
    "drain_seconds": 10,
    "memory_oversubscription": FACTOR,
    "idle_seconds": 0.5,
}
ENVIRONMENT = {
    "SLUICE_SOFTGPU_MEMORY_MIB": str(GPU_MIB),
    "SLUICE_SOFTGPU_COUNT": str(GPUS),
}
CLIENTS = 6
MEAN_GAP_SECONDS = 1.5
SETTLED_SECONDS = 300.0
#: What REST may say to an order about a grant: done, no such one, not as it is now, try later.
MAY_ANSWER = (202, 404, 409, 422, 429, 503)
ON_GPU, ON_HOST = "memfd:sluice-softgpu", "memfd:sluice-suspended"

Say = Callable[[str], None]


def memory_files(pid: int, name: str) -> dict[int, int]:
    """MiB of the memory files of a name that a process has open or mapped, by inode."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()).startswith(f"/{name} "):
                    about = descriptor.stat()
                    found[about.st_ino] = about.st_size >> 20
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split(None, 5)
            if len(words) == 6 and words[5].startswith(f"/{name} "):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                found.setdefault(int(words[4]), (end - begin) >> 20)
    return found


class MemoryPool:
    """Programs on a control plane, through everything that a seed has in store."""

    gpu_mib = GPU_MIB
    most_between_orders = 0.6  # seconds
    #: What the operator does, and how often.
    orders: Mapping[str, int] = {"suspend": 8, "resume": 8, "session": 3, "resize": 1, "end": 1}

    def __init__(self, plane: ControlPlane, seed: int, say: Say, work: Work | None = None) -> None:
        self.plane, self._seed, self._say = plane, seed, say
        self.excuses = Excuses()
        self.clients = [
            Client(plane, f"client{n}", seed, self.excuses, work or Work()) for n in range(CLIENTS)
        ]
        self._quiet = threading.Event()
        self._helpers = [
            threading.Thread(target=self._guarded, args=(each,), daemon=True)
            for each in (self._operate, self._watch)
        ]
        self.most_on_host = 0

    def start(self) -> None:
        """Programs come, and are suspended."""
        for thread in (*self.clients, *self._helpers):
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.excuses.violate(f"{work.__name__} failed: {error!r}")

    # the operator

    def call(self, method: str, path: str, **words: Any) -> httpx.Response | None:
        """The controller's answer; None where none came."""
        began = time.monotonic()
        try:
            answer = self.plane.rest.request(method, path, **words)
        except httpx.HTTPError as error:
            if not self.excuses.was_broken(began):
                self.excuses.violate(f"{method} {path} had no answer: {error!r}")
            return None
        if answer.status_code >= 300 and answer.status_code not in MAY_ANSWER:
            said = f"{method} {path} had {answer.status_code}: {answer.text[:300]}"
            self.excuses.violate(said)
        return answer

    def live_grants(self) -> list[dict[str, Any]]:
        """What the controller says is granted; nothing where it says nothing."""
        answer = self.call("GET", "/grants", params={"limit": 500})
        return answer.json()["grants"] if answer and answer.status_code == 200 else []

    def _operate(self) -> None:
        dice = random.Random(f"{self._seed}-operator")
        while not self._quiet.wait(dice.uniform(0.05, self.most_between_orders)):
            if grants := self.live_grants():
                [verb] = dice.choices([*self.orders], [*self.orders.values()])
                self.order(verb, dice.choice(grants)["id"], dice)

    def order(self, verb: str, grant: str, dice: random.Random) -> None:
        """One of `orders`, about a grant."""
        if verb == "session":
            answer = self.call("GET", "/sessions", params={"state": "live"})
            sessions = answer.json()["sessions"] if answer and answer.is_success else []
            if sessions:
                order = dice.choice(("suspend", "resume"))
                self.call("POST", f"/sessions/{dice.choice(sessions)['id']}/{order}")
        elif verb == "resize":
            size = {"compute_percent": dice.choice((5, 30))}
            self.call("PATCH", f"/grants/{grant}", json=size)
        elif verb == "end":
            self.call("DELETE", f"/grants/{grant}")
        else:
            self.call("POST", f"/grants/{grant}/{verb}")

    # who looks

    def _watch(self) -> None:
        while not self._quiet.wait(0.3):
            self.look()

    def workers(self) -> dict[int, list[str]]:
        """Pids of workers with a session, and the GPUs that each was given."""
        return {
            record["pid"]: [str(vgpu[0]) for vgpu in record["session"]["vgpus"]]
            for record in self.plane.worker_records()
            if record["session"]
        }

    def look(self) -> None:
        """No GPU has more than it has, and the host has given no more than it was to."""
        workers = self.workers()
        with self._standing_still(list(workers)):
            on_gpu = self.taken_by_gpu(workers)
            on_host: dict[int, int] = {}
            for pid in workers:
                on_host.update(memory_files(pid, ON_HOST))
        for gpu, mib in on_gpu.items():
            if mib > self.gpu_mib:
                self.excuses.violate(f"GPU {gpu} has {mib} of {self.gpu_mib} MiB taken")
        took = sum(on_host.values())
        self.most_on_host = max(self.most_on_host, took)
        if took > SWAP_MIB:
            self.excuses.violate(f"{took} MiB are in host memory, and swap_mib is {SWAP_MIB}")
        answer = self.call("GET", "/gpus")
        for gpu in answer.json()["gpus"] if answer and answer.is_success else ():
            if gpu["state"] == "away":
                continue  # how much host memory its node has it says when it is back
            if gpu["granted_mib"] > gpu["promisable_mib"] or gpu["granted_percent"] > 100:
                self.excuses.violate(f"more is promised than there is: {gpu}")

    def taken_by_gpu(self, workers: dict[int, list[str]]) -> dict[str, int]:
        """MiB that workers, which stand still, have of each GPU."""
        found: dict[str, dict[int, int]] = {}
        for pid, gpus in workers.items():
            for gpu in gpus[:1]:
                found.setdefault(gpu, {}).update(memory_files(pid, ON_GPU))
        return {gpu: sum(files.values()) for gpu, files in found.items()}

    @contextlib.contextmanager
    def _standing_still(self, pids: list[int]) -> Iterator[None]:
        """So that nothing moves while it is counted."""
        try:
            for pid in pids:
                _send(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                _send(pid, signal.SIGCONT)

    # what happens to it

    def disturb(self, seconds: float) -> None:
        """Kills and stops what serves the programs, for so long; all is there again then."""
        dice = random.Random(self._seed)
        until = time.monotonic() + seconds
        acts = (self._kill_server, self._kill_controller, self._kill_arbiter, self._kill_worker,
                self._stop)  # fmt: skip
        while time.monotonic() < until:
            time.sleep(dice.expovariate(1 / MEAN_GAP_SECONDS))
            dice.choices(acts, (3, 2, 3, 3, 3))[0](dice)

    def _kill_server(self, dice: random.Random) -> None:
        self._kill("server", dice, lambda: self.plane.start_server(joined=False))

    def _kill_controller(self, dice: random.Random) -> None:
        self._kill("controller", dice, self.plane.start_controller)

    def _kill(self, service: str, dice: random.Random, start: Callable[[], None]) -> None:
        pause = dice.choice((0.0, 0.3, 2.0))
        self._say(f"kill -9 of the {service}, for {pause} s")
        self.excuses.count(f"kill {service}")
        self.excuses.away(1)
        try:
            self.plane.stop(service, signal.SIGKILL)
            time.sleep(pause)
            start()
        finally:
            self.excuses.away(-1)

    def _kill_arbiter(self, dice: random.Random) -> None:
        del dice
        for pid in standing_processes(self.plane.folder / "run", "arbiter"):
            self._say("kill -9 of the arbiter")
            self.excuses.count("kill arbiter")
            _send(pid, signal.SIGKILL)

    def _kill_worker(self, dice: random.Random) -> None:
        records = [record for record in self.plane.worker_records() if record["session"]]
        if not records:
            return
        record = dice.choice(sorted(records, key=lambda each: str(each["id"])))
        self._say(f"kill -9 of the worker {record['pid']}")
        self.excuses.count("kill worker")
        with self.excuses.lock:
            pid = record["session"]["asker"]["pid"]
            self.excuses.killed.add(pid)
            self.excuses.killed_of_network += not pid
        _send(record["pid"], signal.SIGKILL)

    def _stop(self, dice: random.Random) -> None:
        assert self.plane.server
        pids = [self.plane.server.pid, *self.workers()]
        pids += standing_processes(self.plane.folder / "run", "arbiter")
        pid, seconds = dice.choice(pids), dice.uniform(0.1, 2.5)
        self._say(f"process {pid} is stopped for {seconds:.1f} s")
        self.excuses.count("stop")
        with self._standing_still([pid]):
            time.sleep(seconds)

    # the end

    def settle(self) -> None:
        """Whoever is suspended is resumed, everybody comes to an end, and nothing is left."""
        self._quiet.set()
        for thread in self._helpers:
            thread.join()
        self.end_orders()
        for client in self.clients:
            client.stop()
        deadline = time.monotonic() + SETTLED_SECONDS
        while any(client.is_alive() for client in self.clients):
            for grant in self.live_grants():
                if grant["suspension"] and not grant["suspension"]["resumes"]:
                    self.call("POST", f"/grants/{grant['id']}/resume")
            if time.monotonic() > deadline:
                doing = {c.name: c.doing for c in self.clients if c.is_alive()}
                self.excuses.violate(f"still at it: {doing}; granted: {self.live_grants()}")
                return
            time.sleep(0.3)
        while left := self.left():
            if time.monotonic() > deadline:
                self.excuses.violate(f"left behind: {left}")
                return
            time.sleep(0.2)

    def end_orders(self) -> None:
        """What the operator has begun and has to end."""

    def left(self) -> list[str]:
        """What is not as it was before anybody came."""
        found = [f"grant {grant}" for grant in self.live_grants()]
        found += [f"worker {pid}" for pid in self.plane.session_worker_pids()]
        assert self.plane.server
        for pid in (self.plane.server.pid, *self.plane.worker_pids()):
            found += [f"{m} MiB of host memory" for m in memory_files(pid, ON_HOST).values()]
        answer = self.call("GET", "/gpus")
        found += [
            f"GPU {gpu['id']} is booked with {gpu['granted_mib']} MiB, {gpu['granted_percent']} %"
            for gpu in (answer.json()["gpus"] if answer and answer.is_success else ())
            if gpu["granted_mib"] or gpu["granted_percent"]
        ]
        return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
