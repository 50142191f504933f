# SPDX-License-Identifier: Apache-2.0
"""What adapters of platforms find in the REST API: their own reservations, and the event log."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from control_plane import ControlPlane, running

pytestmark = pytest.mark.control_plane(shared=True, fake=True)


def test_an_adapter_finds_its_reservations_again_after_a_restart(plane: ControlPlane) -> None:
    size = {"memory_mib": 16, "compute_percent": 1, "owner_kind": "vm"}
    own = {**size, "owner": "vm-1", "origin": "vsphere.dc1"}
    assert plane.rest.post("/reservations", json=own).json()["origin"] == "vsphere.dc1"
    assert plane.rest.post("/reservations", json={**size, "owner": "vm-2"}).json()["origin"] == ""
    plane.stop("controller", signal.SIGKILL)
    plane.start_controller()
    found = plane.rest.get("/reservations", params={"origin": "vsphere.dc1"}).json()
    assert [each["owner"] for each in found["reservations"]] == ["vm-1"]
    assert len(plane.rest.get("/reservations").json()["reservations"]) == 2
    bad = plane.rest.post("/reservations", json={**own, "origin": "a b"})
    assert bad.status_code == 422


def test_an_adapter_writes_events_of_its_own_kinds_only(plane: ControlPlane) -> None:
    event = {"kind": "adapter.vsphere.client_refused", "subject": "vm-1", "text": "count: 0"}
    assert plane.rest.post("/events", json=event).status_code == 201
    found = plane.rest.get("/events", params={"subject": "vm-1", "kind": "adapter."}).json()
    assert [each["text"] for each in found["events"]] == ["count: 0"]
    for wrong in (
        {**event, "kind": "audit.post"},
        {**event, "kind": "grant.ended"},
        {**event, "text": "one\ntwo"},
        {**event, "subject": ""},
        {**event, "text": "x" * 300},
    ):
        assert plane.rest.post("/events", json=wrong).status_code == 422


def test_nobody_else_writes_events(tmp_path: Path) -> None:
    with running(tmp_path, fake=True, auth={"local": "user"}) as guarded:
        event = {"kind": "adapter.x", "subject": "s", "text": "t"}
        assert guarded.rest.post("/events", json=event).status_code == 403
