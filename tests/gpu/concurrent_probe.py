# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's MPS does: daemons per user, SM limits, faults and kills, without Sluice.

    python3 tests/gpu/concurrent_probe.py    # as root

Each daemon is one user's, as a project's is; clients are processes that call the driver by ctypes.
docs/decisions/0005-sessions-that-run-at-once.md says what came out of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import neighbours
from neighbours import CORNER, WHOLE_CARD, Tenant, ref

FIRST_USER = 61001
MULTIPROCESSORS, MPS_ENABLED = 16, 133  # CUdevice_attribute
STRAY = b"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry stray() {
  .reg .u64 %d; .reg .u32 %r;
  mov.u64 %d, 4096; mov.u32 %r, 1;
  st.global.u32 [%d], %r;
  ret;
}
"""
CONTROL = "nvidia-cuda-mps-control"


def show(name: str, *said: object) -> None:
    """One line."""
    print(f"{name:52s} | " + " | ".join(str(s) for s in said), flush=True)


class Daemon:
    """A control daemon that only its user's processes may use."""

    def __init__(self, folder: Path, user: int) -> None:
        self.user, self.folder = user, folder / str(user)
        self.folder.mkdir()
        os.chown(self.folder, user, user)
        self.folder.chmod(0o700)
        self.environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folder),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folder),
        }
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [CONTROL, "-f"],
            env=self.environment,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("wb"),
            stderr=subprocess.STDOUT,
        )
        while self.say("get_server_list") is None and time.perf_counter() - began < 10:
            time.sleep(0.02)
        self.took = time.perf_counter() - began

    def say(self, command: str, user: int | None = None) -> str | None:
        """What the daemon answers; None: it does not."""
        try:
            done = subprocess.run(
                [CONTROL],
                check=False,
                input=command.encode() + b"\n",
                env=self.environment,
                user=self.user if user is None else user,
                capture_output=True,
                timeout=30,
            )
        except subprocess.TimeoutExpired:
            return "no answer in 30 s"
        if done.returncode:
            return None
        return (done.stdout + done.stderr).decode().strip()

    def client(self, task: dict[str, Any], user: int | None = None, **more: str) -> Any:
        """A process that does a task."""
        who = self.user if user is None else user
        environment = {**self.environment, **more}
        return subprocess.Popen(
            [sys.executable, __file__, "--be", json.dumps(task)],
            env=environment,
            user=who,
            group=who,
            extra_groups=[],
            stdout=subprocess.PIPE,
        )


def told(process: Any, seconds: float = 60) -> Any:
    """What it has printed last."""
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"hangs": True}
    return json.loads(text) if text else {"exit": process.returncode}


def be(task: dict[str, Any]) -> dict[str, Any]:
    """A client: pieces of work until its time is over or one fails."""
    began = time.perf_counter()
    try:
        tenant = Tenant()
    except SystemExit as error:
        return {"init": str(error), "after_s": round(time.perf_counter() - began, 2)}
    init = round(time.perf_counter() - began, 2)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    tenant.call("cuMemGetInfo_v2", ref(free), ref(total))
    said = {}
    for name, attribute in (("sms", MULTIPROCESSORS), ("mps", MPS_ENABLED)):
        value = ctypes.c_int(-1)
        tenant.call("cuDeviceGetAttribute", ref(value), attribute, 0)
        said[name] = value.value
    if task.get("only"):
        return said
    n = int(task["rate"] * task.get("us", 100))
    blocks = CORNER if task.get("corner") else task.get("blocks", WHOLE_CARD)
    gap, last, done, error = 0.0, time.perf_counter(), 0, ""
    end = time.time() + task["seconds"]
    try:
        if task.get("fault"):
            time.sleep(3)
            module, stray = ctypes.c_void_p(), ctypes.c_void_p()
            tenant.call("cuModuleLoadData", ref(module), STRAY)
            tenant.call("cuModuleGetFunction", ref(stray), module, b"stray")
            tenant.call("cuLaunchKernel", stray, 1, 1, 1, 1, 1, 1, 0, tenant.stream, None, None)
            tenant.wait()
        while time.time() < end:
            for _ in range(task.get("each", 4)):
                tenant.launch(n, blocks)
            tenant.wait()
            done += task.get("each", 4)
            now = time.perf_counter()
            gap, last = max(gap, now - last), now
    except SystemExit as failed:
        error = f"{failed} at {time.time() % 1000:.2f}"
    return {
        **said,
        "init_s": init,
        "done": done,
        "longest_s": round(gap, 3),
        "error": error,
        "ms_each": round((task["seconds"]) * 1e3 / max(1, done), 4),
    }


