# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack for the tests marked `openstack`: started once, cleaned, stopped."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

if TYPE_CHECKING:
    from tests.rigs.openstack.rig import OpenStackRig

#: Without openstacksdk (the extra `openstack`) the other tests run all the same.
collect_ignore = [] if importlib.util.find_spec("openstack") else ["test_instances.py"]


@pytest.fixture(scope="session")
def rig() -> Iterator[OpenStackRig]:
    from tests.rigs.openstack.rig import OpenStackRig

    openstack = OpenStackRig()
    ran = bool(openstack.status())  # by hand: it goes on afterwards
    openstack.start()
    yield openstack
    if not ran:
        openstack.stop()


@pytest.fixture(scope="session")
def cloud(rig: OpenStackRig) -> Iterator[Any]:
    """openstacksdk's connection as the administrator; no instance is left from an earlier run."""
    import openstack

    connection = openstack.connect(
        load_envvars=False,
        load_yaml_config=False,
        auth_type="password",
        **{
            name.removeprefix("OS_").lower(): value
            for name, value in rig.credentials().items()
            if name != "OS_IDENTITY_API_VERSION"
        },
        identity_api_version="3",
    )
    remove_instances(connection)
    yield connection
    remove_instances(connection)


def remove_instances(cloud: Any) -> None:
    servers = list(cloud.compute.servers(all_projects=True))
    for server in servers:
        cloud.compute.delete_server(server, ignore_missing=True)
    for server in servers:
        cloud.compute.wait_for_delete(server, interval=0.5, wait=90)


@pytest.fixture(scope="session")
def image(rig: OpenStackRig, cloud: Any) -> Any:
    """An image whose kernel and initramfs boot in seconds without KVM."""
    from tests.rigs.openstack import guest_image

    built = guest_image.build(rig.root / "guest", CHECKOUT / "build/rig/images")
    for old in list(cloud.image.images()):
        if old.name.startswith("rig-"):
            cloud.image.delete_image(old)
    parts = {
        kind: cloud.image.create_image(
            name=f"rig-{kind}",
            filename=str(path),
            disk_format=kind,
            container_format=kind,
            validate_checksum=False,
        )
        for kind, path in (("aki", built.kernel), ("ari", built.initramfs))
    }
    return cloud.image.create_image(
        name="rig-guest",
        filename=str(built.disk),
        disk_format="ami",
        container_format="ami",
        kernel_id=parts["aki"].id,
        ramdisk_id=parts["ari"].id,
        os_command_line="console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable",
        hw_machine_type="q35",
        validate_checksum=False,
    )
