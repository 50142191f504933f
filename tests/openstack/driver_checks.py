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
    "devices": [],
    "metadata": "<sluice:vgpu xmlns:sluice='https://sluice.dev/xmlns/libvirt/1' count='1'/>",
}


#: Of a server of 0.1.0.
OLDER_ANSWER = {
    **ANSWER,
    "devices": [f"<shmem name='sluice-{UUID}'><size unit='M'>256</size></shmem>"],
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


class FakeGuests:
    """A libvirt that defines and starts, and what happens meanwhile, in order."""

    def __init__(self, driver: object) -> None:
        self.done: list[object] = []
        libvirt_driver.libvirt_guest = SimpleNamespace(Guest=self)
        powers = SimpleNamespace(power_up_for_instance=lambda _: None)
        driver._host, driver.cpu_api = None, powers  # type: ignore[attr-defined]

    def create(self, xml: str, host: object) -> object:
        self.done.append("define")
        return self

    def launch(self, pause: bool = False) -> None:
        self.done.append("start")


def no_room(*_: object) -> None:
    raise exception.InstanceSuspendFailure(reason="no room for the image")


def create_guests(
    folder: str, driver: object, instance: object, definitions: dict[str, object]
) -> dict[str, object]:
    """What Nova's own `_create_guest` does with each definition, and where the server refuses."""
    guests = FakeGuests(driver)
    answer_requests(f"{folder}/ready.sock", guests.done, {"ready": True})
    answer_requests(f"{folder}/unready.sock", guests.done, {"error": "no free slot"})
    found: dict[str, object] = {}

    def create(socket_name: str, guest: object) -> list[object]:
        CONF.set_override("server_socket", f"{folder}/{socket_name}", "sluice")
        guests.done.clear()
        xml = guest.to_xml()  # type: ignore[attr-defined]
        drive = lambda: guests.done.append("config drive")  # noqa: E731
        try:
            driver._create_guest(  # type: ignore[attr-defined]
                None, xml, instance, pause=False, power_on=True, post_xml_callback=drive
            )
        except exception.NovaException as error:
            guests.done.append(f"{type(error).__name__}: {error}")
        return list(guests.done)

    for name, guest in definitions.items():
        found[name] = create("ready.sock", guest)
    found["refused"] = create("unready.sock", definitions["ours"])
    CONF.set_override("server_seconds", 1, "sluice")
    found["absent"] = create("none.sock", definitions["ours"])
    CONF.clear_override("server_seconds", "sluice")
    guests.done.clear()
    CONF.set_override("server_socket", f"{folder}/ready.sock", "sluice")
    driver._create_guest(None, definitions["ours"].to_xml(), instance, power_on=False)  # type: ignore[attr-defined]
    found["off"] = list(guests.done)
    return found


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
    creates = inspect.signature(theirs._create_guest).parameters
    leading["_create_guest"] = list(creates)[1:4]
    callback = creates["post_xml_callback"].default
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
    answer_requests(f"{folder}/older.sock", [], OLDER_ANSWER)
    CONF.set_override("server_socket", f"{folder}/older.sock", "sluice")
    by_older = driver._get_guest_config(instance(vgpu), None, None, {})
    created = create_guests(
        folder,
        driver,
        instance(vgpu),
        {"ours": with_channel, "older": by_older, "plain": without},
    )
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
                "by_older": by_older.to_xml(),
                "callback": callback,
                "created": created,
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
