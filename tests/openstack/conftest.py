# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack with a pool of ours beside it, for the tests marked `openstack`.

Started once. A rig that ran before (python -m tests.rigs.openstack.rig start) goes on afterwards,
which saves developers half a minute.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from control_plane import PYTHON_PATH, ControlPlane, wait_for
from standing_processes import end_standing_processes

CHECKOUT = Path(__file__).resolve().parents[2]

if TYPE_CHECKING:
    from instance_records import InstanceRecords

    from tests.rigs.openstack.rig import OpenStackRig

#: Without openstacksdk (the extra `openstack`) the other tests run all the same.
collect_ignore = (
    []
    if importlib.util.find_spec("openstack")
    else ["test_instances.py", "test_hosts.py", "test_page.py"]
)


class Pool(ControlPlane):
    """A controller and a server that follows the rig's libvirt."""

    def sluice_openstack(self, *words: str, rig: OpenStackRig) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "sluice.cli", "openstack", *words],
            env=self.environment(rig),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def make_flavor(self, rig: OpenStackRig, name: str, size: tuple[int, int, int]) -> str:
        """`sluice openstack flavor create`; the flavor's id."""
        count, memory_mib, compute = size
        ran = self.sluice_openstack(
            *("flavor", "create", name, "--count", str(count), "--memory-mib", str(memory_mib)),
            *("--compute", str(compute), "--ram", "256", "--vcpus", "1", "--disk", "0"),
            *("-o", "json", "--config", str(self.adapter_conf)),
            rig=rig,
        )
        assert ran.returncode == 0, ran.stderr
        return str(json.loads(ran.stdout)["id"])

    def environment(self, rig: OpenStackRig) -> dict[str, str]:
        return {**os.environ, **rig.credentials(), "PYTHONPATH": str(PYTHON_PATH)}

    @property
    def adapter_conf(self) -> Path:
        return self.folder / "openstack.conf"


class OtherHost:
    """A second compute host, with the Sluice server on it."""

    NAME = "compute2"

    def __init__(self, rig: OpenStackRig, pool: Pool) -> None:
        from tests.rigs.openstack.second_host import SecondHost

        self._rig = rig
        self._is_fenced = True  # an earlier run's tests may have left it so
        folder = rig.root / "pool2"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.host = SecondHost(rig, self.NAME, folder / "run" / "vms.sock")
        self.server = Pool(
            folder,
            server={
                "node_name": "node-b",
                "enable_kvm": "true",
                "libvirt_uri": self.host.libvirt.uri,
                "region_dir": self.host.libvirt.shm,
            },
            nova={"channel": "ivshmem-doorbell"},
            pool_of=pool,
        )

    def start(self) -> None:
        """Starts all of it, or lets it come back."""
        self.host.start()
        self.server.start_server()
        if self._is_fenced:
            # Nova refuses until nova-compute has seen to what was evacuated
            wait_for(lambda: self._declare("--up"), 120, "Nova to take the host back")
        self._is_fenced = False
        self.host.await_up()

    def die(self) -> None:
        """The plug is pulled out, and Nova is told, as the operator's fencing does."""
        if self.server.server:
            self.server.stop("server", signal.SIGKILL)
        for pid in self.server.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_standing_processes(self.server.folder / "run")
        self.host.kill()
        self._is_fenced = self._declare("--down")

    def _declare(self, word: str) -> bool:
        try:
            self._rig.openstack(
                *("--os-compute-api-version", "2.53", "compute", "service", "set"),
                *(word, self.NAME, "nova-compute"),
            )
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Ends what runs."""
        self.server.close()
        self.host.kill()


@contextlib.contextmanager
def running_stack(*, vendordata: bool = True) -> Iterator[tuple[OpenStackRig, Pool]]:
    """OpenStack with our driver, and the pool that it gives vGPUs of.

    With `vendordata` Nova asks the controller what to tell each instance.
    """
    from tests.rigs.openstack.rig import OpenStackRig, Settings

    rig = OpenStackRig()
    folder = rig.root / "pool"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pool = Pool(
        folder,
        server={
            "enable_kvm": "true",
            "libvirt_uri": rig.libvirt.uri,
            "region_dir": "/dev/shm",
        },
        pool={"node_timeout_seconds": 10},  # a host that is gone is given up
        openstack={
            "vendordata": "true",
            "users": "nova",
            "guest_address": "pool.example:9123",
            "reservation_wait_seconds": "10",  # however busy the machine is; Nova waits 30
        },
        environment=rig.credentials(),
    )
    pool.adapter_conf.write_text(
        f"[log]\nlog_dir = {folder}/log\n"
        f"[controller]\naddresses = 127.0.0.1:{pool.rest_port}\n"
        f"[openstack]\ntransport_url = {rig.transport_url}\nreconcile_seconds = 5\n"
    )
    rig.settings = Settings(
        compute_driver="sluice.LibvirtDriver",
        vendordata=f"{pool.url}/v1/vendordata" if vendordata else "",
        server_socket=str(folder / "run" / "vms.sock"),
        packages=[CHECKOUT / "nova_driver"],
    )
    ran = bool(rig.status())
    try:
        rig.start()  # before the controller, which asks Keystone
        if ran:
            rig.restart("nova-api", "nova-compute")
        pool.start_controller()
        pool.start_server()
        yield rig, pool
    finally:
        pool.close()
        if not ran:
            rig.stop()


@pytest.fixture(scope="session")
def stack() -> Iterator[tuple[OpenStackRig, Pool]]:
    with running_stack() as both:
        yield both


@pytest.fixture(scope="session")
def driver_installed() -> OpenStackRig:
    """Nova's environment with our driver in it; nothing runs for that."""
    from tests.rigs.openstack.rig import OpenStackRig, Settings

    found = OpenStackRig(settings=Settings(packages=[CHECKOUT / "nova_driver"]))
    found.install()
    return found


