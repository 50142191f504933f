# SPDX-License-Identifier: Apache-2.0
"""Python processes of tests, forked off one that has imported what they run.

Importing is most of what a controller, a server or a static server does until it serves, and of
what a command of `sluice` does at all: up to a second of a core each, some five hundred times in
`make test`.
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
import tempfile
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import NoReturn, Protocol
from unittest import mock

from sluice.cli import words

HARNESS = Path(__file__).resolve().parent
PYTHON_PATH = HARNESS.parent.parent / "python"
COMMANDS = {place.partition(":")[0] for place in (*words.COMMANDS.values(), *words.GROUPS.values())}
PRELOADED = [
    "static_server", "sluice.controller.__main__", "sluice.server.__main__",
    "sluice.cli.application", *sorted(COMMANDS),
    "pydantic.v1",  # which FastAPI imports with the first route
    "lasting_imports",
]  # fmt: skip
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


def _become(module: str, arguments: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """`python -m MODULE ARGUMENTS…`, with its standard streams in place."""
    be(environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = [module, *arguments]
    sys.exit(importlib.import_module(f"{module}.__main__").main())


def _serve(module: str, arguments: Sequence[str], out: Path, environment: dict[str, str]) -> None:
    written = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    _become(module, arguments, environment)


def _run(
    module: str, arguments: Sequence[str], streams: Sequence[str], folder: str,
    environment: dict[str, str],
) -> None:  # fmt: skip
    os.chdir(folder)
    for number, name in enumerate(streams):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)
    _become(module, arguments, environment)


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
    given = (f"sluice.{service}", list(arguments), out, environment)
    return Forked(forks().Process(target=_serve, args=given, daemon=True))


def run_command(
    *arguments: str | Path,
    environment: dict[str, str],
    module: str = "sluice.cli",
    stdin: str = "",
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS…` to its end, as subprocess.run with text=True; of our code."""
    words = [str(each) for each in arguments]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(stdin)
        for made in streams[1:]:
            made.touch()
        given = (module, words, [str(each) for each in streams], str(Path.cwd()), environment)
        process = Forked(forks().Process(target=_run, args=given, daemon=True))
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        out, err = (each.read_text() for each in streams[1:])
        return subprocess.CompletedProcess([module, *words], status, out, err)
