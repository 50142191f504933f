# SPDX-License-Identifier: Apache-2.0
"""Instances on a real Nova: what becomes of their grants, in Placement, Nova, libvirt and here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from control_plane import wait_for
from instance_records import Entry, InstanceRecords
from instances import boot, delete, wait_console, wait_settled

if TYPE_CHECKING:
    from conftest import Pool

    from tests.rigs.openstack.rig import OpenStackRig

pytestmark = [pytest.mark.openstack, pytest.mark.slow]

SMALL, LARGE = (1, 1024, 25), (1, 2048, 50)
NOTHING = (0, 0)
EXPECTED = Path(__file__).resolve().parents[1] / "programs" / "expected" / "vector_add.out"


@pytest.fixture(scope="module")
def flavors(records: InstanceRecords, pool: Pool, rig: OpenStackRig) -> tuple[str, str]:
    # the adapter has put the pool into Placement before anybody asks for it
    wait_for(lambda: not records.differences(), 180, "Placement to know the pool")
    return pool.make_flavor(rig, "rig.small", SMALL), pool.make_flavor(rig, "rig.large", LARGE)


def test_an_instance_without_a_vgpu_is_nobodys_business(
    cloud: Any, image: Any, records: InstanceRecords
) -> None:
    flavor = cloud.compute.create_flavor(name="rig.plain", ram=256, vcpus=1, disk=0)
    server = boot(cloud, image, "plain", flavor.id)
    wait_console(cloud, server, "channel none")
    records.agree(server.id, Entry("ACTIVE", NOTHING, (), (0, 0, 0), False))
    delete(cloud, server)


def made_ready(pool: Pool, uuid: str) -> int:
    """How often the server put its channel into a definition for a start."""
    return pool.log("server").count(f"channel {uuid}: in the definition of a VM")


def test_what_nova_does_to_an_instance_leaves_its_grant_alone(
    cloud: Any, image: Any, records: InstanceRecords, pool: Pool, flavors: tuple[str, str]
) -> None:
    compute = cloud.compute
    server = boot(cloud, image, "robust", flavors[0])
    records.agree(server.id, Entry("ACTIVE", (1024, 25), (SMALL,), SMALL, True))
    assert made_ready(pool, server.id) == 1
    [reservation] = records.reservations(server.id)
    for begin, status in (
        (lambda: compute.reboot_server(server, "SOFT"), "ACTIVE"),
        (lambda: compute.pause_server(server), "PAUSED"),
        (lambda: compute.unpause_server(server), "ACTIVE"),
        (lambda: compute.suspend_server(server), "SUSPENDED"),
        (lambda: compute.resume_server(server), "ACTIVE"),
        (lambda: compute.rebuild_server(server, image=image.id), "ACTIVE"),
        (lambda: compute.rescue_server(server), "RESCUE"),
        (lambda: compute.unrescue_server(server), "ACTIVE"),
    ):
        if status == "SUSPENDED":  # in mid-boot, or with a session, a guest lets no device go
            wait_console(cloud, server, "rig: program ended with 0")
        begin()
        wait_settled(cloud, server, status)
        records.agree(server.id, Entry(status, (1024, 25), (SMALL,), SMALL, True))
        assert [r["id"] for r in records.reservations(server.id)] == [reservation["id"]]
    # boot, soft reboot (no answer of the guest, so Nova makes it a hard one), rebuild and rescue;
    # resume and unrescue define what was defined before
    assert made_ready(pool, server.id) == 4
    delete(cloud, server)
    records.agree(server.id, Entry("GONE", NOTHING, (), None, False))


def test_without_its_server_an_instance_is_not_started(
    cloud: Any, image: Any, records: InstanceRecords, pool: Pool, flavors: tuple[str, str]
) -> None:
    server = boot(cloud, image, "unserved", flavors[0])
    pool.stop("server")
    try:
        cloud.compute.reboot_server(server, "HARD")
        wait_for(lambda: cloud.compute.get_server(server).status == "ERROR", 120, "Nova to give up")
        said = str(cloud.compute.get_server(server).fault)
    finally:
        pool.start_server()
    assert "sluice-server does not answer" in said
    cloud.compute.reboot_server(server, "HARD")
    wait_for(lambda: cloud.compute.get_server(server).status == "ACTIVE", 120, "the instance")
    records.agree(server.id, Entry("ACTIVE", (1024, 25), (SMALL,), SMALL, True))
    delete(cloud, server)


def test_a_grant_follows_its_instance(
    cloud: Any,
    image: Any,
    records: InstanceRecords,
    pool: Pool,
    rig: OpenStackRig,
    flavors: tuple[str, str],
) -> None:
    small, large = flavors
    compute = cloud.compute
    running = Entry("ACTIVE", (1024, 25), (SMALL,), SMALL, True)

    server = boot(cloud, image, "life", small)
    records.agree(server.id, running)
    [reservation] = records.reservations(server.id)
    assert reservation["project"] == server.project_id
    shown = wait_console(cloud, server, "rig: program ended with")
    assert "rig: program ended with 0" in shown
    for line in EXPECTED.read_text().splitlines():
        assert line in shown
    session = next(s for s in pool.sessions("all") if s["domain_uuid"] == server.id)
    grant = pool.rest.get(f"/grants/{session['grant_id']}").json()
    assert grant["reservation"] == reservation["id"]

    # a hard reboot destroys the domain and defines it anew; the grant never went
    compute.reboot_server(server, "HARD")
    wait_settled(cloud, server, "ACTIVE")
    records.agree(server.id, running)
    assert [r["id"] for r in records.reservations(server.id)] == [reservation["id"]]
    assert reservation["created"] == records.reservations(server.id)[0]["created"]
    wait_console(cloud, server, "rig: program ended with 0")

    # both sizes are held until somebody decides
    compute.resize_server(server, large)
    wait_settled(cloud, server, "VERIFY_RESIZE")
    both = Entry("VERIFY_RESIZE", (2048, 50), (LARGE,), LARGE, True)
    records.agree(server.id, both)
    compute.revert_server_resize(server)
    wait_settled(cloud, server, "ACTIVE")
    records.agree(server.id, running)

    compute.resize_server(server, large)
    wait_settled(cloud, server, "VERIFY_RESIZE")
    compute.confirm_server_resize(server)
    wait_settled(cloud, server, "ACTIVE")
    larger = Entry("ACTIVE", (2048, 50), (LARGE,), LARGE, True)
    records.agree(server.id, larger)
    assert [r["id"] for r in records.reservations(server.id)] == [reservation["id"]]

    # off, it keeps what is its own; shelved and offloaded, it holds nothing
    compute.stop_server(server)
    wait_settled(cloud, server, "SHUTOFF")
    records.agree(server.id, Entry("SHUTOFF", (2048, 50), (LARGE,), LARGE, True))
    compute.shelve_server(server)
    wait_settled(cloud, server, "SHELVED_OFFLOADED")
    records.agree(server.id, Entry("SHELVED_OFFLOADED", NOTHING, (), None, False))
    compute.unshelve_server(server)
    wait_settled(cloud, server, "ACTIVE")
    records.agree(server.id, larger)

    # whoever has the `openstack` client sees the same
    [row] = rig.openstack("vgpu", "list", "--os-vgpu-controller", pool.url)
    assert (row["ID"], row["vGPUs"], row["Memory MiB"]) == (server.id, 1, 2048)
    assert (row["Status"], row["Mode"], row["Grant"]) == ("ACTIVE", "reserved", "held")
    shown = rig.openstack("vgpu", "show", server.name)
    assert (shown["compute_percent"], shown["priority"]) == (50, 0)
    quota = rig.openstack("vgpu", "quota", "--os-vgpu-controller", pool.url)
    assert (quota["memory_mib"], quota["memory_mib_in_use"]) == ("unlimited", 2048)

    delete(cloud, server)
    records.agree(server.id, Entry("GONE", NOTHING, (), None, False))
    wait_for(lambda: not Path(f"/dev/shm/sluice-{server.id}").exists(), message="the region to go")
