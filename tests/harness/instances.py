# SPDX-License-Identifier: Apache-2.0
"""What tests/openstack does with instances: boots, waits, deletes, as a user of the SDK would."""

from __future__ import annotations

import time
from typing import Any

BOOT_SECONDS = 180


def boot(cloud: Any, image: Any, name: str, flavor: str) -> Any:
    """A server that is active."""
    server = cloud.compute.create_server(
        name=name, flavor_id=flavor, image_id=image.id, networks="none"
    )
    return cloud.compute.wait_for_server(server, interval=0.3, wait=BOOT_SECONDS)


def wait_console(cloud: Any, server: Any, text: str, times: int = 1, seconds: float = 120) -> str:
    """The console's whole lines, when the text stands in them so often."""
    deadline = time.monotonic() + seconds
    while True:
        shown = str(cloud.compute.get_server_console_output(server)["output"])
        shown = shown[: shown.rfind("\n") + 1]
        if shown.count(text) >= times:
            return shown
        assert time.monotonic() < deadline, f"no {text!r} on the console: {shown[-2000:]}"
        time.sleep(0.5)


def wait_settled(cloud: Any, server: Any, status: str, seconds: float = BOOT_SECONDS) -> None:
    """Waits until nothing is under way any more, and it has a status."""
    deadline = time.monotonic() + seconds
    while True:
        now = cloud.compute.get_server(server)
        if now.status == status and now.task_state is None:
            return
        assert now.status != "ERROR", now.fault
        assert time.monotonic() < deadline, f"{now.status}, {now.task_state}; wanted {status}"
        time.sleep(0.3)


def delete(cloud: Any, server: Any) -> None:
    """Deletes it, and waits until it is no more."""
    cloud.compute.delete_server(server)
    cloud.compute.wait_for_delete(server, interval=0.5, wait=BOOT_SECONDS)
