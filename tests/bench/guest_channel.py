# SPDX-License-Identifier: Apache-2.0
"""How soon a running guest can use a channel that `virsh metadata` asked for.

    python tests/bench/guest_channel.py [--rounds 10]

Needs what `make test-rigs` needs (root, libvirt, QEMU, the guest bundle): a real guest without KVM,
a real server and controller, the software GPU. A round begins with `virsh metadata` and has two
ends. The first is the first call of a C program that waits in the guest for its channel
(first_call.c): `cuInit` of the client library, on a session of its own. It says when the guest saw
the device and when it could open it, too, so that the parts of the time are printed. The second is
`sluice check`, repeated until it is content; most of that is the start of Python under emulation,
which one such check in a guest that has its channel shows. The channel is taken out again, and the
guest has let it go, before the next round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import running, wait_for  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402

from tests.rigs.kvm.rig import Guest, Rig  # noqa: E402
from tests.withstand.guests import BUNDLE, Fleet, region_file, serving  # noqa: E402

USABLE = "until sluice check >/dev/null 2>&1; do :; done"
FIGURES = {"memory_mib": 64, "compute": 10, "region_mib": 64}
SOURCE = Path(__file__).with_name("first_call.c")
STAGES = ("virsh", "noticed", "seen", "open", "usable")
LIMIT_SECONDS = 120.0


class Round:
    """One time that a channel is asked for; the guest's console says how far it is."""

    def __init__(self, fleet: Fleet, guest: Guest, number: int) -> None:
        self._fleet, self._guest = fleet, guest
        self._mark = f"round-{number}"
        self._program = guest.spawn(
            f"LD_LIBRARY_PATH=/opt/sluice/lib /root/first_call {self._mark} >/dev/console 2>&1"
        )

    def run(self) -> dict[str, float]:
        """Seconds from the start of virsh to each stage; `noticed` is the server's first act."""
        begun = time.perf_counter()
        self._fleet.ask(self._guest, **FIGURES)
        took = {"virsh": time.perf_counter() - begun}
        while "usable" not in took:
            if "noticed" not in took and region_file(self._guest).exists():
                took["noticed"] = time.perf_counter() - begun
            said = self._guest.console.read_text(errors="replace")
            for stage in STAGES[2:]:
                if stage not in took and f"{self._mark} {stage}" in said:
                    took[stage] = time.perf_counter() - begun
            if time.perf_counter() - begun > LIMIT_SECONDS:
                finished = self._program.poll()
                raise TimeoutError(f"{took}; {finished}; {self._guest.console_tail()}")
            time.sleep(0.002)
        return took


def by_check(fleet: Fleet, guest: Guest) -> float:
    """Seconds until `sluice check` is content."""
    begun, ended = time.perf_counter(), 0.0

    def wait_in_guest() -> None:
        nonlocal ended
        guest.check(USABLE, timeout=LIMIT_SECONDS)
        ended = time.perf_counter()

    waiter = threading.Thread(target=wait_in_guest)
    fleet.ask(guest, **FIGURES)
    waiter.start()
    waiter.join()
    return ended - begun


def take_out(fleet: Fleet, guest: Guest) -> None:
    fleet.ask(guest)
    wait_for(lambda: not region_file(guest).exists(), 60, "the channel to be gone")


def prepare(guest: Guest, folder: Path) -> None:
    """Installs the bundle and the program."""
    program = folder / "first_call"
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    guest.put(program, "/root/first_call")
    guest.put(BUNDLE, "/root/bundle.tar.gz")
    guest.check(
        "cd /root && tar xzf bundle.tar.gz && sluice-guest/install.sh --no-ldconfig", timeout=120
    )


Rounds = tuple[list[dict[str, float]], list[float], float]


def rounds_of(fleet: Fleet, folder: Path, rounds: int) -> Rounds:
    """Each call's stages, the seconds to each `sluice check` that is content, and of one alone."""
    try:
        guest = fleet.boot("bench")
        prepare(guest, folder)
        calls, checks = [], []
        for number in range(rounds):
            took = Round(fleet, guest, number).run()
            print(", ".join(f"{stage} {took[stage]:.2f}" for stage in STAGES) + " s")
            calls.append(took)
            take_out(fleet, guest)
        for _ in range(rounds):
            checks.append(by_check(fleet, guest))
            take_out(fleet, guest)
        fleet.ask(guest, **FIGURES)
        guest.check(USABLE, timeout=LIMIT_SECONDS)
        begun = time.perf_counter()
        for _ in range(5):
            guest.check(USABLE)
        check = (time.perf_counter() - begun) / 5
        return calls, checks, check
    finally:
        fleet.close()


def measure(rounds: int) -> list[Figure]:
    """The figures, on a guest of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name, Rig("bench-guest") as rig:
        folder = Path(name)
        folder.chmod(0o755)
        with running(folder, server=serving(rig)) as plane:
            calls, checks, check = rounds_of(Fleet(rig, plane), folder, rounds)
    print(f"sluice check: {', '.join(f'{seconds:.2f}' for seconds in checks)} s")
    middles = {stage: median(took[stage] for took in calls) for stage in STAGES}
    middle = median(checks)
    return [
        Figure("virsh_itself_s", middles["virsh"], "s"),
        Figure("virsh_to_noticed_s", middles["noticed"], "s"),
        Figure("virsh_to_seen_s", middles["seen"], "s"),
        Figure("virsh_to_open_s", middles["open"], "s"),
        Figure("virsh_to_first_call_s", middles["usable"], "s", limit=2),
        Figure(
            "virsh_to_channel_s",
            middle,
            "s",
            floor=check,
            floor_of="sluice check in a guest that has its channel",
            limit=2,
        ),
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="From virsh metadata to a usable channel.")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if os.geteuid() != 0 or not BUNDLE.exists():
        print("skipped: this needs root and the guest bundle (make guest-bundle)")
        return 0
    run = Run("python tests/bench/guest_channel.py", rounds=options.rounds)
    publish("guest_channel", measure(options.rounds), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
