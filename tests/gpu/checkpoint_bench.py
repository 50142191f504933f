# SPDX-License-Identifier: Apache-2.0
"""What the cases of checkpoint_probe.py stand on: processes that are told what to do, and rows.

A case's processes end with its Bench. A row is printed as soon as it is known, one JSON object a
line, so that what a case found out before it hung is not lost.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from checkpoint_calls import Answer, Card, Checkpointer

SUBJECT = Path(__file__).with_name("checkpoint_subject.py")
ANSWER_SECONDS = 40.0
FOREIGN = ("SLUICE_", "CUDA_MPS_", "CUDA_VISIBLE", "LD_AUDIT", "LD_PRELOAD")

Row = dict[str, Any]


class Failed(Exception):
    """A process that says that something failed, or says nothing."""


class Told:
    """A process that does what it is told by a line of JSON, and answers with one."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._unread = b""
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    @property
    def pid(self) -> int:
        """Its id."""
        return self.process.pid

    def tell(self, do: str, **arguments: Any) -> None:
        """Without waiting for the answer."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = ANSWER_SECONDS) -> Row:
        """Its next answer; raises Failed."""
        assert self.process.stdout
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Failed(f"no answer in {seconds:.0f} s")
                got = os.read(self.process.stdout.fileno(), 1 << 16)
                if not got:
                    raise Failed(f"it ended: {self._said()}")
                self._unread += got
        line, _, self._unread = self._unread.partition(b"\n")
        said: Row = json.loads(line)
        if "error" in said:
            raise Failed(said["error"])
        return said

    def ask(self, do: str, seconds: float = ANSWER_SECONDS, /, **arguments: Any) -> Row:
        """What it answers; raises Failed."""
        self.tell(do, **arguments)
        return self.answer(seconds)

    def has_answered(self) -> bool:
        """Whether an answer waits, or its end."""
        assert self.process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return b"\n" in self._unread or bool(selector.select(0))

    def errors(self) -> str:
        """The end of what it wrote on standard error so far."""
        file = self._errors.fileno()  # it has the place in it in common with us: no seeking
        begin = max(0, os.fstat(file).st_size - 800)
        return os.pread(file, 800, begin).decode(errors="replace")

    def _said(self) -> str:
        self.process.wait()
        return f"status {self.process.returncode}: {self.errors()}"

    def kill(self) -> None:
        """Nothing of it stays."""
        self.process.kill()
        self.process.wait()


class Bench:
    """One case: its processes, the first card, and its rows."""

    def __init__(self, case: str, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.card = Card()
        self.natively = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self.natively["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML
        self._running: list[Told] = []
        self.base = 0

    def __enter__(self) -> Bench:
        self.base = self.card.used_mib()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for told in self._running:
            told.kill()

    def told(self, command: list[str], environment: Mapping[str, str]) -> Told:
        """A process that ends with this."""
        self._running.append(Told(command, environment))
        return self._running[-1]

    def subject(self, visible: bool = True, **more: str) -> Told:
        """One that has begun; `visible`: it sees this card alone, as a worker does."""
        seen = {"CUDA_VISIBLE_DEVICES": self.card.uuid} if visible else {}
        told = self.told([sys.executable, str(SUBJECT)], {**self.natively, **seen, **more})
        told.ask("begin")
        return told

    def held_mib(self) -> int:
        """What is taken of the card since this began."""
        return self.card.used_mib() - self.base

    def row(self, name: str, result: str, **more: Any) -> None:
        """Prints a row: seconds end with _s, memory with _mib."""
        kept = {k: round(v, 4) if isinstance(v, float) else v for k, v in more.items()}
        print(json.dumps({"name": name, "result": result, **kept}), flush=True)

    def cycle(
        self,
        name: str,
        told: Told | None,
        *,
        pid: int = 0,
        check: str = "check",
        between: Callable[[], None] | None = None,
        gpus: dict[str, str] | None = None,
        **more: Any,
    ) -> bool:
        """Locks, checkpoints, restores, unlocks a process, then asks it whether all is right.

        `between` is called while it is off the card. One row; False where a call failed.
        """
        calls = Checkpointer(pid or (told.pid if told else 0))
        row: Row = {"held_mib": self.held_mib()}
        done: list[tuple[str, Answer]] = []

        def step(what: str, answer: Answer) -> bool:
            done.append((what, answer))
            row[f"{what}_s"] = answer.seconds
            return answer.good

        good = step("lock", calls.lock()) and step("checkpoint", calls.checkpoint())
        if good:
            row["left_mib"] = self.held_mib()
            if between:
                between()
            good = step("restore", calls.restore(gpus)) and step("unlock", calls.unlock())
        result = "holds up"
        if not good:
            result = f"{done[-1][0]}: {done[-1][1].status}, then {calls.state()}"
            if calls.state() == "locked":
                result += f", unlock {calls.unlock().status}"
        if told:
            try:
                said = told.ask(check, 15)
                row["after"] = "right" if not said.get("wrong") else f"{said['wrong']} words wrong"
            except Failed as error:
                row["after"] = str(error)[-200:]
        if good and row.get("after", "right") != "right":
            result = "restored, but wrong"
        self.row(name, result, **row, **more)
        return good


def nccl_library() -> str | None:
    """NVIDIA's NCCL, where PyTorch's wheel has put it."""
    for place in map(Path, filter(None, sys.path)):
        found = place / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if found.exists():
            return str(found)
    return None
