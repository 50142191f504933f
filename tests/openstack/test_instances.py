# SPDX-License-Identifier: Apache-2.0
"""Instances on a real Nova: what becomes of their grants, in Placement, Nova, libvirt and here."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = [pytest.mark.openstack, pytest.mark.slow]


def wait_console(cloud: Any, server: Any, text: str, seconds: float = 120) -> str:
    deadline = time.monotonic() + seconds
    while True:
        shown = str(cloud.compute.get_server_console_output(server)["output"])
        if text in shown:
            return shown
        assert time.monotonic() < deadline, f"no {text!r} on the console: {shown[-2000:]}"
        time.sleep(0.5)


def test_an_instance_without_a_vgpu_boots(cloud: Any, image: Any) -> None:
    flavor = cloud.compute.find_flavor("rig.plain") or cloud.compute.create_flavor(
        name="rig.plain", ram=256, vcpus=1, disk=0
    )
    server = cloud.compute.create_server(
        name="plain", flavor_id=flavor.id, image_id=image.id, networks="none"
    )
    server = cloud.compute.wait_for_server(server, interval=0.5, wait=120)
    assert "channel none" in wait_console(cloud, server, "rig: up")
    cloud.compute.delete_server(server)
    cloud.compute.wait_for_delete(server, interval=0.5, wait=60)
