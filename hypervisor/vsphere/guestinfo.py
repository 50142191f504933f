# SPDX-License-Identifier: Apache-2.0
"""`guestinfo.sluice.*`: what a VM is told, where its guest reads it with VMware's tools.

Used by clients.py and pool_vms.py. Any user of the guest can read these keys and the guest can set
them, so they hold no lasting secret, and nothing that stands there is believed. It promises that a
VM is reconfigured only if a key is not as wanted, and that a guest which sets keys back again and
again cannot make us reconfigure it without end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pyVmomi import vim, vmodl

from sluice.hypervisor.vsphere.connection import Vcenter
from sluice.hypervisor.vsphere.errors import VsphereError
from sluice.hypervisor.vsphere.model import Vm

PREFIX = "guestinfo.sluice."
MOST_WRITES, WITHIN_SECONDS = 20, 60.0

Values = Mapping[str, str]  # keys without the prefix; an empty value: the key is not wanted


class TooOften(VsphereError):
    """The VM's keys are set back again and again; it is left alone for a while."""


class GuestInfo:
    """Writes VMs' keys."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._writes: dict[str, deque[float]] = {}

    def differences(self, vm: Vm, wanted: Values) -> dict[str, str]:
        """What has to be written so that the keys are as wanted; others are left alone."""
        return {
            key: value for key, value in wanted.items() if vm.extra.get(PREFIX + key, "") != value
        }

    def write(self, vcenter: Vcenter, vm: Vm, target: Any, values: Values) -> None:
        """Writes keys of a VM, whose object is the target; blocks. Raises VsphereError."""
        now = self._monotonic()
        times = self._writes.setdefault(vm.id, deque(maxlen=MOST_WRITES))
        if len(times) == MOST_WRITES and now - times[0] < WITHIN_SECONDS:
            raise TooOften(
                f"VM {vm.name}: {PREFIX}* was written {MOST_WRITES} times within "
                f"{WITHIN_SECONDS:g} s and is not as wanted; see what in the guest sets it back"
            )
        times.append(now)
        options = [
            vim.option.OptionValue(key=PREFIX + key, value=value) for key, value in values.items()
        ]
        try:
            with vcenter.errors():
                vcenter.wait(target.ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=options)))
        except vmodl.fault.ManagedObjectNotFound:
            return  # it was deleted meanwhile, which is the next thing that we hear
        except vmodl.MethodFault as fault:
            why = getattr(fault, "msg", None) or type(fault).__name__
            raise VsphereError(f"VM {vm.name} cannot be reconfigured: {why}") from None

    def forget(self, vm_id: str) -> None:
        """The VM is gone."""
        self._writes.pop(vm_id, None)


def own_keys(vm: Vm) -> list[str]:
    """The keys of ours that a VM has, without the prefix."""
    return [key.removeprefix(PREFIX) for key, value in vm.extra.items() if _is_set(key, value)]


def _is_set(key: str, value: str) -> bool:
    return key.startswith(PREFIX) and value != ""


def value_of(vm: Vm, key: str) -> str:
    """One key's value; empty: it is not set."""
    return vm.extra.get(PREFIX + key, "")
