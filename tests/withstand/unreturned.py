# SPDX-License-Identifier: Apache-2.0
"""Suspended sessions that were to go on and could not, and wait for the next try: by what hinders.

For test_returns_tried_again.py. Each function of HINDRANCES suspends a program, puts something in
the way of its return, asks for that, and comes back once it was tried, or is known to wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane import wait_for

from .card_rig import CONTEXT_MIB, GPU_MIB, LEFT_MIB, MOVED_MIB, OpenRig, Rig
from .suspended import Failed, Subject, grant_of

LOOK_SECONDS = 0.2
#: Of a card's free memory: the contexts find room in it, and of the memory of three sessions one's.
ROOM_OF_A_CONTEXT = CONTEXT_MIB + 12  # also for a server that looks which GPUs there are
MORE_MIB = 32  # of a program's memory, so that it does not find room there
ROOM_OF_THREE_AND_ONE = 3 * CONTEXT_MIB + MOVED_MIB + MORE_MIB + ROOM_OF_A_CONTEXT
NO_PLACE = "its memory finds no place on the GPU"
ALL_MIB = 4096


@dataclass
class Unreturned:
    """A grant whose sessions' programs wait in a call; `clear` takes away what hinders it."""

    rig: Rig
    grant: str
    subjects: list[Subject]
    clear: Callable[[], object]
    is_checking: bool = False
    _answers: dict[int, dict[str, int]] = field(default_factory=dict)

    def begin_to_check(self) -> None:
        """Its programs look whether their memory is right."""
        for subject in () if self.is_checking else self.subjects:
            subject.tell("check")

    def waits(self) -> bool:
        """Whether one of them is not done yet; those of a job may have gone on for a moment."""
        return len(self.done()) < len(self.subjects)

    def done(self) -> list[dict[str, int]]:
        """What they have answered so far."""
        for subject in self.subjects:
            try:
                if subject.pid not in self._answers:
                    self._answers[subject.pid] = subject.answer(LOOK_SECONDS)
            except Failed as failed:
                if "no answer" not in str(failed):
                    raise
        return list(self._answers.values())

    def answers(self) -> list[dict[str, int]]:
        """Of all of them."""
        return [self._answers.get(each.pid) or each.answer() for each in self.subjects]

    def try_again(self) -> None:
        """At once, and not when it is time."""
        self.rig.plane.rest.post(f"/grants/{self.grant}/resume")  # 409: it is tried


def _resumes(rig: Rig, subject: Subject, why: str) -> str:
    """Has it tried; the grant's id."""
    grant = rig.order(subject, "resume")
    wait_for(
        lambda: any(why in text for text in rig.events(grant, "grant.not_resumed")),
        message=lambda: f"a return that fails: {rig.suspension(grant)}",
    )
    return grant


def begin_larger(rig: Rig, **more: str) -> Subject:
    """A program with more memory than a context takes."""
    subject = rig.begin(**{"SLUICE_GMEM": "96", **more})
    subject.ask("slab", mib=MORE_MIB, piece_mib=2)
    return subject


def by_the_pool(open_rig: OpenRig) -> Unreturned:
    """Others were granted its place."""
    rig = open_rig()
    subject = rig.begin()
    grant = rig.take_off(subject)
    whole = GPU_MIB - CONTEXT_MIB - CONTEXT_MIB - LEFT_MIB
    other = rig.begin(filled=False, SLUICE_GMEM=str(whole), SLUICE_WAIT="0")
    rig.order(subject, "resume")
    assert rig.suspension(grant)["resumes"]
    return Unreturned(rig, grant, [subject], other.kill)


def by_memory(open_rig: OpenRig) -> Unreturned:
    """Its context has stayed, and somebody beside the pool has the room of its memory."""
    rig = open_rig({"checkpoint_contexts": "off"})
    subject = begin_larger(rig)
    rig.stays(subject)
    hog = rig.hog(ROOM_OF_A_CONTEXT)
    return Unreturned(rig, _resumes(rig, subject, NO_PLACE), [subject], hog.kill)


