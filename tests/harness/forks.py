# SPDX-License-Identifier: Apache-2.0
"""Python processes of tests, forked off one that has imported what they run.

Importing is most of what a controller, a server or a static server does until it serves: a second
of a core each, some three hundred times in `make test`.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Protocol
from unittest import mock

HARNESS = Path(__file__).resolve().parent
PYTHON_PATH = HARNESS.parent.parent / "python"
PRELOADED = ["static_server", "sluice.controller.__main__", "sluice.server.__main__"]
OTHER_CODE = {"PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH"}
"""Variables that decide what a process loads: with others than ours it has to be started anew."""


class Service(Protocol):
    """What tests do with a process, in the words of subprocess.Popen."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


@functools.cache
def forks() -> ForkServerContext:
    """What processes are forked off, one for all of this process's."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    path = os.pathsep.join([str(HARNESS), str(PYTHON_PATH)])
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        multiprocessing.forkserver.ensure_running()
    return context


def be(environment: dict[str, str]) -> None:
    """Called in what was forked: these are its variables, and no others."""
    os.environ.clear()
    os.environ.update(environment)


def _serve(service: str, arguments: Sequence[str], out: Path, environment: dict[str, str]) -> None:
    be(environment)
    written = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = [f"sluice.{service}", *arguments]
    sys.exit(importlib.import_module(f"sluice.{service}.__main__").main())


class Forked:
    """A process that was forked off; a Service."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self._process.start()
        assert process.pid
        self.pid: int = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self._process.exitcode

    def send_signal(self, sig: int, /) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_service(
    service: str,
    arguments: Sequence[str],
    out: Path,
    environment: dict[str, str],
    *,
    anew: bool = False,
) -> Service:
    """`python -m sluice.SERVICE ARGUMENTS…`, which adds its output to `out`.

    With `anew` it is started as users start it, which it has to be where its code is another's.
    """
    if anew:
        with out.open("ab") as file:
            command = [sys.executable, "-m", f"sluice.{service}", *arguments]
            return subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    given = (service, list(arguments), out, environment)
    return Forked(forks().Process(target=_serve, args=given, daemon=True))
