# SPDX-License-Identifier: Apache-2.0
"""What a VM's administrator asks for, in the text of a custom attribute or a tag.

Used by clients.py and the commands. resources.request_forms reads the text; here is where it
stands, and what of it is `[clients]`'s to say.
"""

from __future__ import annotations

from sluice.config.vsphere import ClientsSection
from sluice.hypervisor.vsphere.errors import BadVmRequest
from sluice.hypervisor.vsphere.model import Vm
from sluice.resources.request_forms import read_vm_text
from sluice.resources.vgpu_request import Mode, RequestError, VgpuRequest


def parse(text: str, section: ClientsSection) -> VgpuRequest:
    """The request of a text, with the section's where it says nothing; raises BadVmRequest."""
    defaults = VgpuRequest(
        count=section.count,
        memory_mib=section.memory_mib,
        compute_percent=section.compute_percent,
        mode=Mode(section.mode),
        project=section.project,
    )
    try:
        return read_vm_text(text, defaults, section.allowed)
    except RequestError as error:
        raise BadVmRequest(error.field, error.found, error.allowed) from None


def is_reserved(request: VgpuRequest) -> bool:
    """Whether room is held for it; else it takes of the pool what there is."""
    return request.mode is not Mode.ON_DEMAND


def wanted_text(vm: Vm, section: ClientsSection) -> str | None:
    """What chooses a VM as a client: its attribute, else its tag, else its place; None: nothing."""
    if vm.is_template:
        return None
    if section.attribute and (text := vm.attributes.get(section.attribute, "").strip()):
        return text
    if section.category and vm.tag:
        return vm.tag
    if section.folder and is_below(vm.folder, section.folder):
        return ""
    if section.resource_pool and section.resource_pool in vm.resource_pool.split("/"):
        return ""
    return None


def is_below(path: str, folder: str) -> bool:
    """Whether a folder's path is this one's or below it."""
    folder = folder.strip("/")
    return path == folder or path.startswith(f"{folder}/")
