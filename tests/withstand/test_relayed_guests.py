# SPDX-License-Identifier: Apache-2.0
"""Real guests of a host without a GPU: their channel goes on by a relay to another host's GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from folders import let_everybody_in
from region_slots import FREE
from relay_host import RelayHost, relay_host

from .guests import SLOTS, Fleet, Guest, GuestProgram, Rig, prepare, serving, slot_states
from .prompted import ENDLESS
from .traces import LIMIT, wait_nothing_left

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.control_plane(shared=True),
]
RIGHT = "compute: wrong 0 of 1000"


@pytest.fixture(scope="module")
def plane_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The controller, and the host with the GPU; it knows of no libvirt."""
    folder = tmp_path_factory.mktemp("pool")
    let_everybody_in(folder)
    return {"folder": folder}


@pytest.fixture(scope="module")
def host(
    guests_rig: Rig, shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayHost]:
    """The guests' host: libvirt, and a server without a GPU."""
    folder = tmp_path_factory.mktemp("guests")
    let_everybody_in(folder)
    with relay_host(shared_plane, folder, **serving(guests_rig)) as joined:
        yield joined


@pytest.fixture(scope="module")
def fleet(guests_rig: Rig, host: RelayHost) -> Iterator[Fleet]:
    guests = Fleet(guests_rig, host)
    yield guests
    guests.close()


@pytest.fixture(scope="module")
def guest(fleet: Fleet) -> Guest:
    return fleet.make("relayed")


def of_guest(plane: ControlPlane, guest: Guest) -> dict[str, str]:
    """The one session that it has."""
    [session] = [s for s in plane.sessions() if s["domain_uuid"] == guest.uuid]
    return {key: session[key] for key in ("channel", "node", "domain_name")}


def test_a_program_in_a_guest_computes_on_another_hosts_gpu(
    plane: ControlPlane, host: RelayHost, guest: Guest
) -> None:
    program = GuestProgram(guest)
    assert program.ask("compute") == RIGHT
    told = {"channel": "relay", "node": plane.node, "domain_name": guest.name}
    assert of_guest(plane, guest) == told
    program.quit()
    wait_nothing_left(plane, host)
    wait_for(lambda: slot_states(guest) == [FREE] * SLOTS, LIMIT, "the slot to be free")


def test_a_guests_killed_program_leaves_nothing_on_either_host(
    plane: ControlPlane, host: RelayHost, guest: Guest
) -> None:
    program = GuestProgram(guest)
    assert program.ask(f"launch {ENDLESS}") == "launch: ok"
    program.signal("KILL")
    wait_nothing_left(plane, host)
    wait_for(lambda: slot_states(guest) == [FREE] * SLOTS, LIMIT, "the slot to be free")


def test_a_killed_relay_is_followed_by_another(
    plane: ControlPlane, host: RelayHost, guest: Guest
) -> None:
    program = GuestProgram(guest)
    assert program.ask("compute") == RIGHT
    [session] = plane.sessions()
    for _ in range(2):
        [relay] = host.relays()
        os.kill(relay["pid"], signal.SIGKILL)
        program.say("compute")
        assert program.answer(LIMIT + 15) == RIGHT
        assert relay["pid"] not in [one["pid"] for one in host.relays()]
    assert [one["id"] for one in plane.sessions()] == [session["id"]]
    program.quit()
    wait_nothing_left(plane, host)


def test_a_guest_destroyed_in_mid_call_leaves_nothing_on_either_host(
    plane: ControlPlane, host: RelayHost, fleet: Fleet, guest: Guest
) -> None:
    program = GuestProgram(guest)
    assert program.ask(f"launch {ENDLESS}") == "launch: ok"
    program.say("wait")
    fleet.virsh("destroy", guest.name)
    wait_nothing_left(plane, host)
    guest.start()
    guest.wait_ready()
    prepare(guest)
    following = GuestProgram(guest)
    assert following.ask("compute") == RIGHT
    following.quit()
