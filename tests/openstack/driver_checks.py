# SPDX-License-Identifier: Apache-2.0
"""Holds the virt driver against the Nova that is importable; test_driver.py runs it there.

Prints one JSON object. Nova's own code makes the definition's XML; what is not there is a host.
"""

from __future__ import annotations

import inspect
import json
import socket
import sys
import threading
from types import SimpleNamespace

import nova.conf
from nova import exception, objects
from nova.virt import driver as virt_driver
from nova.virt.libvirt import config as guest_config
from nova.virt.libvirt import driver as libvirt_driver

CONF = nova.conf.CONF
UUID = "11111111-2222-3333-4444-555555555555"
ANSWER = {
    "devices": [f"<shmem name='sluice-{UUID}'><size unit='M'>256</size></shmem>"],
    "metadata": "<sluice:vgpu xmlns:sluice='https://sluice.dev/xmlns/libvirt/1' count='1'/>",
}


def answer_requests(path: str, asked: list[dict[str, object]], answer: dict[str, object]) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                asked.append(json.loads(connection.makefile().readline()))
                connection.sendall(json.dumps(answer).encode() + b"\n")

    threading.Thread(target=serve, daemon=True).start()


def empty_definition() -> guest_config.LibvirtConfigGuest:
    guest = guest_config.LibvirtConfigGuest()
    guest.virt_type, guest.name, guest.uuid = "qemu", "instance-1", UUID
    guest.memory, guest.os_type = 1 << 20, "hvm"
    return guest


def no_room(*_: object) -> None:
    raise exception.InstanceSuspendFailure(reason="no room for the image")


def main() -> None:
    folder = sys.argv[1]
    CONF([], project="nova", default_config_files=[])
    objects.register_all()
    from nova.virt import sluice

    ours, theirs = sluice.LibvirtDriver, libvirt_driver.LibvirtDriver
    assert issubclass(ours, virt_driver.ComputeDriver)
    leading = {
        name: list(inspect.signature(getattr(theirs, name)).parameters)[1:3]
        for name in (
            "_get_guest_config",
            "check_can_live_migrate_source",
            "update_provider_tree",
            "suspend",
        )
    }
    theirs._get_guest_config = lambda self, *args, **kwargs: empty_definition()
    theirs.suspend = lambda self, context, instance: instance.uuid
    theirs.check_can_live_migrate_source = lambda self, *args, **kwargs: "may migrate"
    driver = object.__new__(ours)

    def instance(specs: dict[str, str]) -> SimpleNamespace:
        return SimpleNamespace(uuid=UUID, flavor=SimpleNamespace(name="f", extra_specs=specs))

    vgpu = {"vgpu:memory_mib": "1024", "vgpu:compute": "25"}

    def refusal(call: object, *args: object) -> str:
        try:
            return f"no error: {call(*args)}"  # type: ignore[operator]
        except exception.NovaException as error:
            return f"{type(error).__name__}: {error}"

    CONF.set_override("server_socket", f"{folder}/none.sock", "sluice")
    absent = refusal(driver._get_guest_config, instance(vgpu))
    asked: list[dict[str, object]] = []
    answer_requests(f"{folder}/vms.sock", asked, ANSWER)
    CONF.set_override("server_socket", f"{folder}/vms.sock", "sluice")
    with_channel = driver._get_guest_config(instance(vgpu), None, None, {"mapping": {}})
    by_name = driver._get_guest_config(instance=instance(vgpu), network_info=None)
    without = driver._get_guest_config(instance({}), None, None, {})
    answer_requests(f"{folder}/busy.sock", [], {"sessions": ["train.py, slot 0"]})
    CONF.set_override("server_socket", f"{folder}/busy.sock", "sluice")
    busy = refusal(driver.suspend, None, instance(vgpu))
    idle: list[dict[str, object]] = []
    free = {"sessions": [], "unplugged": True, "problems": []}
    answer_requests(f"{folder}/idle.sock", idle, free)
    CONF.set_override("server_socket", f"{folder}/idle.sock", "sluice")
    suspended = (driver.suspend(None, instance(vgpu)), list(idle))
    theirs.suspend = no_room
    idle.clear()
    failed = (refusal(driver.suspend, None, instance(vgpu)), list(idle))
    answer_requests(f"{folder}/held.sock", [], {"sessions": [], "unplugged": False})
    CONF.set_override("server_socket", f"{folder}/held.sock", "sluice")
    held = refusal(driver.suspend, None, instance(vgpu))
    answer_requests(f"{folder}/no.sock", [], {"error": "region_mib: no room"})
    CONF.set_override("server_socket", f"{folder}/no.sock", "sluice")
    print(
        json.dumps(
            {
                "file": libvirt_driver.__file__,
                "leading": leading,
                "absent": absent,
                "asked": asked,
                "xml": with_channel.to_xml(),
                "by_name": by_name.to_xml(),
                "plain": without.to_xml(),
                "refused": refusal(driver._get_guest_config, instance(vgpu)),
                "invalid": refusal(driver._get_guest_config, instance({"vgpu:compute": "x"})),
                "migrate": refusal(driver.check_can_live_migrate_source, None, instance(vgpu)),
                "busy": busy,
                "suspended": suspended,
                "failed": failed,
                "held": held,
                "migrate_plain": driver.check_can_live_migrate_source(None, instance({}), {}),
            }
        )
    )


if __name__ == "__main__":
    main()
