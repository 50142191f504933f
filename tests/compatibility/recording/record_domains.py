# SPDX-License-Identifier: Apache-2.0
"""Records domain XML with what this tree writes into it, and what its Nova driver asks.

Called by record.py. Beside each text lies what this tree understands of it.
"""

from __future__ import annotations

import io
import json
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from sluice.hypervisor.device_xml import native_gpu_device, vsock_device
from sluice.hypervisor.domain_document import PciAddress
from sluice.hypervisor.pci_devices import HostAddress
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import cids_for
from sluice.nova_driver.compute import server_line
from sluice.nova_driver.compute.extra_specs import VgpuSpecs
from tests.hypervisor import domain_texts
from tests.hypervisor.domain_texts import UUID, microvm, ours, pc, q35, region

from ..domains import ask_door, read_domain


def texts() -> dict[str, str]:
    """Domains as they are found in libvirt."""
    plain = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=64)
    full = DomainRequest(
        memory_mib=8192, compute_percent=50, count=2, region_mib=512, slots=8, priority=-3,
        mode="reserved", vsock=True,
    )  # fmt: skip
    doorbell = DomainRequest(
        memory_mib=2048, compute_percent=10, channel="ivshmem-doorbell", region_mib=64
    )
    vsock = DomainRequest(memory_mib=4096, compute_percent=100, channel="vsock", mode="on-demand")
    cid = vsock_device(next(cids_for(UUID)), PciAddress(bus=3, slot=0))
    gpu = native_gpu_device(HostAddress(0, 0x65, 0, 0), PciAddress(bus=3, slot=0), rom_bar=False)
    hand = (
        "<sluice:vgpu xmlns:sluice='https://sluice.dev/xmlns/libvirt/1' memory-mib='4096' "
        "compute='25'/>"
    )
    return {
        "region": q35(metadata=ours(plain), devices=region()),
        "region-and-vsock": q35(
            metadata=ours(full), devices=region(size_mib=512) + cid.replace("\n", "")
        ),
        "doorbell": q35(metadata=ours(doorbell), devices=region(served=UUID)),
        "vsock": q35(metadata=ours(vsock), devices=cid),
        "native-gpu": q35(devices=gpu),
        "i440fx": pc(region(bus=0)),
        "microvm": microvm(region()),
        "by-hand": q35(metadata=hand),
        "wrong": q35(metadata=hand.replace("'25'", "'250'")),
        "copied": q35(metadata=ours(plain), devices=region(domain_texts.OTHER_UUID)),
    }


def nova_requests() -> dict[str, str]:
    """What this tree's Nova driver writes to the server's door."""
    said: list[dict[str, object]] = []

    def keep(path: str, request: dict[str, object], seconds: float) -> dict[str, object]:
        said.append(request)
        return {"devices": [], "metadata": "", "sessions": [], "ready": True}

    asked = server_line._ask
    server_line._ask = keep
    try:
        for specs in (
            VgpuSpecs(memory_mib=4096, compute=25, mode="on-demand"),
            VgpuSpecs(memory_mib=8192, compute=50, count=2, priority=7),
        ):
            server_line.prepare_channel("", UUID, specs, 1)
        server_line.programs_using("", UUID, 1)
        server_line.make_ready("", UUID, 1)
    finally:
        server_line._ask = asked
    names = ("on-demand", "reserved", "sessions", "ready")
    return {name: json.dumps(each) for name, each in zip(names, said, strict=True)}


def record_domains(out: Path) -> None:
    """Writes every text and what is understood of it."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        root = ElementTree.fromstring(text)
        for prefix, namespace in (
            ("sluice", "https://sluice.dev/xmlns/libvirt/1"),
            ("qemu", "http://libvirt.org/schemas/domain/qemu/1.0"),
        ):
            ElementTree.register_namespace(prefix, namespace)
        ElementTree.indent(root)
        written = io.BytesIO()
        ElementTree.ElementTree(root).write(written, "utf-8")
        xml = written.getvalue().decode() + "\n"
        (out / f"{name}.xml").write_text(xml)
        understood = json.dumps(read_domain(xml), indent=1, sort_keys=True)
        (out / f"{name}.json").write_text(understood + "\n")
    asked = {}
    for name, text in nova_requests().items():
        with tempfile.TemporaryDirectory() as folder:
            asked[name] = {"asked": text, **ask_door(Path(folder), text)}
    (out / "nova.requests.json").write_text(json.dumps(asked, indent=1) + "\n")
