# SPDX-License-Identifier: Apache-2.0
"""Two tenants' guests, asked for with virsh alone: each gets what is its own, whatever it tries."""

from __future__ import annotations

from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from .guests import Fleet, Guest, GuestProgram, prepare
from .traces import LIMIT

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.control_plane(shared="guests_plane"),
]
RIGHT = "compute: wrong 0 of 1000"
CHANNEL = {"region_mib": 64, "slots": 4}


def events(plane: ControlPlane, guest: Guest) -> list[tuple[str, str]]:
    """Kind and text of what the pool's log says of a guest."""
    answer = plane.rest.get("/events", params={"subject": guest.uuid, "limit": 100})
    assert answer.status_code == 200, answer.text
    return [(line["kind"], line["text"]) for line in answer.json()["events"]]


def reservations(plane: ControlPlane, guest: Guest) -> list[dict[str, Any]]:
    """The live reservations that belong to a guest."""
    items = plane.rest.get("/reservations").json()["reservations"]
    return [r for r in items if r["owner"] == guest.uuid and r["state"] != "ended"]


def refused(program: GuestProgram) -> str:
    """What a program is told whose session is not opened."""
    assert "ok" not in program.ask("open")
    errors = program.errors()
    program.signal("KILL")
    return errors


def test_two_tenants_by_metadata_alone(plane: ControlPlane, fleet: Fleet) -> None:
    gpus = plane.rest.get("/gpus").json()["gpus"]
    owner, other = fleet.boot("owner"), fleet.boot("other")
    fleet.ask(owner, memory_mib=64, compute=100, count=len(gpus), mode="reserved", **CHANNEL)
    fleet.ask(other, memory_mib=64, compute=10, **CHANNEL)
    held = ["held"]
    wait_for(lambda: [r["state"] for r in reservations(plane, owner)] == held, LIMIT, "it to hold")
    for guest in (owner, other):
        prepare(guest)
        wait_for(
            lambda guest=guest: "vm.request" in [kind for kind, _ in events(plane, guest)],  # type: ignore[misc]
            LIMIT,
            f"{guest.name} in the event log",
        )

    # every GPU's time is the owner's, used or not
    program = GuestProgram(owner)
    assert program.ask("compute") == RIGHT
    (session,) = plane.sessions()
    assert session["domain_uuid"] == owner.uuid
    program.quit()
    without = GuestProgram(other, opened=False, SLUICE_WAIT="0")
    assert "%" in refused(without)

    # what a guest says of itself is nobody's identity
    forged = {"SLUICE_WAIT": "0", "HOSTNAME": owner.name, "SLUICE_MODE": "reserved"}
    assert "reserv" in refused(GuestProgram(other, opened=False, **forged))
    # nor does it get more than its own metadata says
    assert "other was given 64" in refused(GuestProgram(other, opened=False, SLUICE_GMEM="65"))
    # the owner's job is the owner's: its token is worth nothing in another guest
    token = "11" * 16
    held = GuestProgram(owner, SLUICE_JOB=token)
    stolen = GuestProgram(other, opened=False, SLUICE_JOB=token, SLUICE_WAIT="0")
    refused(stolen)
    assert {s["domain_uuid"] for s in plane.sessions()} == {owner.uuid}
    held.quit()

    # a slip of the pen is said, and what is served goes on
    fleet.ask(owner, memory_mib=64, compute=1000)
    wait_for(
        lambda: any(kind == "vm.problem" and "compute" in t for kind, t in events(plane, owner)),
        LIMIT,
        "the problem in the event log",
    )
    again = GuestProgram(owner)
    assert again.ask("compute") == RIGHT
    # the owner's metadata goes, and with it his reservation and his channel
    fleet.ask(owner)
    wait_for(lambda: not reservations(plane, owner), LIMIT, "the end of the reservation")
    wait_for(lambda: not plane.sessions(), LIMIT, "the end of the session")
    program = GuestProgram(other)
    assert program.ask("compute") == RIGHT
    program.quit()
