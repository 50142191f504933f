# SPDX-License-Identifier: Apache-2.0
"""A guest with soft RoCE, in which a sluice-server with static grants serves RDMA.

One guest for all tests of this folder: it boots in seconds, and the server comes up in half a
minute without KVM. Programs, server and workers are all in it, over one rxe device on a dummy
interface; what a test takes away of the network it brings back (`RdmaGuest.network_up`).
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network_program import built

from tests.rigs.kvm.rig import CHECKOUT, Guest, Rig

NATIVE = CHECKOUT / "build" / "native"
HERE = Path(__file__).resolve().parent
#: What Debian's python3-pyverbs has, and nothing else of Debian's; of the same release of Python.
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
SOCKET, LOG, PORT, METRICS_PORT = "/tmp/server.sock", "/tmp/log", 9123, 9124
#: What is told by that port is to come by another address, where a network may stand between.
WAY_PORT, WAY, DATA_PORT = 9125, "127.0.0.2", 9960
NETWORK = (
    "ip link add d0 mtu 9000 type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up"
    " && rdma link add rxe0 type rxe netdev d0"
)
START_SECONDS = 240


class RdmaGuest:
    """The guest, and what tests do in it."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def python(
        self,
        script: str,
        *arguments: str,
        channel: str = "rdma",
        seconds: int = 300,
        port: int = PORT,
    ) -> str:
        """What a script of this folder prints, run with the pool's client libraries."""
        command = shlex.join([sys.executable, str(HERE / script), *arguments])
        environment = {**self.environment(channel), "SLUICE_CONTROLLER": f"127.0.0.1:{port}"}
        return self.guest.check(command, seconds, environment)

    def environment(self, channel: str) -> dict[str, str]:
        """Of a program that goes over the network to the server in the guest.

        `relayed`: of one that has shared memory with a second server, which has no GPU, and whose
        relay goes over the network.
        """
        relayed = channel == "relayed"
        return {
            "LD_LIBRARY_PATH": str(NATIVE / "lib"),
            "PYTHONPATH": f"{CHECKOUT}/python:{CHECKOUT}/tests/harness:/tmp/pyverbs",
            "SLUICE_NATIVE_DIR": str(NATIVE),
            "SLUICE_CONTROLLER": f"127.0.0.1:{PORT}",
            "SLUICE_SERVER_SOCKET": f"{SOCKET}.relay" if relayed else "/none/here.sock",
            "SLUICE_CHANNEL": "shm" if relayed else channel,
            "METRICS_PORT": str(METRICS_PORT),
            "SLUICE_GMEM": "512",
            "SLUICE_DEBUG": "4",
        }

    def disturbed(self, *arguments: str, channel: str = "rdma", seconds: int = 120) -> Any:
        """What disturbed.py found."""
        return json.loads(self.python("disturbed.py", *arguments, channel=channel, seconds=seconds))

    def network_up(self) -> None:
        """The device, as it was at the beginning."""
        self.guest.check(
            f"test -e /sys/class/infiniband/rxe0 || {{ {NETWORK}; }}; ip link set d0 up"
        )

    def start_server(self) -> None:
        """A new one, without what an earlier one logged."""
        self.guest.check(f"rm -rf {SOCKET} {LOG}")
        command = [
            *(sys.executable, str(CHECKOUT / "tests/harness/static_server.py")),
            *("--socket", SOCKET, "--log-dir", LOG, "--http-port", str(PORT)),
            *("--driver", "softgpu", "--memory-mib", "512", "--arena-mib", "64", "--rdma"),
            *("--relay", "--metrics-port", str(METRICS_PORT)),
            *("--data-port", str(DATA_PORT), "--way", f"{WAY_PORT}={WAY}"),
        ]
        self.server = self.guest.spawn(shlex.join(command), self.environment("auto"))
        deadline = time.monotonic() + START_SECONDS
        while self.guest.run(f"test -e {SOCKET}")[0]:
            ended = self.server.poll()
            assert ended is None, ended
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.5)

    def stop_server(self) -> None:
        """It ends; sessions would go on."""
        self.server.signal(15)
        self.server.wait(60)

    def server_log(self) -> str:
        """What it has said so far."""
        return (self.guest.read(f"{LOG}/server.log") or b"").decode()

    def worker_log(self, about: str) -> str:
        """What workers have said of that, once there is something."""
        command = f"grep -rho {shlex.quote(about + '.*')} {LOG} || true"
        deadline = time.monotonic() + 30
        while not (said := self.guest.check(command)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return said

    def relay_log(self) -> str:
        """What the relays of the second server have said so far."""
        return self.guest.check(f"grep -rh relay {LOG}/beside || true")


@pytest.fixture(scope="session")
def guest() -> Iterator[RdmaGuest]:
    """The one guest."""
    if not (built() and (NATIVE / "bin" / "rdma_test").exists()):
        pytest.skip("the native part is not built with RDMA (make native, with libibverbs-dev)")
    if not PYVERBS.exists():
        pytest.skip(f"{PYVERBS} is not here (make test-rdma installs python3-pyverbs)")
    with Rig("rdma") as rig:
        made = rig.define_guest("rdma", mem_mib=3072, vcpus=2)
        made.start()
        made.wait_ready(120)
        made.check("modprobe -a crc32_generic rdma_rxe rdma_ucm ib_uverbs dummy")
        made.check(f"mkdir -p /tmp/pyverbs && ln -s {PYVERBS} /tmp/pyverbs/pyverbs")
        here = RdmaGuest(made)
        here.network_up()
        here.start_server()
        yield here