def rate_of(daemon: Daemon, percent: str, task: dict[str, Any]) -> float:
    """Pieces of work a second of a client with so many percent of the multiprocessors."""
    more = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent} if percent else {}
    return float(told(daemon.client(task, **more))["done"])


def main() -> None:
    """Everything, in one go."""
    for program in (CONTROL, "nvidia-cuda-mps-server"):
        show(program, shutil.which(program))
    rate = float(
        subprocess.run(
            [sys.executable, neighbours.__file__, "--calibrate"], stdout=subprocess.PIPE, check=True
        ).stdout
    )
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    folder.chmod(0o755)
    work = {"rate": rate, "us": 100, "seconds": 3}
    long = {"rate": rate, "us": 100, "seconds": 8}
    one = Daemon(folder, FIRST_USER)
    show("a daemon of a user", f"{one.took:.2f} s", one.process.poll())
    show("its first client", told(one.client(work)))
    show("its second", told(one.client(work)))
    show("servers", one.say("get_server_list"), one.say("get_default_active_thread_percentage"))
    show("asked by root", one.say("get_server_list", 0))
    show("a client that is another user", told(one.client(work, FIRST_USER + 7), 20))
    show("a client that is root", told(one.client(work, 0), 20))
    show("the first again", told(one.client(work)))
    whole = rate_of(one, "", work)
    for percent in ("50", "25", "12", "8", "5", "1"):
        show(f"limit {percent} %", round(rate_of(one, percent, work) / whole, 4))
    sms = {}
    for percent in range(2, 101, 2):
        more = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
        sms[percent] = told(one.client({"rate": rate, "only": 1}, **more))["sms"]
    show("multiprocessors by percent", sms)
    pair = [one.client(work, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=p) for p in ("25", "75")]
    show("25 and 75 together", [round(told(p)["done"] / whole, 3) for p in pair])
    small = {**work, "us": 20, "corner": 1, "each": 1}
    for tenants in (1, 8):
        both = []
        for mps in (False, True):
            more = {} if mps else {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
            running = [one.client(small, **more) for _ in range(tenants)]
            both.append(sum(told(p)["done"] for p in running))
        show(f"{tenants} small: driver, MPS", *both, round(both[1] / both[0], 2))
    other = Daemon(folder, FIRST_USER + 1)
    pair = [one.client(work), other.client(work)]
    show("two users' daemons on one GPU", [round(told(p)["done"] / whole, 3) for p in pair])
    outside = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    pair = [one.client(work), one.client(work, **outside)]
    show("one of MPS, one of none", [round(told(p)["done"] / whole, 3) for p in pair])

    def beside(name: str, task: dict[str, Any], act: Any) -> None:
        """What happens to a neighbour and a stranger when something happens to a client."""
        victim, neighbour, stranger = one.client(task), one.client(long), other.client(long)
        time.sleep(3.5)
        at = time.perf_counter()
        said = act(victim)
        took = round(time.perf_counter() - at, 2)
        show(name, f"took {took} s", said)
        show("   it", told(victim))
        show("   its neighbour", told(neighbour))
        show("   another user's", told(stranger))
        began = time.perf_counter()
        while "done" not in (got := told(one.client(work), 20)) or got["error"]:
            if time.perf_counter() - began > 60:
                break
        show("   a new one", got, f"after {time.perf_counter() - began - 3:.1f} s")
        show("   servers", one.say("get_server_list"))

    def server() -> str:
        return (one.say("get_server_list") or "").split()[0]

    slow = {"rate": rate, "us": 400_000, "each": 3, "seconds": 8}
    beside("killed with 1.2 s of work", slow, lambda p: p.kill())
    beside(
        "terminated, then killed",
        slow,
        lambda p: (one.say(f"terminate_client {server()} {p.pid}"), p.kill()),
    )
    show("clients", one.say(f"get_client_list {server()}"))
    show("ps", one.say("ps"))
    beside("a fault", {**long, "fault": 1}, lambda _: None)
    beside("its server killed", long, lambda _: os.kill(int(server()), 9))
    beside("its daemon killed", long, lambda _: one.process.kill())
    show("control.log", (one.folder / "out").read_text()[-1500:])
    other.say("quit")
    show("quit", other.process.wait(20))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be"]:
        print(json.dumps(be(json.loads(sys.argv[2]))))
    else:
        main()
