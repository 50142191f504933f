# SPDX-License-Identifier: Apache-2.0
"""VMs of the simulated vCenter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapter import Rig


def uuid(vm: Any) -> str:
    return str(vm.config.instanceUuid)


def make_fit(rig: Rig, vm: Any, *, dynamic: bool = False, mmio_gb: int = 128) -> None:
    """All that pool_checks asks for."""
    rig.vcenter.set_extra(
        vm,
        pciPassthru__use64bitMMIO="TRUE",
        pciPassthru__64bitMMIOSizeGB=str(mmio_gb),
    )
    rig.vcenter.reconfigure(vm, memoryReservationLockedToMax=True)
    rig.vcenter.give_gpu(vm, dynamic=dynamic)
