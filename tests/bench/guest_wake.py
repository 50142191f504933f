# SPDX-License-Identifier: Apache-2.0
"""What a guest's call costs after a pause: over a region, with each kind of bell, over vsock.

    python tests/bench/guest_wake.py [--rounds 51] [--idle-ms 100]

Needs what `make test-rigs` needs, vhost-device-vsock included. A worker to which nothing came for a
while sleeps; a guest cannot wake it, and the doorbell process finds what the guest has written by
looking, seldom where it is quiet. The register of an ivshmem-doorbell device, or a vsock device
beside the region, tells it at once. The guests have no KVM: their numbers compare the ways, and are
no guest's of a real host.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import running, wait_for  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402

from sluice.hypervisor.request import NAMESPACE  # noqa: E402
from tests.rigs.kvm.rig import Guest, Rig  # noqa: E402
from tests.withstand.guests import BUNDLE, Fleet, serving  # noqa: E402

BACKEND = ROOT / "build/tools/bin/vhost-device-vsock"
SOURCE = Path(__file__).with_name("idle_call.c")
WAYS = {
    "region": "region-mib='64'",
    "region_with_doorbell": "region-mib='64' channel='ivshmem-doorbell'",
    "region_with_vsock": "region-mib='64' vsock='yes'",
    "vsock": "channel='vsock'",
}
AGAIN = "the same call right after it"


def boot(fleet: Fleet, name: str, request: str, program: Path) -> Guest:
    """A guest with that channel, and the program in it."""
    guest = fleet.rig.define_guest(name.replace("_", "-"), mem_mib=384, vcpus=1)
    fleet.adopt(guest)
    request = f"<vgpu memory-mib='64' compute='10' {request}/>"
    fleet.virsh(
        *("metadata", guest.name, NAMESPACE, "--config", "--key", "sluice", "--set", request)
    )
    wanted = "shmem" if "region" in request else "vhost-user-vsock"
    wait_for(lambda: wanted in guest.domain.XMLDesc(2), 20, "the device")
    if "ivshmem-doorbell" in request:
        wait_for((fleet.plane.folder / "run/ivshmem" / guest.uuid / "server").exists, 20, "it")
    if "vsock" in request:
        sockets = fleet.plane.folder / "run" / "vsock" / guest.uuid / "device"
        wait_for(sockets.exists, 20, "its process")
    guest.start()
    guest.wait_ready()
    guest.run("modprobe vmw_vsock_virtio_transport")
    guest.put(program, "/root/idle_call")
    guest.put(BUNDLE, "/root/bundle.tar.gz")
    guest.check(
        "cd /root && tar xzf bundle.tar.gz && sluice-guest/install.sh --no-ldconfig", timeout=120
    )
    wait_for(lambda: guest.run("sluice check")[0] == 0, 60, f"{name}: sluice check")
    return guest


def measure(rounds: int, idle_ms: int) -> list[Figure]:
    """The figures, a guest for each way."""
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/run") as name,
        Rig("bench-wake") as rig,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        program = folder / "idle_call"
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        with running(folder, server=serving(rig, vsock_backend=BACKEND)) as plane:
            fleet = Fleet(rig, plane)
            try:
                guests = {way: boot(fleet, way, how, program) for way, how in WAYS.items()}
                for way, guest in guests.items():
                    words = f"sluice run /root/idle_call {rounds} {idle_ms}"
                    cold, warm = map(float, guest.check(words, timeout=300).split())
                    name = f"{way}_idle_call_us"
                    figures.append(Figure(name, cold, "us", floor=warm, floor_of=AGAIN))
            finally:
                fleet.close()
    return figures


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="A guest's call after a pause.")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--idle-ms", type=int, default=100)
    options = parser.parse_args()
    if os.geteuid() != 0 or not BUNDLE.exists() or not BACKEND.exists():
        print("skipped: this needs root, the guest bundle and vhost-device-vsock (make test-rigs)")
        return 0
    run = Run("python tests/bench/guest_wake.py", rounds=options.rounds)
    figures = measure(options.rounds, options.idle_ms)
    print(f"floor: {AGAIN}; load {os.getloadavg()[0]:.1f}")
    publish("guest_wake", figures, run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
