# SPDX-License-Identifier: Apache-2.0
"""What the templates give is what libvirt's own schema takes."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sluice.hypervisor.device_xml import (
    TEMPLATES,
    device_again,
    native_gpu_device,
    region_device,
    request_metadata,
    root_port,
    vsock_device,
)
from sluice.hypervisor.domain_document import (
    HostDevice,
    PciAddress,
    ShmemDevice,
    parse_domain,
)
from sluice.hypervisor.pci_devices import HostAddress
from sluice.hypervisor.vsock_devices import FIRST_CID

from .domain_texts import REQUEST, UUID, microvm, ours, pc, q35, region

pytestmark = pytest.mark.skipif(
    shutil.which("virt-xml-validate") is None or shutil.which("xmllint") is None,
    reason="libvirt's schema is not installed",
)


def validate(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "domain.xml"
    path.write_text(text.strip())
    return subprocess.run(
        ["virt-xml-validate", str(path), "domain"], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("place", [None, PciAddress(bus=2, slot=0), PciAddress(bus=0, slot=31)])
@pytest.mark.parametrize("machine", [q35, pc, microvm])
def test_both_devices_fit_into_every_machine(
    machine: object, place: PciAddress | None, tmp_path: Path
) -> None:
    devices = region_device(f"sluice-{UUID}", 256, place) + vsock_device(FIRST_CID, place)
    done = validate(machine(devices=devices), tmp_path)  # type: ignore[operator]
    assert done.returncode == 0, done.stderr


def test_a_port_more_fits(tmp_path: Path) -> None:
    done = validate(q35(devices=root_port(17)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert parse_domain(q35(devices=root_port(17))).controllers[17] == "pcie-root-port"


@pytest.mark.parametrize("place", [None, PciAddress(bus=2, slot=0)])
@pytest.mark.parametrize("machine", [q35, pc, microvm])
def test_a_region_with_a_doorbell_fits_into_every_machine(
    machine: object, place: PciAddress | None, tmp_path: Path
) -> None:
    server = f"/run/sluice/ivshmem/{UUID}/server"
    text = machine(devices=region_device(f"sluice-{UUID}", 256, place, server))  # type: ignore[operator]
    done = validate(text, tmp_path)
    assert done.returncode == 0, done.stderr
    region = parse_domain(text).region
    assert region == ShmemDevice(f"sluice-{UUID}", "ivshmem-doorbell", 256 << 20, place, server)
    assert device_again(region) == region_device(f"sluice-{UUID}", 256, place, server)


@pytest.mark.parametrize("rom_bar", [True, False])
@pytest.mark.parametrize("place", [None, PciAddress(bus=2, slot=0)])
@pytest.mark.parametrize("machine", [q35, pc, microvm])
def test_whole_gpus_fit_into_every_machine(
    machine: object, place: PciAddress | None, rom_bar: bool, tmp_path: Path
) -> None:
    sources = [HostAddress.parse("0000:65:00.0"), HostAddress.parse("10000:e1:00.1")]
    devices = "".join(native_gpu_device(each, place, rom_bar=rom_bar) for each in sources)
    text = machine(devices=devices)  # type: ignore[operator]
    done = validate(text, tmp_path)
    assert done.returncode == 0, done.stderr
    found = parse_domain(text).host_devices
    assert found == tuple(HostDevice(each, place, ours=True) for each in sources)
    assert ("<rom bar='off'/>" in text) is not rom_bar


@pytest.mark.parametrize("machine", [q35, pc, microvm])
def test_the_request_fits_into_the_metadata(machine: object, tmp_path: Path) -> None:
    text = machine(devices=region())  # type: ignore[operator]
    if "<metadata>" in text:
        text = text.replace("<metadata></metadata>", f"<metadata>{ours()}</metadata>")
    else:
        text = text.replace("<memory", f"<metadata>{ours()}</metadata><memory", 1)
    assert text.count("sluice:vgpu") == 1
    done = validate(text, tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_template_is_held_against_the_schema() -> None:
    """Who adds one adds it above."""
    assert {path.name for path in TEMPLATES.iterdir()} == {
        "native_gpu.xml.j2",
        "region_device.xml.j2",
        "request.xml.j2",
        "root_port.xml.j2",
        "vsock_device.xml.j2",
    }


def test_the_schema_would_notice_a_mistake(tmp_path: Path) -> None:
    done = validate(q35(devices=region().replace("ivshmem-plain", "ivshmem-fancy")), tmp_path)
    assert done.returncode != 0


def test_values_are_escaped() -> None:
    text = region_device("a'><evil/>&", 16, None)
    assert ElementTree.fromstring(text).get("name") == "a'><evil/>&"


def test_the_bare_element_has_no_prefix_since_libvirt_adds_it() -> None:
    assert request_metadata(REQUEST).strip().startswith("<vgpu ")


def test_what_is_rendered_is_what_is_read() -> None:
    document = parse_domain(q35(metadata=ours(), devices=region(bus=3)))
    assert document.request == REQUEST
    assert document.region is not None
    assert document.region.address == PciAddress(bus=3, slot=0)