def by_memory_behind_its_context(open_rig: OpenRig) -> Unreturned:
    """Its context comes back, finds that its memory does not, and leaves again."""
    rig = open_rig()
    subject = rig.begin()
    grant = rig.take_off(subject)
    hog = rig.hog(ROOM_OF_A_CONTEXT)
    _resumes(rig, subject, NO_PLACE)
    wait_for(lambda: rig.context(grant) == "off", message="its context to leave again")
    return Unreturned(rig, grant, [subject], hog.kill)


def by_what_nvml_says(open_rig: OpenRig) -> Unreturned:
    """Too little is free for its context to come back safely, and nothing is tried."""
    rig = open_rig(nvml=True)
    subject = rig.begin()
    grant = rig.take_off(subject)
    rig.says_free(CONTEXT_MIB // 2)
    _resumes(rig, subject, "somebody has more of the GPU than is booked")
    return Unreturned(rig, grant, [subject], lambda: rig.says_free(ALL_MIB))


def by_the_other_gpu(open_rig: OpenRig) -> Unreturned:
    """It was to move, and there is too little free there: it comes back where it was."""
    rig = open_rig({"movable": "on"}, nvml=True, SLUICE_SOFTGPU_COUNT="2")
    subject = rig.begin()
    grant = grant_of(rig.plane, subject.pid)["id"]
    rig.says_free(CONTEXT_MIB // 2, 1)
    moved = rig.plane.rest.post(f"/grants/{grant}/move", json={"gpu": "1"})
    assert moved.status_code == 202, moved.text
    wait_for(lambda: rig.events(grant, "grant.not_resumed"), message="it not to be let in there")
    rig.says_free(CONTEXT_MIB // 2, 0)
    return Unreturned(rig, grant, [subject], lambda: rig.says_free(ALL_MIB, 0))


def by_the_memory_of_a_part(open_rig: OpenRig) -> Unreturned:
    """One of a job's three comes back, two find no room, and all are suspended again."""
    rig = open_rig(SLUICE_SOFTGPU_MEMORY_MIB=str(2 * GPU_MIB))
    job = {"SLUICE_JOB": secrets.token_hex(16), "SLUICE_GMEM": "240"}
    subjects = [begin_larger(rig, **job) for _ in range(3)]
    grant = rig.take_off(subjects[0])
    hog = rig.hog(ROOM_OF_THREE_AND_ONE)
    _resumes(rig, subjects[0], NO_PLACE)
    return Unreturned(rig, grant, subjects, hog.kill)


def by_its_turn(open_rig: OpenRig) -> Unreturned:
    """Of a GPU that is promised twice: it comes in when the arbiter says so, and finds no room."""
    rig = open_rig({"memory_oversubscription": 2.0, "idle_seconds": 0.5})
    large = {"SLUICE_GMEM": "150", "SLUICE_RATIO": "40"}
    rig.begin(filled=False, **large)
    subject = rig.begin(filled=False, **large)
    subject.ask("slab", mib=64, piece_mib=4)
    rig.stays(subject)
    hog = rig.hog(ROOM_OF_A_CONTEXT)
    grant = rig.order(subject, "resume")
    wait_for(lambda: not rig.suspension(grant), message="it to be the arbiter's")
    subject.tell("check")
    wait_for(lambda: NO_PLACE in rig.plane.log("server"), message="it to find no place")
    return Unreturned(rig, grant, [subject], hog.kill, is_checking=True)


HINDRANCES: dict[str, Callable[[OpenRig], Unreturned]] = {
    "pool": by_the_pool,
    "memory": by_memory,
    "context": by_memory_behind_its_context,
    "nvml": by_what_nvml_says,
    "other-gpu": by_the_other_gpu,
    "part": by_the_memory_of_a_part,
    "turn": by_its_turn,
}
