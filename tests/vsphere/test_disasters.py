# SPDX-License-Identifier: Apache-2.0
"""What a vCenter and its network do to an adapter: restarts, sessions that expire, bursts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from control_plane import wait_for
from vms import uuid

if TYPE_CHECKING:
    from adapter import Rig

pytestmark = pytest.mark.vsphere


def counts(rig: Rig) -> dict[str, int]:
    return {owner: each["count"] for owner, each in rig.reservations().items()}


def test_a_restart_of_the_vcenter_is_survived(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM0")
    rig.vcenter.set_attribute(vm, "count=1")
    wait_for(lambda: counts(rig).get(uuid(vm)) == 1)
    connected = rig.log().count("connected to vCenter")
    rig.vcenter.restart(1500)
    vm = rig.vcenter.vm("DC0_C0_RP0_VM0")
    rig.vcenter.set_attribute(vm, "count=2")
    wait_for(lambda: counts(rig).get(uuid(vm)) == 2)
    assert rig.log().count("connected to vCenter") > connected
    assert len(counts(rig)) == 1, "nothing was given up meanwhile, nor made twice"


def test_an_expired_session_is_survived(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM1")
    for count in (1, 2, 3):
        rig.vcenter.expire_sessions()
        vm = rig.vcenter.vm("DC0_C0_RP0_VM1")
        rig.vcenter.set_attribute(vm, f"count={count}")
        name = uuid(vm)
        wait_for(lambda n=name, c=count: counts(rig).get(n) == c)  # type: ignore[misc]
    assert "is over; logging in anew" in rig.log()


def test_a_controller_that_restarts_is_waited_for(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM2")
    rig.plane.stop("controller", signal.SIGKILL)
    rig.vcenter.set_attribute(vm, "count=1")
    rig.wait_log("does not answer")
    rig.plane.start_controller()
    wait_for(lambda: counts(rig).get(uuid(vm)) == 1)


def test_after_a_burst_the_last_word_holds_and_then_it_is_quiet(shared_rig: Rig) -> None:
    rig = shared_rig
    vms = [rig.vcenter.vm(f"DC0_H0_VM{n}") for n in range(4)]
    for round_ in range(15):
        for number, vm in enumerate(vms):
            rig.vcenter.set_attribute(vm, f"count={1 + (round_ + number) % 5}")
    for vm in vms:
        rig.vcenter.power(vm, on=False)
        rig.vcenter.power(vm, on=True)
    wanted = {uuid(vm): 1 + (14 + number) % 5 for number, vm in enumerate(vms)}
    wait_for(lambda: wanted.items() <= counts(rig).items())
    written = [f"guestinfo.sluice.{key}" for key in ("settings", "enrolment")]
    wait_for(lambda: all(rig.vcenter.extra(vm).get(key) for vm in vms for key in written))
    # nothing changes: nothing is asked but the one wait
    rig.wait_quiet()
    calls = rig.calls_within(3 * 2.5)
    assert set(calls) <= {"WaitForUpdatesEx"}, calls


def test_an_impostor_gets_no_password(rig: Rig, tmp_path: Path) -> None:
    certificate = ssl.PEM_cert_to_DER_cert(rig.vcenter.certificate.read_text())
    thumbprint = hashlib.sha256(certificate).hexdigest()
    with_colons = ":".join(thumbprint[i : i + 2] for i in range(0, 64, 2)).upper()
    shown = rig.sluice("connect", "--show-thumbprint")
    assert shown.stdout.strip() == thumbprint
    rig.vcenter.calls(anew=True)
    for bad in (
        {"ca_file": ""},  # the system's
        {"ca_file": "", "thumbprint": "00" * 32},
        {"host": "localhost.localdomain", "port": 1},
    ):
        rig.configure(vcenter=bad)
        tried = rig.sluice("connect")
        assert tried.returncode == 4, tried.stderr
        assert "Traceback" not in tried.stderr
    assert "Login" not in rig.vcenter.calls()
    rig.configure(vcenter={"ca_file": "", "thumbprint": with_colons})
    good = rig.sluice("connect", "-o", "json")
    assert good.returncode == 0, good.stderr
    assert thumbprint in good.stdout
    rig.configure(vcenter={"ca_file": "", "certificate": "any"})
    assert "not checked" in rig.sluice("connect").stdout


def test_a_wrong_password_is_told_and_not_hammered(rig: Rig) -> None:
    from adapter import secret

    secret(rig.credentials, "user = user\npassword = wr0ng-s3cret\n")
    tried = rig.sluice("connect")
    assert tried.returncode == 5
    assert "does not take user user" in tried.stderr
    rig.vcenter.calls(anew=True)
    rig.start()
    rig.wait_log("does not take user user")
    calls = rig.calls_within(4)
    assert calls.get("Login", 0) <= 1, "a locked account is worse than a late service"
    assert "wr0ng-s3cret" not in rig.log() + tried.stdout + tried.stderr
    rig.credentials.chmod(0o644)
    tried = rig.sluice("connect")
    assert tried.returncode == 2
    assert "chmod 600" in tried.stderr
    secret(rig.credentials, "user = user\nwr0ng-s3cret\n")
    tried = rig.sluice("connect")
    assert tried.returncode == 2
    assert "wr0ng-s3cret" not in tried.stderr


@contextlib.asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[None]:
    """The adapter, within the test."""
    service, line = rig.service()
    running = asyncio.create_task(service.run())
    try:
        yield
    finally:
        await service.stop()
        await running
        await line.close()


async def test_a_request_that_the_pool_cannot_meet_is_met_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adapter import Rig

    from sluice.hypervisor.vsphere import service

    monkeypatch.setattr(service, "REFUSED_SECONDS", 0.5)
    rig = Rig(tmp_path, pool={"node_timeout_seconds": 2})
    try:
        rig.plane.stop("server")
        vm = rig.vcenter.vm("DC0_H0_VM0")
        rig.vcenter.set_attribute(vm, "count=1")
        node = f"/nodes/{rig.plane.node}"
        wait_for(lambda: rig.plane.rest.get(node).json()["state"] == "lost")
        async with serving(rig):
            kind = "adapter.vsphere.client_refused"
            await asyncio.to_thread(
                wait_for, lambda: kind in {each["kind"] for each in rig.events(uuid(vm))}
            )
            await asyncio.to_thread(rig.plane.start_server)  # and nothing of the VM changes
            await asyncio.to_thread(wait_for, lambda: counts(rig).get(uuid(vm)) == 1)
    finally:
        rig.close()


async def test_a_stop_is_heard_by_a_wait_that_is_only_on_its_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.hypervisor.vsphere.inventory import Inventory

    on_its_way, go_on, cancelled = (threading.Event() for _ in range(3))
    wait, cancel = Inventory.wait, Inventory.cancel

    def late_wait(self: Inventory, seconds: int) -> set[str]:
        if self.vm_ids:  # the first one reads everything, and waits for nothing
            on_its_way.set()
            assert go_on.wait(30)
        return wait(self, seconds)

    def seen_cancel(self: Inventory) -> None:
        cancel(self)
        cancelled.set()

    monkeypatch.setattr(Inventory, "wait", late_wait)
    monkeypatch.setattr(Inventory, "cancel", seen_cancel)
    rig.configure(vcenter={"poll_seconds": 120})
    service, line = rig.service()
    running = asyncio.create_task(service.run())
    assert await asyncio.to_thread(on_its_way.wait, 30)
    stopping = asyncio.create_task(service.stop())
    assert await asyncio.to_thread(cancelled.wait, 30)
    go_on.set()
    await asyncio.wait_for(asyncio.gather(running, stopping), 60)
    await line.close()


def test_vms_that_vanish_all_at_once_are_not_taken_for_gone(rig: Rig, tmp_path: Path) -> None:
    for number in range(12):
        body = {"owner_kind": "vm", "owner": f"vm-{number}", "origin": "vsphere"}
        size = {"memory_mib": 1, "compute_percent": 1}
        assert rig.plane.rest.post("/reservations", json={**body, **size}).status_code == 201
    rig.start()
    rig.wait_log("nothing of them is removed")
    assert len(rig.reservations()) == 12
    rig.stop()
    rig.start("--accept-removals")
    wait_for(lambda: not rig.reservations())


def test_a_controller_that_is_asked_too_often_is_given_time(tmp_path: Path) -> None:
    from adapter import Rig

    rig = Rig(tmp_path, rate=2)
    try:
        for number in range(4):
            rig.vcenter.set_attribute(rig.vcenter.vm(f"DC0_C0_RP0_VM{number}"), "count=1")
        rig.start()
        keys = ["guestinfo.sluice.enrolment"]
        vms = [rig.vcenter.vm(f"DC0_C0_RP0_VM{number}") for number in range(4)]
        wait_for(lambda: all(rig.vcenter.extra(vm).get(k) for vm in vms for k in keys))
    finally:
        rig.close()
