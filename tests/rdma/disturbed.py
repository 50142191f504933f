# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_sessions.py: a program at work whose network, or process, is disturbed.

Prints JSON: the CUresults of its work before and after, what the client said, and what was found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from holder import Holder

CHANGES = {
    "down": [["ip", "link", "set", "d0", "down"]],
    "removed": [["ip", "link", "delete", "d0"]],
    "nothing": [],
}
GONE_SECONDS = 60.0
DEVICE = Path("/sys/class/infiniband/rxe0")


def main() -> None:
    """What the first argument names."""
    name = sys.argv[1]
    if name in CHANGES:
        found = change(name, idle=sys.argv[2:] == ["idle"])
    else:
        found = {"killed": killed, "worker-killed": worker_killed, "flaps": flaps}[name]()
    print(json.dumps(found))


def change(name: str, *, idle: bool) -> dict[str, Any]:
    """The network changes; `idle`: the program does nothing until that is done."""
    holder = Holder(dict(os.environ))
    before = [holder.work(), holder.work()]
    changing = [subprocess.Popen(command) for command in CHANGES[name]]
    while changing and is_up():
        time.sleep(0.05)
    if idle:
        for one in changing:
            one.wait(GONE_SECONDS)
    after = [holder.work(), holder.work()]
    for one in changing:
        one.wait(GONE_SECONDS)
    return {
        "before": before,
        "after": after,
        "device": DEVICE.exists(),
        "workers": len(workers()),
        "said": holder.kill(),
    }


def flaps() -> dict[str, Any]:
    """The link goes down and comes back, while one program copies and another does nothing.

    How the channels of the two sessions are shown after each step, and what became of them.
    """
    settled({})  # sessions of programs that ended just now
    pipe = subprocess.PIPE
    program = [sys.executable, str(Path(__file__).with_name("copying.py"))]
    copying = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert copying.stdout
    ready = copying.stdout.readline()
    assert ready == "ready\n", ready + copying.communicate()[1]
    holder = Holder(dict(os.environ))
    shown = [settled({"rdma": 2})]
    worked = [holder.work()]
    for state, channel in (("down", "tcp"), ("up", "rdma")):
        subprocess.run(["ip", "link", "set", "d0", state], check=True)
        shown.append(settled({channel: 2}))
    worked.append(holder.work())
    copied, said = copying.communicate("", timeout=GONE_SECONDS)
    return {
        "shown": shown,
        "worked": worked,
        "copied": [int(word) for word in copied.split()],
        "copying_said": said,
        "holder_said": holder.kill(),
    }


def settled(wanted: dict[str, int]) -> dict[str, int]:
    """The channels that sessions are shown with: once they are as wanted, or a minute later."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        found = {channel: count for channel, count in shown_channels().items() if count}
        if found == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def shown_channels() -> dict[str, int]:
    """The server's sessions by the channels that they have now, from its metrics."""
    with urlopen(f"http://127.0.0.1:{os.environ['METRICS_PORT']}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'^sluice_server_sessions\{channel="(\w+)"\} (\d+)', text, re.MULTILINE)
    return {channel: int(count) for channel, count in found}


def is_up() -> bool:
    """Whether the device's port carries data."""
    try:
        return (DEVICE / "ports/1/state").read_text().startswith("4:")
    except OSError:
        return False


def killed() -> dict[str, Any]:
    """The program is killed, and its worker ends."""
    others = serving_workers()  # of programs that ended just now: a client may come back
    holder = Holder(dict(os.environ))
    before = holder.work()
    serving = [pid for pid in serving_workers() if pid not in others]
    assert len(serving) == 1, serving
    holder.kill()
    return {"before": before, "left": [pid for pid in serving if not ends(pid)]}


def worker_killed() -> dict[str, Any]:
    """Its worker is killed: an error, and no hang."""
    holder = Holder(dict(os.environ))
    before = holder.work()
    for pid in serving_workers():
        os.kill(pid, signal.SIGKILL)
    holder.say()
    return {"before": before, "after": holder.answer(90.0), "said": holder.kill()}


def serving_workers() -> list[int]:
    """Those that have an RDMA device open: sessions'."""
    found = []
    for pid in workers():
        if any("uverbs" in file for file in files_of(pid)):
            found.append(pid)
    return found


def files_of(pid: int) -> list[str]:
    """What a process has open; it may close some meanwhile, or end."""
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(link.readlink()))
    return found


def workers() -> list[int]:
    """All, those that wait for sessions among them."""
    shown = subprocess.run(["pidof", "sluice-worker"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in shown.stdout.split()]


def ends(pid: int) -> bool:
    """Whether it does within a minute."""
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    main()
