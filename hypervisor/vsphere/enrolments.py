# SPDX-License-Identifier: Apache-2.0
"""The controller's enrolments that are this adapter's: known here so that nothing is asked twice.

Used by clients.py and pool_vms.py. An enrolment's name carries the adapter's name and the VM's
instance UUID, so a service that starts anew finds its own. A list is read at the start and at each
resync; in between, an open one is looked at again only when its VM has changed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sluice.hypervisor.vsphere.batched_calls import BatchedCalls
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.errors import ControllerRefused
from sluice.hypervisor.vsphere.guestinfo import value_of
from sluice.hypervisor.vsphere.model import Vm

Enrolment = dict[str, Any]


class Enrolments:
    """Of tenants or of nodes, by the VM's instance UUID; one each."""

    def __init__(self, line: ControllerLine, origin: str, role: str) -> None:
        self._line = line
        self._calls = BatchedCalls(line, "enrolment")
        self._prefix = f"{origin} "
        self._role = role
        self.by_vm: dict[str, Enrolment] = {}

    def take(self, listed: list[Enrolment]) -> list[Enrolment]:
        """Takes in the controller's list; returns what is superfluous."""
        self.by_vm, extra = {}, []
        for each in listed:
            if each["role"] != self._role or not each["name"].startswith(self._prefix):
                continue
            uuid = each["name"].removeprefix(self._prefix)
            if uuid in self.by_vm:
                extra.append(self.by_vm[uuid])
            self.by_vm[uuid] = each
        return extra

    async def load(self, listed: list[Enrolment]) -> None:
        """Takes in the controller's list; what is superfluous is withdrawn."""
        for each in self.take(listed):
            await self._calls.remove("withdraw", each["id"])

    async def current(self, vm: Vm) -> Enrolment | None:
        """The VM's, with its state as it is now: it may have been used or renewed meanwhile."""
        known = self.by_vm.get(vm.instance_uuid)
        if known is None:
            return None
        if known["state"] == "used" and value_of(vm, "enrolment_id") == known["id"]:
            return known  # else an operator may have renewed it, or the guest has set keys
        if self.is_waiting(vm, known):
            return known  # as far as can be told it lies there unread
        now: Enrolment | None = None
        try:
            now = await self._line.get(f"/enrolments/{known['id']}")
        except ControllerRefused as refused:
            if refused.status != 404:
                raise
        if now is None or now["state"] in ("expired", "withdrawn"):
            self.by_vm.pop(vm.instance_uuid, None)
            return None
        self.by_vm[vm.instance_uuid] = now
        return now

    def is_waiting(self, vm: Vm, known: Enrolment) -> bool:
        """Whether it is open and its secret lies in the VM's guestinfo."""
        is_there = value_of(vm, "enrolment_id") == known["id"] and value_of(vm, "enrolment") != ""
        in_time = datetime.fromisoformat(known["expires"]) > datetime.now(UTC)
        return known["state"] == "open" and is_there and in_time

    async def make(self, uuid: str, seconds: int, **request: Any) -> dict[str, str]:
        """A new one, as keys of guestinfo; the secret is kept nowhere else."""
        body = {
            "role": self._role,
            "name": self._prefix + uuid,
            "expires_seconds": seconds,
            **request,
        }
        made = await self._calls.ask("create", **body)
        secret = str(made.pop("secret"))
        self.by_vm[uuid] = made
        return {"enrolment": secret, "enrolment_id": str(made["id"])}

    async def withdraw(self, uuid: str) -> None:
        """The VM's is over, and its token revoked."""
        if known := self.by_vm.get(uuid):
            await self._calls.remove("withdraw", known["id"])
            self.by_vm.pop(uuid, None)
