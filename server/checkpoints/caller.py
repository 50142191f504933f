# SPDX-License-Identifier: Apache-2.0
"""Asks for the driver's checkpoint calls, by processes of their own (checkpoints.driver_process).

Made by server.service, used by sessions.contexts. A call blocks for as long as the driver does, and
may crash: so each is made by a helper that has nothing else to do at the time, is given so many
seconds, and is killed after them. What was asked for is then carried out all the same, or was never
heard: Lost says that nobody knows, and the state of the process tells. A helper that has done its
work waits for more: it is ended after a while, or at once where its GPUs are to be let go, or by
the end of this server, which its standard input shows. It promises that nothing here blocks, and
that no helper outlives the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.server.checkpoints import driver_process
from sluice.server.workers.process import WorkerRecord

log = logging.getLogger("sluice.server")

HELPER = str(Path(driver_process.__file__).resolve())
#: The driver's own start, on a host with many GPUs.
START_SECONDS = 30.0
IDLE_SECONDS = 60.0
ANSWER_SECONDS = 10.0  # for what only looks
MOST_AT_ONCE = 16  # helpers: who wants one more waits
MOST_LINE_BYTES = 1 << 16


class Unavailable(Exception):
    """This host's driver has no checkpoint, or its helper cannot start; the text says why."""


class Lost(Exception):
    """Nobody knows what came of a call; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call: a CUresult by name, "" for success, and the state from then on."""

    status: str
    state: str
    seconds: float

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self.status == driver_process.GONE


class Caller:
    """The helpers of one server."""

    def __init__(
        self, driver: str, nvml: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """`driver`: the path of its library; `nvml`: of the one that belongs to it."""
        self._command = [sys.executable, "-P", HELPER, "--driver", driver]
        if nvml:
            self._command += ["--nvml", str(nvml)]
        self._environment = dict(environment or {})
        self._idle: list[_Helper] = []
        self._timer: asyncio.TimerHandle | None = None
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def state(self, process: WorkerRecord) -> Answer:
        """How a process stands. Raises Unavailable, Lost."""
        return await self.call("state", process, ANSWER_SECONDS)

    async def call(
        self,
        what: str,
        process: WorkerRecord,
        seconds: float,
        timeout_ms: int = 0,
        gpus: Mapping[str, str] | None = None,
    ) -> Answer:
        """`lock` within timeout_ms, `checkpoint`, `restore`, `unlock`. Raises Unavailable, Lost.

        `gpus`: where what was on each GPU is to be restored; all that the process sees are named.
        """
        told = await self._ask(
            {
                "do": what,
                "pid": process.pid,
                "start_time": process.start_time,
                "timeout_ms": timeout_ms,
                **({"gpus": dict(gpus)} if gpus else {}),
            },
            seconds,
        )
        return Answer(str(told["status"]), str(told["state"]), float(told["seconds"]))

    async def free_mib(self, gpu_uuid: str) -> int | None:
        """What nobody has of a GPU; None: nobody tells. Raises Unavailable, Lost."""
        told = await self._ask({"do": "free", "gpu": gpu_uuid}, ANSWER_SECONDS)
        return None if told["free_mib"] is None else int(told["free_mib"])

    def let_go(self) -> None:
        """Ends the helpers that wait: each has the driver, and with it the GPUs, open."""
        idle, self._idle = self._idle, []
        for one in idle:
            one.end()
            self._await_end(one)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """The server stops."""
        self.let_go()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_SECONDS)

    async def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        async with self._free:
            return await self._ask_one(question, seconds)

    async def _ask_one(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._idle = [each for each in self._idle if each.is_alive]
        one: _Helper | None = self._idle.pop() if self._idle else await self._start()
        assert one
        try:
            told = await asyncio.wait_for(one.ask(question), seconds)
        except TimeoutError:
            raise Lost(f"`{question['do']}` has not returned within {seconds:g} s") from None
        except (OSError, ValueError, EOFError) as error:
            raise Lost(f"the process that asked for `{question['do']}` ended ({error})") from None
        else:
            self._idle.append(one)
            one = None
            self._set_timer()
            return told
        finally:
            if one:
                one.kill()
                self._await_end(one)

    async def _start(self) -> _Helper:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=self._environment,
                limit=MOST_LINE_BYTES,
            )
        except OSError as error:
            raise Unavailable(f"the process for it cannot be started: {error}") from None
        one = _Helper(process)
        why = ""
        try:
            told = await asyncio.wait_for(one.hear(), START_SECONDS)
            why = str(told.get("missing", ""))
        except TimeoutError:
            why = f"the driver did not begin within {START_SECONDS:g} s"
        except (OSError, ValueError, EOFError) as error:
            why = f"the process for it ended at its begin ({error})"
        except asyncio.CancelledError:
            one.kill()
            raise
        if why:
            one.kill()
            self._await_end(one)
            raise Unavailable(why)
        return one

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.let_go)

    def _await_end(self, one: _Helper) -> None:
        """One that hangs in the driver cannot be waited for, and is not."""
        task = asyncio.create_task(one.over())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Helper:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, as far as is known."""
        assert self._process.stdout
        return self._process.returncode is None and not self._process.stdout.at_eof()

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises OSError, ValueError, EOFError."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """Its next line; raises ValueError, EOFError."""
        assert self._process.stdout
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError("it said nothing")
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError("it said what is no object")
        return told

    def end(self) -> None:
        """It has nothing to do."""
        assert self._process.stdin
        self._process.stdin.close()

    def kill(self) -> None:
        """Whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def over(self) -> None:
        """Once it has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), START_SECONDS)
            return
        self.kill()
        log.warning("process %d hangs in the driver's checkpoint", self._process.pid)
        await self._process.wait()
