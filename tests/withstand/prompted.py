# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that does one thing at a time, when a test says so: programs/prompted.cu.

Used by every test of this folder that needs an application in a certain state: idle, in mid-kernel,
in a blocking call, polling. Prompted runs it on this host; guests.py runs it in a guest. Answers
are awaited with generous bounds, since no test is about speed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from control_plane import ControlPlane

from sluice.config.native_files import find_native

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "programs"
BUILT = CHECKOUT / "build" / "withstand-programs"
PROMPTED = BUILT / "prompted"
RANK = BUILT / "rank"
SCRIBBLE = BUILT / "scribble"
#: Rounds of the kernel `turn` that no test waits for.
ENDLESS = 1 << 40
PATIENCE = 120.0


def build_programs() -> None:
    """Compiles this folder's programs where they are older than their sources."""
    path = CHECKOUT / "tests" / "programs" / "build.py"
    spec = importlib.util.spec_from_file_location("cuda_program_build", path)
    assert spec
    assert spec.loader
    build: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = build
    spec.loader.exec_module(build)
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / ".lock").open("w") as lock:  # another run of the tests builds them, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        failures = build.build([SOURCES / "prompted.cu", SOURCES / "rank.cu"], BUILT)
        assert not failures, "\n".join(failures)
        source = SOURCES / "scribble.c"
        if not SCRIBBLE.exists() or SCRIBBLE.stat().st_mtime < source.stat().st_mtime:
            words = ["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", str(SCRIBBLE), str(source)]
            subprocess.run(words, check=True)


def client_environment(plane: ControlPlane, channel: str, **more: str) -> dict[str, str]:
    """Sluice's libraries and this control plane, as `sluice run` sets them."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
        "SLUICE_CHANNEL": channel,
        "SLUICE_SERVER_SOCKET": str(plane.socket_path),
        "SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}",
        "SLUICE_GMEM": "64",
        "SLUICE_RATIO": "10",
        **more,
    }


class Prompted:
    """The program on this host."""

    program = PROMPTED

    def __init__(self, plane: ControlPlane, channel: str = "shm", **more: str) -> None:
        self.process = subprocess.Popen(
            [str(self.program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=client_environment(plane, channel, **more),
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        """Prompts it, and does not wait."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def answer(self, seconds: float = PATIENCE) -> str:
        """Its next line; fails the test when none comes."""
        deadline = time.monotonic() + seconds
        assert self.process.stdout
        stream = self.process.stdout.fileno()
        while b"\n" not in self._unread:
            ready = _is_readable(stream, deadline - time.monotonic())
            assert ready, f"no answer within {seconds:g} s: the program hangs"
            part = os.read(stream, 65536)
            assert part, f"the program ended: {self.errors()}"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def ask(self, line: str, seconds: float = PATIENCE) -> str:
        """Prompts it and returns what it says."""
        self.say(line)
        return self.answer(seconds)

    def is_silent(self, seconds: float) -> bool:
        """Whether it says nothing for so long: it waits in a call, or polls."""
        if b"\n" in self._unread:
            return False
        assert self.process.stdout
        return not _is_readable(self.process.stdout.fileno(), seconds)

    def errors(self) -> str:
        """All that it wrote on standard error; waits for its end."""
        try:
            _, text = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, text = self.process.communicate()
        return text.decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def quit(self) -> None:
        """Lets it end by itself, with all its destructors; fails the test where it does not."""
        self.say("quit")
        _, text = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, text.decode(errors="replace")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Within so long. Not select(), which knows no more than 1,024 descriptors."""
    looked = select.poll()
    looked.register(descriptor, select.POLLIN)
    return bool(looked.poll(max(0.0, seconds) * 1000))


def is_cuda_error(line: str) -> bool:
    """Whether an answer is a CUDA error."""
    words = line.split()
    return len(words) == 4 and words[1] == "error" and int(words[2]) != 0