@pytest.fixture(scope="session")
def rig(stack: tuple[OpenStackRig, Pool]) -> OpenStackRig:
    return stack[0]


@pytest.fixture(scope="session")
def pool(stack: tuple[OpenStackRig, Pool]) -> Pool:
    return stack[1]


LISTENING = b"listening to Nova's notifications"


class Adapter:
    """`sluice openstack serve`."""

    def __init__(self, rig: OpenStackRig, pool: Pool) -> None:
        self._rig, self._pool = rig, pool
        self.start()

    def start(self) -> None:
        """Returns when it follows Nova, and a signal ends it in order."""
        path = self._pool.folder / "adapter.out"
        with path.open("ab") as out:
            before = out.tell()
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "ignore", "-m", "sluice.cli", "openstack", "serve"),
                    *("--config", str(self._pool.adapter_conf)),
                ],
                env=self._pool.environment(self._rig),
                stdout=out,
                stderr=out,
            )
        wait_for(lambda: LISTENING in path.read_bytes()[before:], message="the adapter to listen")

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0


@pytest.fixture(scope="session")
def adapter(rig: OpenStackRig, pool: Pool) -> Iterator[Adapter]:
    started = Adapter(rig, pool)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def cloud(rig: OpenStackRig) -> Iterator[Any]:
    """openstacksdk's connection as the administrator; no instance is left from an earlier run."""
    connection = connect(rig)
    remove_instances(connection)
    yield connection
    remove_instances(connection)


def connect(rig: OpenStackRig) -> Any:
    """openstacksdk's connection as the administrator."""
    import openstack

    credentials: dict[str, Any] = {
        name.removeprefix("OS_").lower(): value
        for name, value in rig.credentials().items()
        if name != "OS_IDENTITY_API_VERSION"
    }
    return openstack.connect(
        load_envvars=False,
        load_yaml_config=False,
        auth_type="password",
        **credentials,
        identity_api_version="3",
    )


def remove_instances(cloud: Any) -> None:
    servers = list(cloud.compute.servers(all_projects=True))
    for server in servers:
        cloud.compute.delete_server(server, ignore_missing=True)
    for server in servers:
        cloud.compute.wait_for_delete(server, interval=0.5, wait=90)
    for flavor in list(cloud.compute.flavors()):
        if flavor.name.startswith("rig."):
            cloud.compute.delete_flavor(flavor)


@pytest.fixture(scope="session")
def records(rig: OpenStackRig, pool: Pool, adapter: Adapter, cloud: Any) -> InstanceRecords:
    from instance_records import InstanceRecords

    return InstanceRecords(rig, pool, cloud)


@pytest.fixture(scope="module")
def other(rig: OpenStackRig, pool: Pool, records: InstanceRecords) -> Iterator[OtherHost]:
    """Beside the first host, for as long as a module's tests take."""
    other = OtherHost(rig, pool)
    try:
        other.start()
        rig.openstack("compute", "service", "set", "--enable", other.NAME, "nova-compute")
        records.libvirts[other.NAME] = other.host.libvirt.uri
        yield other
    finally:
        records.libvirts.pop(other.NAME, None)
        try:
            # while it runs: Nova asks the host, and waits a minute for one that is gone
            rig.openstack("compute", "service", "set", "--disable", other.NAME, "nova-compute")
        finally:
            other.close()


@pytest.fixture(scope="session")
def image(rig: OpenStackRig, cloud: Any) -> Any:
    """An image whose kernel and initramfs boot in seconds without KVM."""
    remove_images(cloud)
    return make_image(rig, cloud, "rig-guest")


def remove_images(cloud: Any, begin: str = "rig-") -> None:
    for old in list(cloud.image.images()):
        if old.name.startswith(begin):
            cloud.image.delete_image(old)


def make_image(rig: OpenStackRig, cloud: Any, name: str, **files: Path) -> Any:
    """An image whose instances run a CUDA program; `files` are guest_image.build's."""
    from tests.rigs.openstack import guest_image

    built = guest_image.build(rig.root / "guest", CHECKOUT / "build/rig/images", **files)
    parts = {
        kind: cloud.image.create_image(
            name=f"rig-{name}-{kind}",
            filename=str(path),
            disk_format=kind,
            container_format=kind,
            validate_checksum=False,
        )
        for kind, path in (("aki", built.kernel), ("ari", built.initramfs))
    }
    return cloud.image.create_image(
        name=name,
        filename=str(built.disk),
        disk_format="ami",
        container_format="ami",
        kernel_id=parts["aki"].id,
        ramdisk_id=parts["ari"].id,
        os_command_line="console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable",
        hw_machine_type="q35",
        validate_checksum=False,
    )
