# SPDX-License-Identifier: Apache-2.0
"""Two compute hosts: what becomes of an instance's grant when it moves, or its host is no more."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt
import pytest
from control_plane import wait_for
from instance_records import Entry, InstanceRecords
from instances import boot, delete, wait_console, wait_settled

if TYPE_CHECKING:
    from conftest import OtherHost, Pool

    from tests.rigs.openstack.rig import OpenStackRig

pytestmark = [pytest.mark.openstack, pytest.mark.slow]

SIZE = (1, 1024, 25)
FIRST, SECOND = "compute1", "compute2"  # conftest.py starts them
RUNNING = Entry("ACTIVE", (1024, 25), (SIZE,), SIZE, True)
GONE = Entry("GONE", (0, 0), (), None, False)


@pytest.fixture(scope="module")
def flavor(records: InstanceRecords, pool: Pool, rig: OpenStackRig, other: OtherHost) -> str:
    wait_for(lambda: not records.differences(), 180, "Placement to know the pool and both hosts")
    return pool.make_flavor(rig, "rig.two", SIZE)


def host_of(cloud: Any, server: Any) -> str:
    return str(cloud.compute.get_server(server).compute_host)


def defined(host: OtherHost, uuid: str) -> str:
    """The definition of that host's domain."""
    with contextlib.closing(libvirt.open(host.host.libvirt.uri)) as connection:
        return str(connection.lookupByUUIDString(uuid).XMLDesc())


def boot_on(rig: OpenStackRig, cloud: Any, image: Any, flavor: str, name: str, host: str) -> Any:
    """Boots there by taking the other host out of service for a moment."""
    away = SECOND if host == FIRST else FIRST
    rig.openstack("compute", "service", "set", "--disable", away, "nova-compute")
    try:
        server = boot(cloud, image, name, flavor)
    finally:
        rig.openstack("compute", "service", "set", "--enable", away, "nova-compute")
    assert host_of(cloud, server) == host
    return server


def test_a_cold_migration_takes_the_grant_along(
    rig: OpenStackRig,
    pool: Pool,
    cloud: Any,
    image: Any,
    records: InstanceRecords,
    flavor: str,
    other: OtherHost,
) -> None:
    server = boot_on(rig, cloud, image, flavor, "cold", FIRST)
    records.agree(server.id, RUNNING)
    [reservation] = records.reservations(server.id)
    cloud.compute.migrate_server(server)
    wait_settled(cloud, server, "VERIFY_RESIZE")
    assert host_of(cloud, server) == SECOND
    cloud.compute.confirm_server_resize(server)
    wait_settled(cloud, server, "ACTIVE")
    # this host's server.conf says so; a region without one lies on the other
    assert "<model type='ivshmem-doorbell'/>" in defined(other, server.id)
    records.agree(server.id, RUNNING)
    assert [r["id"] for r in records.reservations(server.id)] == [reservation["id"]]
    # its programs draw on what is held for it, on whichever host's GPU that is
    wait_console(cloud, server, "rig: program ended with 0")
    latest = max(
        (s for s in pool.sessions("all") if s["domain_uuid"] == server.id),
        key=lambda session: str(session["started"]),
    )
    grant = pool.rest.get(f"/grants/{latest['grant_id']}").json()
    assert grant["reservation"] == reservation["id"]
    at_home = grant["node"] == other.server.node
    assert latest["channel"] == ("ivshmem" if at_home else "relay")
    # what the first host had of it is no more
    wait_for(lambda: not Path(f"/dev/shm/sluice-{server.id}").exists(), message="the region to go")
    delete(cloud, server)
    records.agree(server.id, GONE)


def test_a_live_migration_is_refused_with_its_reason(
    rig: OpenStackRig,
    cloud: Any,
    image: Any,
    records: InstanceRecords,
    flavor: str,
    other: OtherHost,
) -> None:
    server = boot_on(rig, cloud, image, flavor, "live", FIRST)
    records.agree(server.id, RUNNING)
    wanted = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
    asked = cloud.compute.post(f"/servers/{server.id}/action", json=wanted, microversion="2.34")
    assert asked.status_code == 202
    said: list[str] = []

    def refused() -> bool:
        answer = cloud.compute.get(
            f"/servers/{server.id}/os-instance-actions", microversion="2.84"
        ).json()
        for action in answer["instanceActions"]:
            if action["action"] == "live-migration":
                shown = cloud.compute.get(
                    f"/servers/{server.id}/os-instance-actions/{action['request_id']}",
                    microversion="2.84",
                ).json()["instanceAction"]
                said.extend(str(event.get("details")) for event in shown["events"])
                said.append(str(shown.get("message")))
        return any("channel to the GPU pool" in text for text in said)

    wait_for(refused, message="the reason in the instance's actions")
    wait_settled(cloud, server, "ACTIVE")
    assert host_of(cloud, server) == FIRST
    records.agree(server.id, RUNNING)
    delete(cloud, server)
    records.agree(server.id, GONE)


def test_an_evacuated_instance_keeps_its_grant(
    rig: OpenStackRig,
    cloud: Any,
    image: Any,
    records: InstanceRecords,
    flavor: str,
    other: OtherHost,
) -> None:
    server = boot_on(rig, cloud, image, flavor, "evacuated", SECOND)
    records.agree(server.id, RUNNING)
    [reservation] = records.reservations(server.id)
    other.die()
    cloud.compute.evacuate_server(server)  # to where Nova chooses: there is one
    wait_for(lambda: host_of(cloud, server) == FIRST, 120, "the instance to be rebuilt")
    # from API 2.95 on it is its owner who starts it
    wait_settled(cloud, server, "SHUTOFF")
    records.agree(server.id, replace(RUNNING, status="SHUTOFF"))
    cloud.compute.start_server(server)
    wait_settled(cloud, server, "ACTIVE")
    records.agree(server.id, RUNNING)
    assert [r["id"] for r in records.reservations(server.id)] == [reservation["id"]]
    assert Path(f"/dev/shm/sluice-{server.id}").exists()

    # the dead host comes back: what it had of the instance goes, and nothing else
    other.start()
    assert host_of(cloud, server) == FIRST
    wait_for(
        lambda: not records.definitions(server.id)[1:], message="one definition of the instance"
    )
    records.agree(server.id, RUNNING)
    assert [r["id"] for r in records.reservations(server.id)] == [reservation["id"]]
    assert host_of(cloud, server) == FIRST
    delete(cloud, server)
    records.agree(server.id, GONE)


def test_a_host_that_never_comes_back_holds_its_grants_until_nova_says_otherwise(
    rig: OpenStackRig,
    cloud: Any,
    image: Any,
    records: InstanceRecords,
    flavor: str,
    other: OtherHost,
) -> None:
    server = boot_on(rig, cloud, image, flavor, "lost", SECOND)
    records.agree(server.id, RUNNING)
    other.die()
    held = Entry("ACTIVE", (1024, 25), (SIZE,), None, False)
    records.agree(server.id, held)
    delete(cloud, server)
    records.agree(server.id, GONE)
    other.start()
    records.agree(server.id, GONE)
