# SPDX-License-Identifier: Apache-2.0
"""The vCenter's inventory, followed by the property collector: what is needed of it, and changes.

Used by service.py and the commands. One filter over one container view names the property paths
that Sluice reads and no others; WaitForUpdatesEx brings what is there first and then only what
changes, version by version, in parts where there is much (truncated sets). A VM's devices are by
far the largest of its properties and few VMs hold a GPU, so what concerns pool VMs only is not
followed: it is read where a VM is on a host with GPUs, and its configuration has changed. It owns
its collector, which ends with the session: a new session begins with a new Inventory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pyVmomi import vim, vmodl

from sluice.hypervisor.vsphere.connection import Vcenter
from sluice.hypervisor.vsphere.model import NVIDIA, Host, HostGpu, PassedThrough, Vm

PATHS: dict[Any, tuple[str, ...]] = {
    vim.VirtualMachine: (
        "name",
        "parent",
        "resourcePool",
        "config.instanceUuid",
        "config.template",
        "config.hardware.memoryMB",
        "config.changeVersion",
        "config.extraConfig",
        "customValue",
        "runtime.powerState",
        "runtime.host",
    ),
    vim.HostSystem: (
        "name",
        "config.pciPassthruInfo",
        "config.graphicsInfo",
        "hardware.pciDevice",
        "runtime.connectionState",
        "runtime.inMaintenanceMode",
    ),
    vim.Folder: ("name", "parent"),
    vim.Datacenter: ("name", "parent"),
    vim.ComputeResource: ("name", "parent"),
    vim.ResourcePool: ("name", "parent"),
}
OF_POOL_VMS = (  # read where a VM is on a host with GPUs, and has changed
    "config.hardware.device",
    "config.memoryAllocation.reservation",
    "config.memoryReservationLockedToMax",
)
KEYED = re.compile(r'^(?P<path>.+)\["?(?P<key>[^"\]]*)"?\](?P<rest>.*)$')
EXTRA = ("guestinfo.sluice.", "pciPassthru.")
DISPLAY = 0x03  # the PCI class of GPUs
LOOPS = 64  # as deep as folders can be; a loop is nothing that vCenter has


class Inventory:
    """Hosts and VMs as they are; wait() brings them up to date."""

    def __init__(self, vcenter: Vcenter) -> None:
        """Makes the filter; raises VsphereError."""
        self._vcenter = vcenter
        self._version = ""
        self._raw: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, type] = {}
        self._objects: dict[str, Any] = {}
        self._fields: dict[int, str] = {}
        self._of_pool_vms: dict[str, dict[str, Any]] = {}  # OF_POOL_VMS, and of which version
        self._vms: dict[str, Vm] = {}
        self._hosts: dict[str, Host] = {}
        self.tags: dict[str, str] = {}  # of VMs by their ids, set by whoever reads tags
        with vcenter.errors():
            self._collector = vcenter.content.propertyCollector.CreatePropertyCollector()
            self._make_filter()

    def _make_filter(self) -> None:
        content, kinds = self._vcenter.content, vmodl.query.PropertyCollector
        view = content.viewManager.CreateContainerView(content.rootFolder, list(PATHS), True)
        inside = kinds.TraversalSpec(name="inside", path="view", skip=False, type=type(view))
        of_view = kinds.ObjectSpec(obj=view, skip=True, selectSet=[inside])
        objects = [of_view, kinds.ObjectSpec(obj=content.rootFolder)]
        properties = [kinds.PropertySpec(type=kind, pathSet=list(p)) for kind, p in PATHS.items()]
        if content.customFieldsManager:
            objects.append(kinds.ObjectSpec(obj=content.customFieldsManager))
            fields = kinds.PropertySpec(type=vim.CustomFieldsManager, pathSet=["field"])
            properties.append(fields)
        spec = kinds.FilterSpec(objectSet=objects, propSet=properties)
        self._collector.CreateFilter(spec, partialUpdates=False)

    def wait(self, seconds: int) -> set[str]:
        """Waits so long for changes; returns the ids of the VMs and hosts that changed or went."""
        options = vmodl.query.PropertyCollector.WaitOptions(maxWaitSeconds=seconds)
        changed: set[str] = set()
        is_first, more = not self._version, True
        while more:
            try:
                with self._vcenter.errors():
                    update = self._collector.WaitForUpdatesEx(self._version, options)
            except vmodl.fault.ManagedObjectNotFound:
                # The collector is the session's, and went with it in the midst of the wait.
                raise self._vcenter.session_lost() from None
            if update is None:
                break
            self._version = update.version
            for part in update.filterSet:
                for each in part.objectSet:
                    changed |= self._apply(each)
            # the next part of a set that is too large is there already: no wait for it
            more = bool(update.truncated)
        everything = self.vm_ids | self.host_ids
        self._learn_fields(everything if is_first else changed)
        # a host that has GPUs now may have had VMs before
        hosts = changed & self.host_ids
        moved = {i for i in self.vm_ids if _id(self._raw[i].get("runtime.host")) in hosts}
        changed |= self._read_devices(everything if is_first else changed | moved)
        return everything if is_first else changed

    def cancel(self) -> None:
        """Ends a wait that another thread is in."""
        self._collector.CancelWaitForUpdates()

    # what there is

    @property
    def vm_ids(self) -> set[str]:
        """Every VM's id."""
        return {i for i, kind in self._kinds.items() if issubclass(kind, vim.VirtualMachine)}

    @property
    def host_ids(self) -> set[str]:
        """Every host's id."""
        return {i for i, kind in self._kinds.items() if issubclass(kind, vim.HostSystem)}

    def vm(self, vm_id: str) -> Vm | None:
        """A VM; None if it is gone, or vCenter does not show its configuration (yet)."""
        if vm_id not in self._vms and vm_id in self._raw:
            raw = self._raw[vm_id]
            if not raw.get("config.instanceUuid"):
                return None  # it is being made, or its files cannot be reached
            self._vms[vm_id] = self._make_vm(vm_id, raw)
        return self._vms.get(vm_id)

    def vms(self) -> list[Vm]:
        """Every VM."""
        return [vm for vm_id in self.vm_ids if (vm := self.vm(vm_id))]

    def host(self, host_id: str) -> Host | None:
        """A host."""
        if host_id not in self._hosts and host_id in self.host_ids:
            self._hosts[host_id] = _make_host(host_id, self._raw[host_id])
        return self._hosts.get(host_id)

    def hosts(self) -> list[Host]:
        """Every host."""
        return [host for host_id in self.host_ids if (host := self.host(host_id))]

    def object(self, vm_id: str) -> Any:
        """vSphere's own object, to change it."""
        return self._objects[vm_id]

    def set_tags(self, tags: Mapping[str, str]) -> set[str]:
        """Tags by VM as they were read; returns the ids of VMs whose tag is another one now."""
        changed = {i for i in self.tags.keys() | tags.keys() if self.tags.get(i) != tags.get(i)}
        self.tags = dict(tags)
        for vm_id in changed:
            self._vms.pop(vm_id, None)
        return changed & self.vm_ids

    # what is not followed

    def _learn_fields(self, ids: set[str]) -> None:
        """Names of custom attributes that were defined after their list was sent."""
        unknown = any(
            value.key not in self._fields
            for vm_id in ids
            for value in self._raw.get(vm_id, {}).get("customValue") or ()
        )
        manager = self._vcenter.content.customFieldsManager
        if unknown and manager:
            with self._vcenter.errors():
                self._fields = {each.key: each.name for each in manager.field or ()}
            self._vms.clear()

    def _read_devices(self, ids: set[str]) -> set[str]:
        """Reads passed-through devices of those VMs that may have other ones now, in one call."""
        wanted: dict[str, str] = {}
        for vm_id in ids & self.vm_ids:
            raw = self._raw[vm_id]
            host = self.host(_id(raw.get("runtime.host")))
            version = f"{raw.get('config.changeVersion')} {raw.get('runtime.powerState')}"
            if not (host and host.gpus):
                if self._of_pool_vms.pop(vm_id, None):
                    self._vms.pop(vm_id, None)
            elif self._of_pool_vms.get(vm_id, {}).get("version") != version:
                wanted[vm_id] = version
        if not wanted:
            return set()
        kinds = vmodl.query.PropertyCollector
        spec = kinds.FilterSpec(
            objectSet=[kinds.ObjectSpec(obj=self._objects[vm_id]) for vm_id in wanted],
            propSet=[kinds.PropertySpec(type=vim.VirtualMachine, pathSet=list(OF_POOL_VMS))],
            reportMissingObjectsInResults=True,
        )
        changed: set[str] = set()
        with self._vcenter.errors():
            answer = self._collector.RetrievePropertiesEx([spec], kinds.RetrieveOptions())
            while answer:
                for each in answer.objects:
                    vm_id = str(each.obj._moId)
                    found = {one.name: one.val for one in each.propSet}
                    devices = found.get("config.hardware.device") or ()
                    found["config.hardware.device"] = tuple(_passed_through(devices))
                    found["version"] = wanted[vm_id]
                    self._of_pool_vms[vm_id] = found
                    self._vms.pop(vm_id, None)
                    changed.add(vm_id)
                more = answer.token
                answer = self._collector.ContinueRetrievePropertiesEx(more) if more else None
        return changed

    # changes

    def _apply(self, update: Any) -> set[str]:
        name = str(update.obj._moId)
        kind = type(update.obj)
        if update.kind == "leave":
            was_shown = name in self._kinds
            known = (
                self._raw,
                self._kinds,
                self._objects,
                self._vms,
                self._hosts,
                self._of_pool_vms,
            )
            for where in known:
                where.pop(name, None)
            return {name} if was_shown else set()
        raw = self._raw.setdefault(name, {})
        self._kinds[name], self._objects[name] = kind, update.obj
        for change in update.changeSet:
            apply_change(raw, change.name, change.op, change.val)
        for missing in update.missingSet or ():
            raw.setdefault(missing.path, None)  # vCenter may not or cannot show it
        if issubclass(kind, vim.CustomFieldsManager):
            self._fields = {each.key: each.name for each in raw.get("field") or ()}
            self._vms.clear()
            return self.vm_ids
        if issubclass(kind, vim.VirtualMachine):
            self._vms.pop(name, None)
            return {name}
        if issubclass(kind, vim.HostSystem):
            self._hosts.pop(name, None)
            return {name}
        self._vms.clear()  # a folder or pool was renamed or moved: paths are others
        return self.vm_ids

    def _make_vm(self, vm_id: str, raw: Mapping[str, Any]) -> Vm:
        memory = int(raw.get("config.hardware.memoryMB") or 0)
        more = self._of_pool_vms.get(vm_id, {})
        locked = bool(more.get("config.memoryReservationLockedToMax"))
        reserved = int(more.get("config.memoryAllocation.reservation") or 0)
        extra = {
            str(option.key): str(option.value)
            for option in raw.get("config.extraConfig") or ()
            if str(option.key).startswith(EXTRA)
        }
        attributes = {
            self._fields[value.key]: str(value.value)
            for value in raw.get("customValue") or ()
            if value.key in self._fields and getattr(value, "value", None) is not None
        }
        return Vm(
            id=vm_id,
            name=str(raw.get("name") or vm_id),
            instance_uuid=str(raw["config.instanceUuid"]).lower(),
            is_template=bool(raw.get("config.template")),
            is_on=raw.get("runtime.powerState") == "poweredOn",
            host=_id(raw.get("runtime.host")),
            folder=self._path(_id(raw.get("parent"))),
            resource_pool=self._path(_id(raw.get("resourcePool"))),
            memory_mib=memory,
            reserved_mib=memory if locked else reserved,
            devices=more.get("config.hardware.device", ()),
            attributes=attributes,
            extra=extra,
            tag=self.tags.get(vm_id, ""),
        )

    def _path(self, name: str) -> str:
        """Names from the top down, without the root folder's."""
        parts: list[str] = []
        while name in self._raw and len(parts) < LOOPS:
            raw = self._raw[name]
            parent = _id(raw.get("parent"))
            if parent:
                parts.append(str(raw.get("name") or name))
            name = parent
        return "/".join(reversed(parts))


