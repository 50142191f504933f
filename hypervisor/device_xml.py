# SPDX-License-Identifier: Apache-2.0
"""Renders the XML that goes into a domain, from the Jinja2 templates in templates/libvirt.

Called by channel_devices.py, native_gpu.py and by the tests that hold the result against libvirt's
own schema. Every value is escaped; a missing one is an error.
"""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2

from sluice.hypervisor.domain_document import (
    NATIVE_ALIAS,
    REGION_ALIAS,
    PciAddress,
    ShmemDevice,
)
from sluice.hypervisor.pci_devices import HostAddress
from sluice.hypervisor.request import ELEMENT, NAMESPACE, NAMESPACE_KEY, DomainRequest

#: The folders install side by side below `sluice`, as they lie in a checkout.
TEMPLATES = Path(__file__).resolve().parent.parent / "templates" / "libvirt"


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def region_device(
    name: str, size_mib: int, place: PciAddress | None, server: str | None = None
) -> str:
    """The `<shmem>` device of a region of `size_mib` MiB; `server` is the socket of a doorbell."""
    template = _environment().get_template("region_device.xml.j2")
    return template.render(
        name=name, size_mib=size_mib, place=place, server=server, alias=REGION_ALIAS
    )


def device_again(region: ShmemDevice) -> str:
    """The XML of a device as it stands in a domain, as libvirt wants it to take it out."""
    return region_device(region.name, region.size_bytes >> 20, region.address, region.server)


def vsock_device(cid: int, place: PciAddress | None) -> str:
    """A `<vsock>` device with that CID."""
    return _environment().get_template("vsock_device.xml.j2").render(cid=cid, place=place)


def root_port(index: int) -> str:
    """One more PCI Express port; `index` is that of no controller yet."""
    return _environment().get_template("root_port.xml.j2").render(index=index)


def native_alias(source: HostAddress) -> str:
    """The alias of a function of a GPU: it marks the device as ours, for people and for show."""
    return NATIVE_ALIAS + str(source).replace(":", "-").replace(".", "-")


def native_gpu_device(source: HostAddress, place: PciAddress | None, *, rom_bar: bool) -> str:
    """The `<hostdev>` of one function of a whole GPU."""
    template = _environment().get_template("native_gpu.xml.j2")
    return template.render(source=source, place=place, rom_bar=rom_bar, alias=native_alias(source))


def request_metadata(request: DomainRequest, *, with_namespace: bool = False) -> str:
    """The `<vgpu>` element: bare for libvirt's metadata call, or as it stands in domain XML."""
    return (
        _environment()
        .get_template("request.xml.j2")
        .render(
            element=ELEMENT,
            attributes=request.attributes(),
            key=NAMESPACE_KEY if with_namespace else None,
            namespace=NAMESPACE,
        )
    )
