# SPDX-License-Identifier: Apache-2.0
"""Programs whose memory is promised twice, suspended or moved, and what they may not live through.

Used by memory_pool.py and moving_pool.py. Each Client is a thread that begins programs with memory
on a GPU, checks all of it again and again, rests, and ends them, some of them by SIGKILL in the
middle of their work. A word that is wrong is a violation, and so is every end that nothing excuses
(Excuses). Where it knows the results of a training, its programs train, too.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from control_plane import ControlPlane

from tests.withstand.suspended import SUBJECT, Failed, Subject, start_subject

#: A call may wait for another one's whole stay, for an operator, and for a service to come back.
PATIENCE_SECONDS = 400.0
PIECE_MIB = 4
#: After a service is back, its peers find out.
BREAK_SECONDS = 20.0
MAY_END = re.compile(r"preempted|ended by the operator")
TRAINER = SUBJECT.with_name("moving_subject.py")


@dataclass(frozen=True)
class Work:
    """What programs ask for and do; `trained`: what is left by each step of a training."""

    sizes_mib: Sequence[int] = (24, 48, 88, 112)
    trained: Sequence[int] = ()

    @property
    def program(self) -> Path:
        """That does it."""
        return TRAINER if self.trained else SUBJECT


@dataclass
class Excuses:
    """What was done, so that what follows from it is no violation; and what was a violation."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    killed: set[int] = field(default_factory=set)  # clients of this host whose worker was killed
    killed_of_network: int = 0  # whose pids nobody here knows: so many may be lost
    broken: int = 0  # services that are away now
    last_break: float = float("-inf")
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def away(self, more: int) -> None:
        """A service goes (1) or has come back (-1)."""
        with self.lock:
            self.broken += more
            self.last_break = time.monotonic()

    def was_broken(self, since: float) -> bool:
        """Whether a service was away at some moment since then."""
        with self.lock:
            return bool(self.broken) or self.last_break + BREAK_SECONDS > since

    def violate(self, text: str) -> None:
        """Something that must never be."""
        with self.lock:
            self.violations.append(text)

    def count(self, what: str) -> None:
        """For the report at the end."""
        with self.lock:
            self.counts[what] += 1


class Client(threading.Thread):
    """Programs one after the other, until it is told to come to an end."""

    def __init__(
        self, plane: ControlPlane, name: str, seed: int, excuses: Excuses, work: Work
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._plane, self._excuses, self._work_is = plane, excuses, work
        self._steps: Counter[int] = Counter()  # of trainings, by pid
        self._dice = random.Random(f"{seed}-{name}")
        self._stopping = threading.Event()
        self._subjects: list[Subject] = []
        self._channel = ""
        self.doing = ""

    def stop(self) -> None:
        """No new work after what it does."""
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._live()
            except Exception as error:
                self._excuses.violate(f"{self.name} failed: {error!r}")
            finally:
                for subject in self._subjects:
                    subject.kill()
            self.doing = ""
            self._stopping.wait(self._dice.uniform(0.0, 1.0))

    def _live(self) -> None:
        dice = self._dice
        job = dice.random() < 0.15
        gmem = dice.choice(self._work_is.sizes_mib)
        wanted = {
            "SLUICE_GMEM": str(gmem),
            "SLUICE_RATIO": dice.choice(("5", "20", "45")),
            "SLUICE_PRIORITY": dice.choice(("0", "0", "0", "2")),
            "SLUICE_WAIT": "600",
        }
        if job:
            wanted["SLUICE_JOB"] = secrets.token_hex(16)
        elif dice.random() < 0.1:
            wanted |= {"SLUICE_PREEMPT": "1", "SLUICE_PRIORITY": "5"}
        self._channel = dice.choice(("shm", "shm", "tcp"))
        count = 2 if job else 1
        self._subjects = []
        for _ in range(count):
            subject = start_subject(
                self._plane, self._channel, begun=False, program=self._work_is.program, **wanted
            )
            self._subjects.append(subject)
            if not self._opens(subject):
                return
        each = (gmem - 16) // count // PIECE_MIB * PIECE_MIB
        mib = dice.randrange(PIECE_MIB, each + 1, PIECE_MIB)
        works = all(self._ask(s, "slab", mib=mib, piece_mib=PIECE_MIB) for s in self._subjects)
        for _ in range(dice.randrange(2, 12)):
            if not works or not all(self._work(subject) for subject in self._subjects):
                return
            self._stopping.wait(dice.choice((0.0, 0.0, 0.1, 1.2)))
        if dice.random() < 0.3:
            for subject in self._subjects:
                subject.tell("check")
            time.sleep(dice.uniform(0.0, 0.2))
            self._excuses.count("killed at work")
        else:
            self._excuses.count("ended by themselves")

    def _opens(self, subject: Subject) -> bool:
        began, self.doing = time.monotonic(), f"{subject.pid}: begin"
        try:
            subject.ask("begin", PATIENCE_SECONDS)
        except Failed as failed:
            said = f"{failed} {subject.errors()}"
            if not self._excuses.was_broken(began) and not self._is_excused(subject, said):
                self._excuses.violate(f"{self.name}: {subject.pid} was not let in: {said}")
            self._excuses.count("not let in")
            return False
        self._excuses.count("let in")
        return True

    def _work(self, subject: Subject) -> bool:
        if self._dice.random() < 0.25:
            return self._ask(subject, "copy_about", mib=PIECE_MIB, times=2)
        if self._dice.random() < 0.5 and self._steps[subject.pid] < len(self._work_is.trained):
            return self._ask(subject, "train", steps=1)
        return self._ask(subject, "check")

    def _ask(self, subject: Subject, do: str, **arguments: int) -> bool:
        self.doing = f"{subject.pid}: {do}"
        try:
            said = subject.ask(do, PATIENCE_SECONDS, **arguments)
        except Failed as failed:
            said_so = f"{failed} {subject.errors()}"
            if self._is_excused(subject, said_so):
                self._excuses.count("lost")
            else:
                self._excuses.violate(f"{self.name}: {subject.pid} failed in {do}: {said_so}")
            return False
        if said.get("wrong"):
            self._excuses.violate(f"{self.name}: {subject.pid}: {said['wrong']} words are wrong")
            return False
        if do == "train":
            expected = self._work_is.trained[self._steps[subject.pid]]
            self._steps[subject.pid] += 1
            if said["left"] != [expected]:
                self._excuses.violate(f"{self.name}: {subject.pid} trained {said}, not {expected}")
        self._excuses.count("right")
        return True

    def _is_excused(self, subject: Subject, said: str) -> bool:
        with self._excuses.lock:
            if subject.pid in self._excuses.killed:
                return True
            if self._channel == "tcp" and self._excuses.killed_of_network:
                self._excuses.killed_of_network -= 1
                return True
        return bool(MAY_END.search(said))