def apply_change(raw: dict[str, Any], path: str, op: str, value: Any) -> None:
    """One change of a property: whole (`a.b`), or of one element of a list (`a.b["key"]`)."""
    if not (found := KEYED.match(path)):
        raw[path] = None if op in ("remove", "indirectRemove") else value
        return
    whole, key = found["path"], found["key"]
    if found["rest"]:
        return  # of one field within an element: nothing that is read here
    kept = [each for each in raw.get(whole) or () if str(getattr(each, "key", "")) != key]
    if op in ("add", "assign") and value is not None:
        kept.append(value)
    raw[whole] = kept


def _id(reference: Any) -> str:
    return str(reference._moId) if reference is not None else ""


def _passed_through(devices: Iterable[Any]) -> Iterable[PassedThrough]:
    kind = vim.vm.device.VirtualPCIPassthrough
    for device in devices:
        if not isinstance(device, kind):
            continue
        backing = device.backing
        if isinstance(backing, kind.DynamicBackingInfo):
            cards = (
                (each.vendorId & 0xFFFF, each.deviceId & 0xFFFF) for each in backing.allowedDevice
            )
            yield PassedThrough(device.key, "dynamic", backing.assignedId or "", tuple(cards))
        elif isinstance(backing, kind.DeviceBackingInfo):
            # vSphere has PCI ids as signed 16-bit numbers
            yield PassedThrough(
                device.key, "static", backing.id or "", vendor_id=(backing.vendorId or 0) & 0xFFFF
            )


def _make_host(host_id: str, raw: Mapping[str, Any]) -> Host:
    passed = {each.id: each for each in raw.get("config.pciPassthruInfo") or ()}
    memory = {
        each.pciId: int((each.memorySizeInKB or 0) // 1024)
        for each in raw.get("config.graphicsInfo") or ()
    }
    gpus = tuple(
        HostGpu(
            pci_address=device.id,
            device_id=device.deviceId & 0xFFFF,
            name=f"{device.vendorName} {device.deviceName}".removeprefix("NVIDIA Corporation "),
            memory_mib=memory.get(device.id, 0),
            is_active=bool(passed[device.id].passthruActive) if device.id in passed else False,
        )
        for device in raw.get("hardware.pciDevice") or ()
        if device.vendorId & 0xFFFF == NVIDIA and (device.classId & 0xFFFF) >> 8 == DISPLAY
    )
    return Host(
        id=host_id,
        name=str(raw.get("name") or host_id),
        connected=raw.get("runtime.connectionState") == "connected",
        in_maintenance=bool(raw.get("runtime.inMaintenanceMode")),
        gpus=gpus,
    )
