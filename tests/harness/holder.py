# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that a test holds: it works when it is told to, until it is ended or killed.

The process is cuda_holder.py, in the environment that a plane or a host without a GPU gives its
programs. Used wherever a session has to live through something.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cuda_holder


class Holder:
    """The process, which is ready when this is made."""

    def __init__(
        self,
        environment: dict[str, str],
        started_by: Callable[[list[str]], list[str]] = lambda command: command,
        program: Path = Path(cuda_holder.__file__),
    ) -> None:
        """`started_by`: what the command becomes, such as one in namespaces of its own.

        With `program` it is another one that is told in the same way.
        """
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            started_by([sys.executable, str(program)]),
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == "ready\n", line + self.process.communicate(timeout=60)[1]

    def say(self) -> None:
        """Have it allocate, set and synchronise; `answer` has the result."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def answer(self, seconds: float) -> int | None:
        """The CUresult of what it was told to do; None where none comes in that time."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        return int(self.process.stdout.readline())

    def work(self) -> int:
        """The CUresult of an allocation, a memset and a synchronisation."""
        self.say()
        result = self.answer(15)
        assert result is not None, "the program hangs"
        return result

    def kill(self) -> str:
        """Ends it at once; what it had said on standard error."""
        self.process.kill()
        return self.process.communicate()[1]
