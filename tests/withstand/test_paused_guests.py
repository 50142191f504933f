# SPDX-License-Identifier: Apache-2.0
"""Sessions of a guest that libvirt pauses are suspended and go on with it ([suspend] on_pause)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from control_plane import ControlPlane, running, wait_for
from folders import let_everybody_in

from .guests import Fleet, GuestProgram, Rig, serving
from .traces import LIMIT

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.control_plane(shared="pausing_plane")]
SUSPEND = {"swap_mib": 512, "drain_seconds": 60, "on_pause": "suspend"}
RIGHT = "compute: wrong 0 of 1000"


@pytest.fixture(scope="module")
def pausing_plane(
    guests_rig: Rig, built: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """Serves guests, and suspends with them."""
    folder = tmp_path_factory.mktemp("pausing")
    let_everybody_in(folder)
    with running(folder, server=serving(guests_rig, silent_seconds=10), suspend=SUSPEND) as plane:
        yield plane


def states(plane: ControlPlane) -> list[str]:
    """Of all grants."""
    shown: list[dict[str, Any] | None] = [grant["suspension"] for grant in plane.grants()]
    return [each["state"] if each else "runs" for each in shown]


def test_they_are_suspended_with_it_and_go_on_with_it(guests_rig: Rig, plane: ControlPlane) -> None:
    fleet = Fleet(guests_rig, plane)
    try:
        guest = fleet.make("pausing")
        program = GuestProgram(guest)
        assert program.ask("compute") == RIGHT
        for service in ("", "server", "controller"):
            guest.pause()
            wait_for(lambda: states(plane) == ["suspended"], LIMIT, lambda: str(plane.grants()))
            [gpu] = plane.rest.get("/gpus").json()["gpus"]
            assert gpu["granted_percent"] == 0, "its share is others' meanwhile"
            if service == "server":  # and the guest goes on while it is away
                plane.stop("server", signal.SIGKILL)
                guest.resume()
                plane.start_server()
            elif service == "controller":
                plane.stop("controller", signal.SIGKILL)
                guest.resume()
                plane.start_controller()
            else:
                guest.resume()
            wait_for(lambda: states(plane) == ["runs"], LIMIT, lambda: str(plane.grants()))
            assert program.ask("compute") == RIGHT
        program.quit()
        wait_for(lambda: not plane.grants(), LIMIT, "its grant to return")
    finally:
        fleet.close()
