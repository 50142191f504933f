# SPDX-License-Identifier: Apache-2.0
"""How much longer an instance takes to boot with a vGPU flavor than with the same one without.

    python tests/bench/nova_boot.py [--rounds 10] [--vendordata]

Needs what `make test-openstack` needs (root; Nova, Placement, Glance, Neutron and Keystone in
build/openstack, the guest bundle) and starts all of it: a real Nova with our driver on libvirt,
guests without KVM, the pool with the software GPU. A round boots one instance of each flavor, in
turn the one first and the other, from the request until Nova says ACTIVE and until the first line
of the guest's own first process on the console; beside them stands what nova-compute says that its
driver took, which leaves out the waiting of APIs for a busy machine. Both flavors have the same
memory and processors. An instance, and what it held, is gone from all books before the next one is
asked for. With --vendordata Nova asks the controller what to tell each instance, as where instances
reach the pool by network; what that costs comes to both, and more to those without a vGPU, for
whose reservation the controller waits in vain.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import wait_for  # noqa: E402
from figure import Figure, Run, publish  # noqa: E402
from instances import delete  # noqa: E402

from tests.openstack.conftest import (  # noqa: E402
    Adapter,
    Pool,
    connect,
    make_image,
    remove_images,
    remove_instances,
    running_stack,
)
from tests.rigs.openstack.guest_image import BUNDLE  # noqa: E402

if TYPE_CHECKING:
    from tests.rigs.openstack.rig import OpenStackRig

#: Of the guest's first process (tests/rigs/openstack/guest_init.sh).
SIGN_OF_LIFE = "rig: up"
SIZE = (1, 1024, 25)
LIMIT_SECONDS = 180.0
WITH, WITHOUT = "with", "without"


class Boots:
    """Boots instances of two flavors, one at a time."""

    def __init__(self, rig: OpenStackRig, pool: Pool, cloud: Any) -> None:
        self._rig, self._pool, self._cloud = rig, pool, cloud
        self._image = make_image(rig, cloud, "rig-guest")
        plain = cloud.compute.create_flavor(name="rig.plain", ram=256, vcpus=1, disk=0)
        self._flavors = {WITH: pool.make_flavor(rig, "rig.vgpu", SIZE), WITHOUT: plain.id}

    def boot(self, kind: str) -> tuple[float, float, float]:
        """Seconds from the request until ACTIVE, until the guest's sign of life; the driver's."""
        begun = time.perf_counter()
        server = self._cloud.compute.create_server(
            name=kind, flavor_id=self._flavors[kind], image_id=self._image.id, networks="none"
        )
        console = self._rig.data / "instances" / server.id / "console.log"
        active = alive = 0.0
        while not (active and alive):
            if not active:
                now = self._cloud.compute.get_server(server)
                assert now.status != "ERROR", now.fault
                active = time.perf_counter() - begun if now.status == "ACTIVE" else 0.0
            if not alive and SIGN_OF_LIFE in _read(console):
                alive = time.perf_counter() - begun
            if time.perf_counter() - begun > LIMIT_SECONDS:
                raise TimeoutError(f"{kind}: active after {active} s; {_read(console)[-2000:]}")
            time.sleep(0.05)
        said = re.compile(rf"{server.id}\] Took ([0-9.]+) seconds to spawn")
        found = wait_for(lambda: said.search(self._rig.tail("nova-compute", 50_000)), 10, "its log")
        delete(self._cloud, server)
        self.settle()
        return active, alive, float(found[1])

    def settle(self) -> None:
        """Waits until nothing is held, and Placement and the pool agree."""
        check = ("check", "--config", str(self._pool.adapter_conf))

        def agree() -> bool:
            held = self._pool.rest.get("/reservations").json()["reservations"]
            if any(each["state"] == "held" for each in held):
                return False
            return self._pool.sluice_openstack(*check, rig=self._rig).returncode == 0

        wait_for(agree, LIMIT_SECONDS, "the books to agree")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def measure(rounds: int, vendordata: bool) -> list[Figure]:
    """The figures, on an OpenStack that is started for them."""
    took: dict[str, list[tuple[float, float, float]]] = {WITH: [], WITHOUT: []}
    with running_stack(vendordata=vendordata) as (rig, pool):
        cloud = connect(rig)
        remove_instances(cloud)
        adapter = Adapter(rig, pool)
        try:
            boots = Boots(rig, pool, cloud)
            boots.settle()
            for kind in (WITH, WITHOUT):  # the image gets to the host with the first
                boots.boot(kind)
            for number in range(rounds):
                order = (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH)
                for kind in order:
                    took[kind].append(boots.boot(kind))
                said = ", ".join(
                    "{} {:.2f} s, alive {:.2f} s, driver {:.2f} s".format(kind, *took[kind][-1])
                    for kind in (WITH, WITHOUT)
                )
                print(f"{said}; load {os.getloadavg()[0]:.1f}", flush=True)
        finally:
            remove_instances(cloud)
            remove_images(cloud)
            adapter.stop()
    return [
        figure
        for which, name in enumerate(("nova_active", "nova_alive", "nova_spawn"))
        for figure in _compare(name, *([each[which] for each in took[k]] for k in (WITH, WITHOUT)))
    ]


def _compare(name: str, with_vgpu: list[float], without: list[float]) -> list[Figure]:
    ours, plain = median(with_vgpu), median(without)
    pairs = [one - other for one, other in zip(with_vgpu, without, strict=True)]
    return [
        Figure(f"{name}_s", ours, "s", floor=plain, floor_of="the same flavor without a vGPU"),
        Figure(f"{name}_more_s", median(pairs), "s", limit=1, spread=(min(pairs), max(pairs))),
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Boots on Nova, with a vGPU and without.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--vendordata", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0 or not BUNDLE.exists():
        print("skipped: this needs root and the guest bundle (make guest-bundle)")
        return 0
    setting = "vendordata" if options.vendordata else None
    run = Run("python tests/bench/nova_boot.py", rounds=options.rounds, setting=setting)
    publish("nova_boot", measure(options.rounds, options.vendordata), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
