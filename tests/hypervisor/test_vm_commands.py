# SPDX-License-Identifier: Apache-2.0
"""`sluice vm` on a real libvirt: what is attached stays, and goes without a trace."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import libvirt
import pytest

from sluice.hypervisor.libvirt_host import live_document, persistent_document
from sluice.server.listeners.vm_socket import make_plugs
from tests.rigs.kvm.rig import Guest, Rig

from .conftest import CHECKOUT, VmCommand
from .guest_devices import DEVICES, PLUGGED

pytestmark = pytest.mark.vm

SETUP = f"/host{CHECKOUT}/packaging/guest/sluice-pci-setup"
READY = f"""
{PLUGGED}
getent group sluice >/dev/null || groupadd -r sluice
for device in $({DEVICES}); do
  path=/sys/bus/pci/devices/$device
  {SETUP} $path && echo $device $(stat -c '%G %a %s' $path/resource2)
done
"""


def region_path(guest: Guest) -> Path:
    return Path(f"/dev/shm/sluice-{guest.uuid}")


def test_attached_to_a_running_domain_it_is_memory_shared_with_the_host(
    vm: VmCommand, running: Guest
) -> None:
    done = vm.attach(running.name, "--region-mib", "64")
    assert done.code == 0, done.err
    assert "plugged in" in done.out
    found = region_path(running).stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (64 << 20, 0o600)

    seen = running.check(READY).split()
    assert seen[1:] == ["sluice", "660", str(64 << 20)], "the guest's group may use the whole BAR"
    write = (
        "import mmap,os; f=os.open('/sys/bus/pci/devices/%s/resource2', os.O_RDWR); "
        "m=mmap.mmap(f, 0); m[12345678:12345687]=b'from here'; print(bytes(m[40:45]).decode())"
    )
    with region_path(running).open("r+b") as file:
        file.seek(40)
        file.write(b"hello")
    assert running.check(f'python3 -c "{write % seen[0]}"').strip() == "hello"
    with region_path(running).open("rb") as file:
        file.seek(12345678)
        assert file.read(9) == b"from here"


@pytest.mark.parametrize(
    "again",
    ["", "SEQNUM=$(($(cat /sys/kernel/uevent_seqnum) + 1))"],
    ids=["by hand", "by its next event"],
)
def test_where_it_found_no_room_it_is_tried_again(
    vm: VmCommand, running: Guest, again: str
) -> None:
    """Given up once, nothing is done for the events that this made; for what comes later it is."""
    masked = "/sys/bus/pci/rescan /sys/bus/pci/devices/0000:00:*/remove"
    running.check(f"for file in {masked}; do mount --bind /dev/null $file; done")
    assert vm.attach(running.name, "--region-mib", "64").code == 0
    running.check(PLUGGED)
    setup = f"{SETUP} /sys/bus/pci/devices/$({DEVICES})"
    code, _, _ = running.run(f"SEQNUM=1 {setup}")
    assert code == 1
    running.check(f"for file in {masked}; do umount $file; done")
    code, _, _ = running.run(f"SEQNUM=1 {setup}")
    assert code == 1, "an event of its own"
    running.check("groupadd -r sluice")
    running.check(f"{again} {setup}")
    shown = running.check(f"stat -c '%G %a' /sys/bus/pci/devices/$({DEVICES})/resource2")
    assert shown.split() == ["sluice", "660"]
    assert running.check("ls /run/sluice-pci").split() == ["lock"]


def test_it_keeps_its_place_over_destroy_start_and_edit(
    vm: VmCommand, running: Guest, rig: Rig
) -> None:
    assert vm.attach(running.name, "--region-mib", "32").code == 0
    before = persistent_document(running.domain).region
    live = live_document(running.domain)
    assert live is not None
    assert live.region == before
    running.restart()
    # What `virsh edit` does: the whole text out and in again.
    text = running.domain.XMLDesc(
        libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
    ).replace("<vcpu", "<title>edited</title><vcpu")
    rig.connection.defineXML(text)
    running.restart()
    after = live_document(running.domain)
    assert after is not None
    assert after.region == before == persistent_document(running.domain).region
    assert after.request is not None
    assert after.request.memory_mib == 1024
    devices = running.check(READY).split()
    assert devices[1:] == ["sluice", "660", str(32 << 20)]


def test_detached_nothing_is_left(vm: VmCommand, running: Guest) -> None:
    vm.attach(running.name, "--region-mib", "32")
    running.check(READY)
    done = vm("detach", running.name)
    assert (done.code, done.out.strip()) == (0, f"{running.name}: detached")
    assert running.check(DEVICES).strip() == ""
    for document in (persistent_document(running.domain), live_document(running.domain)):
        assert document is not None
        assert (document.region, document.request, document.problem) == (None, None, None)
    # but for the paths of the checkout, where the guest's kernel lies
    assert "sluice" not in running.domain.XMLDesc().replace(str(CHECKOUT), "")
    assert not region_path(running).exists()
    assert vm.files.recorded() == set()
    again = vm("detach", running.name)
    assert (again.code, again.out.strip()) == (0, f"{running.name}: nothing was attached")


def test_a_server_takes_it_out_of_what_runs_and_puts_it_back(
    vm: VmCommand, running: Guest, rig: Rig
) -> None:
    assert vm.attach(running.name, "--region-mib", "32").code == 0
    running.check(READY)
    unplug, plug = make_plugs(rig.uri, vm.files)
    assert unplug(running.uuid, 15)
    live, defined = live_document(running.domain), persistent_document(running.domain)
    assert live is not None
    assert (live.region, live.request) == (None, defined.request)
    assert defined.region is not None
    assert running.check(DEVICES).strip() == ""
    assert plug(running.uuid) == []
    back = live_document(running.domain)
    assert back is not None
    assert back.region == defined.region
    running.check(READY)


def test_attaching_twice_changes_nothing_and_new_figures_change_the_request(
    vm: VmCommand, running: Guest
) -> None:
    assert vm.attach(running.name, "--region-mib", "32").out.startswith(f"{running.name}: attached")
    before = running.domain.XMLDesc()
    assert vm.attach(running.name, "--region-mib", "32").out.startswith(f"{running.name}: already")
    assert running.domain.XMLDesc() == before
    assert vm.attach(running.name, "--region-mib", "32", "--count", "2").code == 0
    for document in (persistent_document(running.domain), live_document(running.domain)):
        assert document is not None
        assert document.request is not None
        assert document.request.count == 2
    refused = vm.attach(running.name, "--region-mib", "64")
    assert refused.code == 1
    assert "sluice vm detach" in refused.err


def test_a_dry_run_shows_the_xml_and_changes_nothing(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    before = guest.domain.XMLDesc()
    shown = vm.attach(guest.name, "--dry-run")
    assert shown.code == 0
    assert f"<shmem name='sluice-{guest.uuid}'>" in shown.out
    assert "memory-mib='1024'" in shown.out
    assert guest.domain.XMLDesc() == before
    assert not region_path(guest).exists()
    vm.attach(guest.name)
    assert "<shmem" in vm("detach", guest.name, "--dry-run").out
    assert region_path(guest).exists()


def test_two_domains_have_two_regions(vm: VmCommand, make_guest: Callable[..., Guest]) -> None:
    first, second = make_guest("-a"), make_guest("-b")
    assert vm.attach(first.name, "--region-mib", "32").code == 0
    assert vm.attach(second.name, "--region-mib", "64").code == 0
    rows = {row["domain"]: row for row in json.loads(vm("list", "--json").out)}
    assert rows[first.name]["region"]["file"] == str(region_path(first))
    assert rows[second.name]["region"]["file"] == str(region_path(second))
    assert rows[first.name]["region"]["mib"] == 32
    assert rows[second.name]["region"]["mib"] == 64
    assert region_path(first).stat().st_ino != region_path(second).stat().st_ino
    table = vm("list").out
    assert first.name in table
    assert second.name in table


def test_off_it_may_change_its_size_and_is_plugged_at_the_next_start(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    assert "from the next start" in vm.attach(guest.name, "--region-mib", "32").out
    place = persistent_document(guest.domain).region
    assert vm.attach(guest.name, "--region-mib", "64").code == 0
    region = persistent_document(guest.domain).region
    assert place is not None
    assert region is not None
    assert region.address == place.address
    assert region_path(guest).stat().st_size == 64 << 20
    guest.start()
    guest.wait_ready()
    assert running_size(guest) == 64 << 20


def test_off_it_may_get_a_doorbell_and_lose_it_again(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    doorbell = ("--region-mib", "32", "--channel", "ivshmem-doorbell")
    before = guest.domain.XMLDesc()
    shown = vm.attach(guest.name, *doorbell, "--dry-run").out
    assert "<model type='ivshmem-doorbell'/>" in shown
    assert "channel='ivshmem-doorbell'" in shown
    assert guest.domain.XMLDesc() == before
    assert "from the next start" in vm.attach(guest.name, *doorbell).out
    region = persistent_document(guest.domain).region
    assert region is not None
    assert region.server == str(vm.files.server_socket(guest.uuid))
    assert region.size_bytes == region_path(guest).stat().st_size == 32 << 20
    assert "already attached" in vm.attach(guest.name, *doorbell).out
    assert vm.attach(guest.name, "--region-mib", "64").code == 0
    plain = persistent_document(guest.domain).region
    assert plain is not None
    assert (plain.server, plain.size_bytes, plain.address) == (None, 64 << 20, region.address)
    assert vm.attach(guest.name, *doorbell).code == 0
    assert vm("detach", guest.name).code == 0
    assert persistent_document(guest.domain).region is None
    assert not region_path(guest).exists()


def running_size(guest: Guest) -> int:
    return int(guest.check(READY).split()[3])


def test_on_the_classic_machine_it_is_hot_plugged_too(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest(machine="pc")
    guest.start()
    guest.wait_ready()
    done = vm.attach(guest.name, "--region-mib", "32")
    assert done.code == 0, done.err
    assert running_size(guest) == 32 << 20
    assert vm("detach", guest.name).code == 0


def test_a_microvm_with_a_pci_bus_has_a_channel_from_its_start(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest(machine="microvm")
    guest.start()
    guest.wait_ready(120)
    refused = vm.attach(guest.name, "--region-mib", "32")
    assert refused.code == 1
    assert "shut it down" in refused.err
    assert not region_path(guest).exists()
    guest.destroy()
    done = vm.attach(guest.name, "--region-mib", "32")
    assert done.code == 0, done.err
    guest.start()
    guest.wait_ready(120)
    assert running_size(guest) == 32 << 20


def test_a_microvm_without_one_is_refused_with_the_way_out(vm: VmCommand, rig: Rig) -> None:
    text = rig.guest_xml("bare-microvm", mem_mib=128, vcpus=1, machine="microvm", alone=True)
    bare = re.sub(r"<controller type='pci'[^>]*/>|<channel.*?</channel>", "", text, flags=re.DOTALL)
    bare = re.sub(r"<qemu:commandline>.*</qemu:commandline>", "", bare, flags=re.DOTALL)
    domain = rig.connection.defineXML(bare)
    try:
        refused = vm.attach("bare-microvm")
        assert refused.code == 1
        assert "pcie=on" in refused.err
        assert "<metadata>" not in domain.XMLDesc()
    finally:
        domain.undefine()


def test_without_a_free_port_it_says_what_to_do_and_off_it_adds_one(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest(spare_ports=0)
    guest.start()
    guest.wait_ready()
    refused = vm.attach(guest.name, "--region-mib", "32")
    assert refused.code == 1
    assert "pcie-root-port" in refused.err
    assert not region_path(guest).exists()
    guest.destroy()
    assert vm.attach(guest.name, "--region-mib", "32").code == 0
    guest.start()
    guest.wait_ready()
    assert running_size(guest) == 32 << 20


def test_a_paused_guest_cannot_release_and_this_is_said(vm: VmCommand, running: Guest) -> None:
    from sluice.hypervisor.channel_devices import detach
    from sluice.hypervisor.errors import HypervisorError

    vm.attach(running.name, "--region-mib", "32")
    running.check(READY)
    running.pause()
    with pytest.raises(HypervisorError, match="paused"):
        detach(running.domain, vm.files, release_seconds=1)
    assert persistent_document(running.domain).request is None
    assert persistent_document(running.domain).region is None
    running.resume()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--region-mib", "100"), "power of two"),
        (("--region-mib", "8"), "too small"),
        (("--region-mib", "1048576"), "does not fit|larger than"),
        (("--count", "0"), "count=0"),
        (("--priority", "5000"), "priority=5000"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_touched(
    vm: VmCommand, make_guest: Callable[..., Guest], options: tuple[str, ...], named: str
) -> None:
    guest = make_guest()
    before = guest.domain.XMLDesc()
    refused = vm.attach(guest.name, *options)
    assert refused.code == 1
    assert any(words in refused.err for words in named.split("|")), refused.err
    assert refused.err.count("\n") == 1 + refused.err.count("no vsock")
    assert guest.domain.XMLDesc() == before
    assert not region_path(guest).exists()


@pytest.mark.parametrize("runs", [False, True], ids=["off", "running"])
def test_where_the_channel_cannot_be_made_the_metadata_is_as_it_was(
    vm: VmCommand, make_guest: Callable[..., Guest], *, runs: bool
) -> None:
    guest = make_guest()
    if runs:
        guest.start()
        guest.wait_ready()
    squatted = region_path(guest)
    squatted.touch()
    os.truncate(squatted, 32 << 20)
    os.chown(squatted, 12345, 12345)

    def texts() -> list[str]:
        # libvirt leaves an empty element where there was one
        found = [guest.domain.XMLDesc(flag) for flag in (0, libvirt.VIR_DOMAIN_XML_INACTIVE)]
        return [text.replace("  <metadata/>\n", "") for text in found]

    before = texts()
    refused = vm.attach(guest.name, "--region-mib", "32")
    assert refused.code == 1
    assert str(squatted) in refused.err
    assert "attached" not in refused.out
    assert texts() == before


def test_unknown_and_transient_domains_are_named(vm: VmCommand, rig: Rig) -> None:
    assert "virsh list --all" in vm.attach("nobody").err
    assert vm("show", "nobody").code == 1
    transient = rig.connection.createXML(rig.guest_xml("transient", mem_mib=128, vcpus=1))
    try:
        refused = vm.attach("transient")
        assert refused.code == 1
        assert "transient" in refused.err
        assert "virsh define" in refused.err
    finally:
        transient.destroy()


def test_a_libvirt_that_is_not_there_is_said(vm: VmCommand) -> None:
    refused = vm("list", "--connect", "qemu:///system?socket=/nowhere/libvirt-sock")
    assert refused.code == 1
    assert "is libvirtd running" in refused.err


def test_a_copied_definition_is_refused(
    vm: VmCommand, make_guest: Callable[..., Guest], rig: Rig
) -> None:
    original, copy = make_guest("-original"), make_guest("-copy")
    vm.attach(original.name, "--region-mib", "32")
    text = original.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    text = text.replace(f"<uuid>{original.uuid}</uuid>", f"<uuid>{copy.uuid}</uuid>")
    rig.connection.defineXML(text.replace(f">{original.name}<", f">{copy.name}<"))
    refused = vm.attach(copy.name)
    assert refused.code == 1
    assert "another domain" in refused.err
    assert "virsh edit" in refused.err
    assert "another domain" in vm("show", copy.name).out


def test_many_domains_by_pattern_and_other_figures_later(
    vm: VmCommand, make_guest: Callable[..., Guest]
) -> None:
    guests = [make_guest(f"-web-{number}") for number in range(2)]
    other = make_guest("-other")
    pattern = guests[0].name.removesuffix("0") + "*"
    done = vm.attach(pattern, "--region-mib", "32", "--mode", "reserved")
    assert done.code == 0, done.err
    assert [line.split(":")[0] for line in done.out.splitlines()] == [g.name for g in guests]
    assert vm("resize", pattern, guests[0].name, "--compute", "75", "--mode", "auto").code == 0
    for guest in guests:
        request = persistent_document(guest.domain).request
        assert request is not None
        assert (request.memory_mib, request.compute_percent, request.mode) == (1024, 75, "auto")
    assert persistent_document(other.domain).request is None
    # one that cannot be done disturbs no other
    some = vm("resize", other.name, guests[0].name, "--count", "2")
    assert (some.code, guests[0].name in some.out) == (1, True)
    assert "sluice vm attach" in some.err
    assert vm("resize", pattern).code == 1
    assert vm("resize", "nothing-like-*", "--count", "2").code == 1
    assert vm("resize", guests[0].name, "--mode", "sometimes").code == 1
    done = vm("detach", pattern)
    assert (done.code, done.out.count("detached")) == (0, 2)
