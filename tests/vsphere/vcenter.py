# SPDX-License-Identifier: Apache-2.0
"""A simulated vCenter in a process of its own, and what an administrator does to it.

Used by tests/vsphere. A Vcenter owns its process; it speaks TLS with a certificate of a CA made for
the test. Everything that a vSphere client can do goes through vCenter's own API, by pyvmomi, with a
session of the administrator's own.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
from free_ports import free_port
from pool_certificates import PoolCa
from pyVim.connect import SmartConnect
from pyVmomi import vim, vmodl

SIMULATOR = Path(__file__).resolve().parents[2] / "build" / "vsphere-simulator"
USER, PASSWORD = "user", "pass"
NVIDIA, H100 = 0x10DE, 0x2330


class Vcenter:
    """One vCenter; close() ends it."""

    def __init__(
        self,
        folder: Path,
        machines: int = 4,
        *,
        pools: int = 0,
        gpus: int = 2,
        off: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = PoolCa(folder)
        self.port, control = free_port(), free_port()
        self._control = f"http://127.0.0.1:{control}"
        pair = self.ca.issue("vcenter", "127.0.0.1", "localhost")
        self.certificate = pair.cert
        self.process = subprocess.Popen(
            [
                str(SIMULATOR),
                *("-listen", f"127.0.0.1:{self.port}", "-control", f"127.0.0.1:{control}"),
                *("-cert", str(pair.cert), "-key", str(pair.key)),
                *("-machines", str(machines), "-pools", str(pools), "-gpus", str(gpus)),
                *(["-off"] if off else []),
            ],
            stdout=subprocess.PIPE,
            stderr=(folder / "simulator.err").open("wb"),
            text=True,
        )
        assert self.process.stdout
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError((folder / "simulator.err").read_text())
        self._log_in()

    def _log_in(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self.instance = SmartConnect(
                    host="127.0.0.1",
                    port=self.port,
                    user=USER,
                    pwd=PASSWORD,
                    disableSslCertValidation=True,
                )
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.content = self.instance.RetrieveContent()

    def close(self) -> None:
        """Ends the process."""
        self.process.terminate()
        self.process.wait(60)

    # what a vCenter does by itself

    def expire_sessions(self) -> None:
        """Nobody is logged in any more, the administrator excepted, who logs in anew."""
        httpx.post(f"{self._control}/expire", timeout=60)
        self._log_in()

    def restart(self, milliseconds: int = 500) -> None:
        """It goes away, sessions and connections with it, and comes back with its inventory."""
        httpx.post(f"{self._control}/restart", params={"milliseconds": milliseconds}, timeout=60)
        self._log_in()

    def calls(self, *, anew: bool = False) -> dict[str, int]:
        """How often each method was called by anybody; with anew, counting starts over."""
        answer = httpx.request("POST" if anew else "GET", f"{self._control}/calls", timeout=60)
        found: dict[str, int] = answer.json()
        return found

    # what an administrator does

    def all(self, kind: Any) -> list[Any]:
        """Every object of a kind."""
        view = self.content.viewManager.CreateContainerView(self.content.rootFolder, [kind], True)
        found = list(view.view)
        view.Destroy()
        return found

    def vm(self, name: str) -> Any:
        """One VM."""
        found = self.content.searchIndex.FindByInventoryPath(f"DC0/vm/{name}")
        assert found, name
        return found

    def wait(self, task: Any) -> Any:
        """A task's result."""
        while task.info.state not in ("success", "error"):
            time.sleep(0.01)
        if task.info.state == "error":
            raise task.info.error
        return task.info.result

    def reconfigure(self, vm: Any, **changes: Any) -> None:
        """Changes a VM's configuration."""
        self.wait(vm.ReconfigVM_Task(vim.vm.ConfigSpec(**changes)))

    def set_extra(self, vm: Any, **values: str) -> None:
        """Sets extraConfig; `__` in a name stands for a dot."""
        options = [
            vim.option.OptionValue(key=name.replace("__", "."), value=value)
            for name, value in values.items()
        ]
        self.reconfigure(vm, extraConfig=options)

    def extra(self, vm: Any) -> dict[str, str]:
        """Its extraConfig, as the guest's tools would see guestinfo."""
        return {option.key: option.value for option in vm.config.extraConfig}

    def set_attribute(self, vm: Any, value: str, name: str = "Sluice") -> None:
        """Sets a custom attribute; its definition is made if there is none."""
        fields = self.content.customFieldsManager
        known = {field.name: field.key for field in fields.field}
        if name not in known:
            known[name] = fields.AddCustomFieldDef(name=name, moType=vim.VirtualMachine).key
        fields.SetField(vm, known[name], value)

    def give_gpu(self, vm: Any, *, dynamic: bool = False, pci: str = "0000:3b:00.0") -> None:
        """Adds a passed-through GPU, by its address or by DirectPath I/O's dynamic choice."""
        kind = vim.vm.device.VirtualPCIPassthrough
        backing = (
            kind.DynamicBackingInfo(
                allowedDevice=[kind.AllowedDevice(vendorId=NVIDIA, deviceId=H100)],
                customLabel="h100",
                assignedId="",
            )
            if dynamic
            else kind.DeviceBackingInfo(
                id=pci, deviceId=f"{H100:x}", systemId="system", vendorId=NVIDIA
            )
        )
        change = vim.vm.device.VirtualDeviceSpec(
            operation="add", device=kind(key=-1, backing=backing)
        )
        self.reconfigure(vm, deviceChange=[change])

    def take_gpu(self, vm: Any) -> None:
        """Removes every passed-through device."""
        kind = vim.vm.device.VirtualPCIPassthrough
        self.reconfigure(
            vm,
            deviceChange=[
                vim.vm.device.VirtualDeviceSpec(operation="remove", device=device)
                for device in vm.config.hardware.device
                if isinstance(device, kind)
            ],
        )

    def power(self, vm: Any, *, on: bool) -> None:
        """Switches it on or off."""
        self.wait(vm.PowerOnVM_Task() if on else vm.PowerOffVM_Task())

    def destroy(self, vm: Any) -> None:
        """Switches it off and deletes it."""
        if vm.runtime.powerState == "poweredOn":
            self.power(vm, on=False)
        self.wait(vm.Destroy_Task())

    def migrate(self, vm: Any) -> Any:
        """Moves it to another host of its cluster, which is returned."""
        hosts = [host for host in vm.runtime.host.parent.host if host != vm.runtime.host]
        spec = vim.vm.RelocateSpec(host=hosts[0])
        self.wait(vm.RelocateVM_Task(spec))
        return hosts[0]

    # tags, which have an API of their own

    def tag(self, vm: Any, tag: str, category: str = "Sluice") -> None:
        """Attaches a tag of a category; both are made if there are none."""
        rest = httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}/rest/com/vmware/cis", verify=False
        )
        session = rest.post("/session", auth=(USER, PASSWORD)).json()["value"]
        rest.headers["vmware-api-session-id"] = session
        category_id = self._made(
            rest,
            "category",
            category,
            {"cardinality": "SINGLE", "associable_types": ["VirtualMachine"]},
        )
        tag_id = self._made(rest, "tag", tag, {"category_id": category_id})
        rest.post(
            f"/tagging/tag-association/id:{tag_id}",
            params={"~action": "attach"},
            json={"object_id": {"type": "VirtualMachine", "id": vm._moId}},
        ).raise_for_status()

    def _made(self, rest: httpx.Client, kind: str, name: str, more: dict[str, Any]) -> str:
        for identity in rest.get(f"/tagging/{kind}").json()["value"] or ():
            found = rest.get(f"/tagging/{kind}/id:{identity}").json()["value"]
            if found["name"] == name and found.get("category_id") == more.get("category_id"):
                return str(identity)
        spec = {"create_spec": {"name": name, "description": "", **more}}
        return str(rest.post(f"/tagging/{kind}", json=spec).json()["value"])


def is_gone(error: BaseException) -> bool:
    """Whether an object was asked for that is no more."""
    return isinstance(error, vmodl.fault.ManagedObjectNotFound)
