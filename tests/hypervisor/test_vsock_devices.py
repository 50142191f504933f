# SPDX-License-Identifier: Apache-2.0
"""Vsock devices in a domain's XML: whose they are, what they lack, and what is put and taken."""

from __future__ import annotations

import errno
import itertools
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest

from sluice.hypervisor.device_xml import request_metadata, vsock_device
from sluice.hypervisor.domain_document import QEMU_ARG, PciAddress, VsockDevice, parse_domain
from sluice.hypervisor.domain_life import Known, Life, Step, observe, steps
from sluice.hypervisor.errors import HypervisorError, InvalidRequest
from sluice.hypervisor.following import DeviceChange, Plan, plan_of
from sluice.hypervisor.libvirt_host import call, system_errno
from sluice.hypervisor.ports import VsockPlace
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import (
    CIDS,
    FIRST_CID,
    UserSockets,
    cids_for,
    with_user_device,
    without_user_device,
)

from .domain_texts import REQUEST, UUID, microvm, pc, q35, region

BY_VSOCK = replace(REQUEST, channel="vsock")
METADATA = request_metadata(BY_VSOCK, with_namespace=True)
CID = FIRST_CID + 7
DEVICE = vsock_device(CID, PciAddress(bus=3, slot=0))
SOCKET = Path("/run/sluice/vsock/x/device")
FOREIGN = "<vsock model='virtio'><cid auto='yes' address='3'/></vsock>"


def by_user(text: str) -> str:
    return with_user_device(text, parse_domain(text), SOCKET)


def test_the_request_says_which_channel() -> None:
    assert parse_domain(q35(metadata=METADATA)).request == BY_VSOCK
    assert not BY_VSOCK.has_region
    with pytest.raises(InvalidRequest, match="channel='pigeon'"):
        DomainRequest(memory_mib=1, compute_percent=1, channel="pigeon")


def test_cids_are_ours_the_same_each_time_and_not_taken() -> None:
    first = list(itertools.islice(cids_for(UUID), 4))
    assert first == list(itertools.islice(cids_for(UUID), 4))
    assert all(cid in range(FIRST_CID, FIRST_CID + CIDS) for cid in first)
    assert next(cids_for(UUID, frozenset(first[:2]))) == first[2]


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (q35(metadata=METADATA), DeviceChange(put=BY_VSOCK)),
        (q35(metadata=METADATA, devices=DEVICE), DeviceChange()),
        (q35(metadata=METADATA, devices=FOREIGN), DeviceChange()),  # the guest has one already
        (q35(devices=FOREIGN), DeviceChange()),  # not ours to take
        (
            q35(devices=DEVICE),
            DeviceChange(take_vsock=VsockDevice(CID, PciAddress(bus=3, slot=0), ours=True)),
        ),
        (by_user(q35(metadata=METADATA)), DeviceChange()),
        (by_user(q35()), DeviceChange(take_vsock=VsockDevice(None, None, ours=True, user=True))),
    ],
)
def test_what_is_missing_and_what_is_too_much(text: str, change: DeviceChange) -> None:
    document = parse_domain(text)
    assert plan_of(document, None).config == change
    live = plan_of(None, document).live
    # QEMU keeps a vhost-user device as long as it runs
    kept = change.take_vsock is not None and change.take_vsock.user
    assert live == (DeviceChange() if kept else change)


def test_another_channel_replaces_the_one_there_is() -> None:
    had = parse_domain(q35(metadata=METADATA, devices=region()))
    assert plan_of(had, None).config == DeviceChange(put=BY_VSOCK, take=had.region)
    metadata = request_metadata(REQUEST, with_namespace=True)
    back = parse_domain(q35(metadata=metadata, devices=DEVICE))
    assert plan_of(back, None).config == DeviceChange(put=REQUEST, take_vsock=back.vsock)


