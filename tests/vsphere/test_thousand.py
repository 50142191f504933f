# SPDX-License-Identifier: Apache-2.0
"""A thousand client VMs of one vCenter: what a pass costs, and that quiet is quiet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from adapter import Rig

    from sluice.hypervisor.vsphere.model import Vm

pytestmark = pytest.mark.vsphere

VMS = 1000


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Rig]:
    from adapter import Rig

    # powered off: the simulator's property collector goes through every VM for each change, so that
    # a thousand keys written into guests would measure the simulator
    made = Rig(tmp_path, machines=VMS // 2, gpus=0, off=True)
    try:
        yield made
    finally:
        made.close()


async def test_a_thousand_clients(large: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    from pyVmomi import vim

    from sluice.hypervisor.vsphere.batched_calls import MOST_ITEMS

    for vm in large.vcenter.all(vim.VirtualMachine):
        large.vcenter.set_attribute(vm, "count=1 memory=1 compute=1")
    large.configure(vcenter={"poll_seconds": 1}, clients={"memory_mib": 1, "compute_percent": 1})
    service, line = large.service()
    took: list[tuple[float, int]] = []
    look = service._reconcile

    async def timed(inventory: object, ids: set[str]) -> None:
        began, calls = time.monotonic(), line.calls
        await look(inventory, ids)  # type: ignore[arg-type]
        took.append((time.monotonic() - began, line.calls - calls))

    service._reconcile = timed  # type: ignore[assignment, method-assign]
    task = asyncio.create_task(service.run())
    while len(took) < 3:
        assert not task.done()
        await asyncio.sleep(0.1)
    assert len(large.reservations()) == VMS
    # everything is compared once more, as after a restart of either side
    service._resync_at = 0.0
    passes, before = len(took), line.calls
    began = time.monotonic()
    while len(took) < passes + 2:
        await asyncio.sleep(0.02)
    again = max(seconds for seconds, _ in took[passes:])
    resync_calls = line.calls - before
    quiet = took[-1][1]
    await service.stop()
    await asyncio.wait_for(task, 30)
    await line.close()
    with capsys.disabled():
        print(
            f"\n{VMS} client VMs: first pass {took[0][0]:.2f} s and {took[0][1]} calls of the "
            f"controller; a pass over all when nothing changed {again:.3f} s, with "
            f"{resync_calls} calls to read its lists, {quiet} when nothing is due "
            f"({time.monotonic() - began:.1f} s in all)"
        )
    assert took[0][1] == VMS // MOST_ITEMS, "what is new is asked for in as few calls as it takes"
    assert resync_calls <= 6
    assert quiet == 0


async def test_secrets_are_made_when_they_are_about_to_be_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are good for minutes, as long as vCenter may take for all: few wait for it at a time."""
    from pyVmomi import vim

    from sluice.hypervisor.vsphere import service as service_module

    monkeypatch.setattr(service_module, "TOLD_AT_ONCE", 3)
    machines = rig.vcenter.all(vim.VirtualMachine)
    assert len(machines) == 8
    for vm in machines:
        rig.vcenter.set_attribute(vm, "count=1 memory=1 compute=1")
    service, line = rig.service()
    write, written, untold, calls = service.clients._write, 0, [0], [0]

    async def watched(vm: Vm, values: dict[str, str]) -> None:
        nonlocal written
        untold.append(len(service.clients.enrolments.by_vm) - written)
        await write(vm, values)
        written += 1
        calls.append(line.calls)

    service.clients._write = watched
    task = asyncio.create_task(service.run())
    while written < len(machines):
        assert not task.done()
        await asyncio.sleep(0.05)
    assert max(untold) == 3
    lists, reservations, enrolments = 2, 1, 3
    assert calls[len(machines)] == lists + reservations + enrolments
    await service.stop()
    await asyncio.wait_for(task, 60)
    await line.close()
    assert [each["state"] for each in rig.enrolments()] == ["open"] * len(machines)
