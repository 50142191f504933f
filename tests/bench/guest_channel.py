# SPDX-License-Identifier: Apache-2.0
"""How soon a running guest can use a channel that `virsh metadata` asked for.

    python tests/bench/guest_channel.py [--rounds 10]

Needs what `make test-rigs` needs (root, libvirt, QEMU, the guest bundle): a real guest without KVM,
a real server and controller, the software GPU. Measured is from the start of `virsh metadata` until
`sluice check`, repeated in the guest, says that it can use its channel; beside it stands what one
such check takes in a guest that has its channel already, which is part of every figure. The channel
is taken out again, and the guest has let it go, before the next round.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "build" / "python"), str(ROOT / "tests" / "harness")]

from control_plane import ControlPlane, wait_for  # noqa: E402
from figure import Figure, as_lines, print_table  # noqa: E402

from tests.rigs.kvm.rig import Guest, Rig  # noqa: E402
from tests.withstand.conftest import doorbell_pid  # noqa: E402
from tests.withstand.guests import BUNDLE, Fleet, region_file  # noqa: E402

USABLE = "until sluice check >/dev/null 2>&1; do :; done"
FIGURES = {"memory_mib": 64, "compute": 10, "region_mib": 64}


def once(fleet: Fleet, guest: Guest) -> float:
    """Seconds of one round."""
    begun, ended = time.perf_counter(), 0.0

    def wait_in_guest() -> None:
        nonlocal ended
        guest.check(USABLE, timeout=60)
        ended = time.perf_counter()

    waiter = threading.Thread(target=wait_in_guest)
    fleet.ask(guest, **FIGURES)
    waiter.start()
    waiter.join()
    fleet.ask(guest)
    wait_for(lambda: not region_file(guest).exists(), 30, "the channel to be gone")
    return ended - begun


def measure(rounds: int) -> list[Figure]:
    """The figures, on a guest of its own."""
    with Rig("bench-guest") as rig, tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        Path(folder).chmod(0o755)
        plane = ControlPlane(
            Path(folder),
            server={"enable_kvm": "true", "libvirt_uri": rig.uri, "region_dir": "/dev/shm"},
        )
        fleet = Fleet(rig, plane)
        try:
            plane.start_controller()
            plane.start_server()
            guest = fleet.boot("bench")
            guest.put(BUNDLE, "/root/bundle.tar.gz")
            guest.check(
                "cd /root && tar xzf bundle.tar.gz && sluice-guest/install.sh --no-ldconfig",
                timeout=120,
            )
            took = [once(fleet, guest) for _ in range(rounds)]
            fleet.ask(guest, **FIGURES)
            guest.check(USABLE, timeout=60)
            begun = time.perf_counter()
            for _ in range(5):
                guest.check("sluice check >/dev/null")
            check = (time.perf_counter() - begun) / 5
        finally:
            fleet.close()
            doorbell = doorbell_pid(plane)
            plane.close()
            os.kill(doorbell, signal.SIGTERM)
    middle = median(took)
    print(f"rounds: {', '.join(f'{seconds:.2f}' for seconds in took)} s")
    wanted = "at most 2 s"
    return [Figure("virsh_to_channel_s", middle, "s", check, middle / check, wanted)]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="From virsh metadata to a usable channel.")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if os.geteuid() != 0 or not BUNDLE.exists():
        print("skipped: this needs root and the guest bundle (make guest-bundle)")
        return 0
    figures = measure(options.rounds)
    print_table(figures)
    print(as_lines(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