@pytest.mark.parametrize("machine", [q35, pc])
def test_a_vhost_user_device_stands_among_qemus_arguments(machine: object, tmp_path: Path) -> None:
    text = machine(devices=region())  # type: ignore[operator]
    put = by_user(text)
    if validate := shutil.which("virt-xml-validate"):
        path = tmp_path / "domain.xml"
        path.write_text(put.strip())
        done = subprocess.run([validate, str(path), "domain"], check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
    document = parse_domain(put)
    assert document.vsock == VsockDevice(None, None, ours=True, user=True)
    assert document.region == parse_domain(text).region
    root = ElementTree.fromstring(put)
    access = root.find("memoryBacking/access")
    assert access is not None
    assert access.get("mode") == "shared"
    arguments = [argument.get("value") for argument in root.iter(QEMU_ARG)]
    assert f"socket,id=sluice-vsock,path={SOCKET}" in arguments
    taken = without_user_device(put)
    assert parse_domain(taken).vsock is None
    assert not list(ElementTree.fromstring(taken).iter(QEMU_ARG))


def test_what_others_have_among_qemus_arguments_stays() -> None:
    text = q35().replace(
        "</domain>",
        "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'>"
        "<q:arg value='-global'/><q:arg value='a.b=c'/></q:commandline></domain>",
    )
    there = by_user(text)
    for xml, count in ((there, 6), (without_user_device(there), 2)):
        arguments = [a.get("value") for a in ElementTree.fromstring(xml).iter(QEMU_ARG)]
        assert arguments[:2] == ["-global", "a.b=c"]
        assert len(arguments) == count


def test_hugepages_stay_and_are_shared() -> None:
    text = q35().replace(
        "<os>", "<memoryBacking><hugepages/><source type='file'/></memoryBacking><os>"
    )
    backing = ElementTree.fromstring(by_user(text)).find("memoryBacking")
    assert backing is not None
    assert backing.find("hugepages") is not None
    assert [child.get("type") for child in backing.findall("source")] == ["file"]


def test_a_microvm_is_told_what_it_lacks() -> None:
    with pytest.raises(HypervisorError, match="q35 or pc"):
        by_user(microvm())


def test_the_life_of_a_domain_with_vsock_alone() -> None:
    off = observe(parse_domain(q35(metadata=METADATA, devices=DEVICE)), None, paused=False, boot=-1)
    place = VsockPlace(CID)
    assert (off.request, off.vsock, off.life, off.has_device) == (BY_VSOCK, place, Life.OFF, False)
    assert steps(None, off) == [Step.ADD]
    document = parse_domain(q35(metadata=METADATA, devices=DEVICE))
    on = observe(document, document, paused=False, boot=4)
    known = Known(off.name, BY_VSOCK, Life.OFF, -1, place)
    assert on.life is Life.RUNNING
    assert steps(known, on) == []
    running = Known(on.name, BY_VSOCK, Life.RUNNING, 4, place)
    assert steps(running, off) == [Step.STOP]
    assert steps(running, replace(on, vsock=VsockPlace(CID + 1))) == [Step.ADD]
    bare = parse_domain(q35(metadata=METADATA))
    assert steps(running, observe(bare, bare, paused=False, boot=4)) == [Step.REMOVE]


def test_beside_a_region_the_device_is_a_second_way() -> None:
    metadata = request_metadata(replace(REQUEST, vsock=True), with_namespace=True)
    document = parse_domain(q35(metadata=metadata, devices=region() + DEVICE))
    seen = observe(document, document, paused=False, boot=1)
    assert seen.vsock == VsockPlace(CID)
    assert seen.has_device
    assert plan_of(document, document) == Plan()
    without = parse_domain(q35(metadata=metadata, devices=region()))
    assert plan_of(without, without) == Plan(
        DeviceChange(put_vsock=True), DeviceChange(put_vsock=True)
    )


def test_sockets_lie_in_a_folder_of_the_domains_own() -> None:
    sockets = UserSockets.of(Path("/run/sluice"), UUID)
    assert {path.parent for path in (sockets.device, sockets.guest, sockets.session_port)} == {
        Path("/run/sluice/vsock") / UUID
    }
    assert str(sockets.session_port) == f"{sockets.guest}_9960"


@pytest.mark.parametrize(
    ("code", "number", "want"),
    [
        (libvirt.VIR_ERR_SYSTEM_ERROR, errno.EADDRINUSE, errno.EADDRINUSE),
        (libvirt.VIR_ERR_OPERATION_FAILED, errno.EADDRINUSE, None),
    ],
)
def test_what_the_kernel_refused_libvirt_is_told_by_its_number(
    code: int, number: int, want: int | None
) -> None:
    """A CID that another process has taken: the message is for readers and may be translated."""

    def refuse() -> None:
        error = libvirt.libvirtError("failed")
        error.err = (code, libvirt.VIR_FROM_QEMU, "kein Platz", 2, None, None, None, number, -1)
        raise error

    with pytest.raises(HypervisorError) as caught:
        call(refuse)
    assert system_errno(caught.value) == want
    assert system_errno(HypervisorError("of our own")) is None
