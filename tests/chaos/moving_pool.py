# SPDX-License-Identifier: Apache-2.0
"""A host whose sessions move between its GPUs, by order and as a GPU is drained, and are looked at.

Used by test_memory.py. The GPUs are software GPUs that all processes share (SharedCard), with
contexts that leave them by the driver's checkpoint. Of each session the controller, its worker and
the file of the card have to say the same: it is booked on one GPU and has memory on no other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from control_plane import ControlPlane, wait_for

from tests.withstand.softgpu_card import SharedCard
from tests.withstand.suspended import start_subject

from .memory_clients import TRAINER, Work
from .memory_pool import GPUS, SWAP_MIB, MemoryPool, Say

MOVING_GPU_MIB, CONTEXT_MIB = 256, 8
SUSPEND = {"swap_mib": SWAP_MIB, "drain_seconds": 10, "movable": "on"}
ENVIRONMENT = {"SLUICE_SOFTGPU_COUNT": str(GPUS), "SLUICE_SOFTGPU_CHECKPOINT_MS": "30"}
#: So that there is room on the other GPU for what moves, most of the time.
SIZES_MIB = (24, 40, 64, 96)
MOST_TRAINED = 64
LOOKS = 3  # before something that does not fit is believed


def trained(plane: ControlPlane) -> list[int]:
    """What is left by each step of a training that nothing happens to."""
    subject = start_subject(plane, begun=False, program=TRAINER, SLUICE_GMEM="24")
    subject.ask("begin")
    left: list[int] = subject.ask("train", steps=MOST_TRAINED)["left"]
    subject.kill()
    wait_for(lambda: not plane.grants(), message="it to be gone")
    return left


class MovingPool(MemoryPool):
    """Programs on two GPUs, each of which is drained now and then."""

    gpu_mib = MOVING_GPU_MIB
    most_between_orders = 0.3
    orders: Mapping[str, int] = {
        "suspend": 4, "resume": 8, "move": 16, "drain": 2, "session": 2, "resize": 1, "end": 1,
    }  # fmt: skip

    def __init__(self, plane: ControlPlane, seed: int, say: Say, card: SharedCard) -> None:
        super().__init__(plane, seed, say, Work(SIZES_MIB, trained(plane)))
        self._card = card
        self._gpus = [gpu["id"] for gpu in plane.rest.get("/gpus").json()["gpus"]]
        self._drained = ""

    def order(self, verb: str, grant: str, dice: random.Random) -> None:
        """Moves and drains besides; never of both GPUs at once."""
        if verb == "move":
            there = dice.choice(("", "0", "1"))
            self.call("POST", f"/grants/{grant}/move", json={"gpu": there})
        elif verb == "drain" and not self._drained:
            self._drained = dice.choice(self._gpus)
            self._switch("drained")
            self._say(f"GPU {self._drained} is drained")
        elif verb == "drain":
            self.end_orders()
        else:
            super().order(verb, grant, dice)

    def _switch(self, to: str) -> bool:
        answer = self.call("PUT", f"/gpus/{self._drained}/switch", json={"to": to})
        return answer is not None and answer.is_success

    def end_orders(self) -> None:
        """Both GPUs take grants, sooner or later."""
        if self._drained and self._switch("pooled"):
            self._drained = ""

    def taken_by_gpu(self, workers: dict[int, list[str]]) -> dict[str, int]:
        """By the file of the card; each has memory on one GPU at most."""
        found: Counter[str] = Counter()
        for pid in workers:
            taken = [self._card.taken_mib(pid, device) for device in range(GPUS)]
            found.update({str(device): mib for device, mib in enumerate(taken)})
            if all(taken):
                self.excuses.violate(f"worker {pid} has {taken} MiB of the GPUs")
        return dict(found)

    def look(self) -> None:
        """Besides, who simply runs has his memory where he is booked, and the sums are right."""
        super().look()
        for left in reversed(range(LOOKS)):
            if said := self._compare():
                if not left:  # nobody came and went between two questions, so often
                    self.excuses.violate(said)
                continue
            return

    def _compare(self) -> str:
        """What the controller's grants, its GPUs and the card say that does not fit together."""
        before = self._grants()
        records = [record for record in self.plane.worker_records() if record["session"]]
        taken = [(str(r["session"]["grant_id"]), self._taken(r["pid"])) for r in records]
        booked = self.call("GET", "/gpus")
        after = self._grants()
        still = {
            each: grant
            for each, grant in after.items()
            if each in before and before[each]["generation"] == grant["generation"]
        }
        for grant_id, mib in taken:
            grant = still.get(grant_id)
            if grant is None or grant["suspension"]:
                continue
            places = {int(vgpu["gpu"][-2:], 16) for vgpu in grant["vgpus"]}
            if len(places) != 1 or any(mib[n] for n in range(GPUS) if n not in places):
                return f"a worker has {mib} MiB of the GPUs, and is booked so: {grant}"
            self.excuses.count("booked where it is")
        if still and booked and booked.is_success and len(still) == len(before) == len(after):
            return self._wrong_sums(still, booked.json()["gpus"])
        return ""

    def _taken(self, pid: int) -> list[int]:
        return [self._card.taken_mib(pid, device) for device in range(GPUS)]

    def _grants(self) -> dict[str, dict[str, Any]]:
        return {str(grant["id"]): grant for grant in self.live_grants()}

    def _wrong_sums(self, grants: dict[str, dict[str, Any]], gpus: list[dict[str, Any]]) -> str:
        """What is booked of each GPU is what grants have there, and their contexts at most."""
        memory: Counter[str] = Counter()
        contexts: Counter[str] = Counter()
        for grant in grants.values():
            for vgpu in grant["vgpus"]:
                memory[vgpu["gpu"]] += vgpu["memory_mib"]
                contexts[vgpu["gpu"]] += CONTEXT_MIB * max(1, len(grant["sessions"]))
        for gpu in gpus:
            least = memory[gpu["id"]]
            if not least <= gpu["granted_mib"] <= least + contexts[gpu["id"]]:
                return f"grants have {least} MiB there, and it is booked so: {gpu}; {grants}"
        self.excuses.count("sums compared")
        return ""
