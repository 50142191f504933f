# SPDX-License-Identifier: Apache-2.0
"""Runs commands in a guest through the QEMU guest agent.

Called by rig.py. Owns nothing: a command belongs to a session of its own in the guest, so that a
timeout or a kill takes all that it started.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from typing import Any

import libvirt
import libvirt_qemu

#: Under emulation glibc's `rep movsb` is far slower than its vector copy loops.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-ERMS",
}


@dataclass(frozen=True)
class Finished:
    """How a guest's command ended; ``code`` is minus the signal's number where one killed it."""

    code: int
    out: str
    err: str


def call(domain: libvirt.virDomain, command: str, timeout: int = 60, **arguments: Any) -> Any:
    """One guest agent command; libvirtError where the agent does not answer."""
    request: dict[str, Any] = {"execute": command}
    if arguments:
        request["arguments"] = {name.replace("_", "-"): value for name, value in arguments.items()}
    return json.loads(libvirt_qemu.qemuAgentCommand(domain, json.dumps(request), timeout, 0))[
        "return"
    ]


class GuestProcess:
    """A command running in the guest."""

    def __init__(
        self, domain: libvirt.virDomain, command: str, environment: dict[str, str]
    ) -> None:
        self._domain = domain
        self.command = command
        self.finished: Finished | None = None
        merged = {**ENVIRONMENT, **environment}
        started = call(
            domain,
            "guest-exec",
            path="/usr/bin/setsid",
            arg=["/bin/bash", "-c", command],
            env=[f"{name}={value}" for name, value in merged.items()],
            capture_output=True,
        )
        self.pid = int(started["pid"])  # setsid execs, so this is also the session's and group's id

    def poll(self) -> Finished | None:
        """The end of the command, or None while it runs."""
        if self.finished is None:
            status = call(self._domain, "guest-exec-status", pid=self.pid)
            if status["exited"]:
                self.finished = Finished(
                    code=int(status.get("exitcode", -int(status.get("signal", 0)))),
                    out=_text(status.get("out-data", "")),
                    err=_text(status.get("err-data", "")),
                )
        return self.finished

    def wait(self, timeout: float) -> Finished:
        """Waits for the end; after ``timeout`` seconds kills it and raises TimeoutError."""
        deadline = time.monotonic() + timeout
        pause = 0.01
        while (finished := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                finished = self._after_kill()
                raise TimeoutError(
                    f"in the guest, after {timeout} s: "
                    f"{self.command!r}\n{finished.out[-2000:]}{finished.err[-2000:]}"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return finished

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the command."""
        GuestProcess(self._domain, f"kill -{number} -- -{self.pid}", {}).wait(60)

    def kill(self) -> None:
        self.signal(9)

    def _after_kill(self) -> Finished:
        for _ in range(50):
            if (finished := self.poll()) is not None:
                return finished
            time.sleep(0.05)
        return Finished(-9, "", "")


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")
