# SPDX-License-Identifier: Apache-2.0
"""A guest with soft RoCE, in which a sluice-server with static grants serves RDMA.

One guest for all tests of this folder: it boots in seconds, and the server comes up in half a
minute without KVM, beside tests that do not need it yet (`bare_guest`); so do two more, one with
TLS on its data port and one without a device. Programs, servers and workers are all in it, over one
rxe device on a dummy interface; what a test takes away of the network it brings back
(`RdmaGuest.network_up`).
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
from pool_certificates import PoolCa
from static_grants import NODE

from tests.rigs.kvm.rig import CHECKOUT, Guest, Rig

NATIVE = CHECKOUT / "build" / "native"
HERE = Path(__file__).resolve().parent
#: What Debian's python3-pyverbs has, and nothing else of Debian's; of the same release of Python.
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
#: Who is told by its server's third port is to come by this address, where a network may stand
#: between.
WAY = "127.0.0.2"
CA = "/tmp/ca"
NETWORK = (
    "ip link add d0 mtu 9000 type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up"
    " && rdma link add rxe0 type rxe netdev d0"
)
START_SECONDS = 240


class RdmaGuest:
    """The guest with one of its servers, and what tests do there.

    `port`: where the server gives tickets; its metrics and the way are at the next two. `tls`: of
    its data port, by certificates in CA.
    """

    def __init__(
        self,
        guest: Guest,
        name: str = "server",
        port: int = 9123,
        data_port: int = 9960,
        tls: bool = False,
    ) -> None:
        self.guest = guest
        self.port, self.data_port, self.tls = port, data_port, tls
        self.socket, self.log = f"/tmp/{name}.sock", f"/tmp/{name}.logs"

    def python(
        self,
        script: str,
        *arguments: str,
        channel: str = "rdma",
        seconds: int = 300,
        way: bool = False,
    ) -> str:
        """What a script of this folder prints, run with the pool's client libraries.

        `way`: they come by WAY.
        """
        command = shlex.join([sys.executable, str(HERE / script), *arguments])
        there = {"SLUICE_CONTROLLER": f"http://127.0.0.1:{self.port + 2 * way}"}
        environment = {**self.environment(channel), **there}
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
            "SLUICE_CONTROLLER": f"http://127.0.0.1:{self.port}",
            **({"SLUICE_CA": f"{CA}/ca.crt"} if self.tls else {}),
            "SLUICE_SERVER_SOCKET": f"{self.socket}.relay" if relayed else "/none/here.sock",
            "SLUICE_CHANNEL": "shm" if relayed else channel,
            "METRICS_PORT": str(self.port + 1),
            "SERVER_LOG": f"{self.log}/server.log",
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

    def spawn_server(self) -> None:
        """It is not there yet."""
        command = [
            *(sys.executable, str(CHECKOUT / "tests/harness/static_server.py")),
            *("--socket", self.socket, "--log-dir", self.log, "--http-port", str(self.port)),
            *("--driver", "softgpu", "--memory-mib", "512", "--arena-mib", "64", "--rdma"),
            *("--relay", "--metrics-port", str(self.port + 1)),
            *("--data-port", str(self.data_port), "--way", f"{self.port + 2}={WAY}"),
            *(("--tls", CA) if self.tls else ()),
        ]
        self.server = self.guest.spawn(shlex.join(command), self.environment("auto"))

    def await_server(self) -> None:
        """Until it serves."""
        deadline = time.monotonic() + START_SECONDS
        while self.guest.run(f"test -e {self.socket}")[0]:
            ended = self.server.poll()
            assert ended is None, ended
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.5)

    def server_log(self) -> str:
        """What it has said so far."""
        return (self.guest.read(f"{self.log}/server.log") or b"").decode()

    def worker_log(self, about: str) -> str:
        """What workers have said of that, once there is something."""
        command = f"grep -rho {shlex.quote(about + '.*')} {self.log} || true"
        deadline = time.monotonic() + 30
        while not (said := self.guest.check(command)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return said

    def relay_log(self) -> str:
        """What the relays of the second server have said so far."""
        return self.guest.check(f"grep -rh relay {self.log}/beside || true")


@pytest.fixture(scope="session")
def bare_guest() -> Iterator[RdmaGuest]:
    """The one guest, whose server may be on its way yet."""
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
        here.spawn_server()
        yield here


@pytest.fixture(scope="session")
def guest(bare_guest: RdmaGuest) -> RdmaGuest:
    """The one guest, with its server."""
    bare_guest.await_server()
    return bare_guest


@pytest.fixture(scope="session")
def coming_tls_guest(guest: RdmaGuest, tmp_path_factory: pytest.TempPathFactory) -> RdmaGuest:
    """The same guest with another server, whose data port has TLS, and which is on its way yet.

    The device stays as it is until it is there, as a server looks for one when it starts.
    """
    folder = tmp_path_factory.mktemp("ca")
    PoolCa(folder).issue(NODE)
    guest.guest.put(folder, CA)
    other = RdmaGuest(guest.guest, "tls", 9133, 9970, tls=True)
    other.spawn_server()
    return other


@pytest.fixture
def tls_guest(coming_tls_guest: RdmaGuest) -> RdmaGuest:
    """As that, with its server."""
    coming_tls_guest.await_server()
    return coming_tls_guest


@pytest.fixture(scope="session")
def coming_poor_guest(guest: RdmaGuest) -> RdmaGuest:
    """The same guest, from now on without a device, with a server that is on its way yet."""
    guest.guest.check("ip link delete d0")
    other = RdmaGuest(guest.guest, "poor", 9143, 9980)
    other.spawn_server()
    return other


@pytest.fixture
def poor_guest(coming_poor_guest: RdmaGuest) -> RdmaGuest:
    """As that, with its server."""
    coming_poor_guest.await_server()
    return coming_poor_guest
