# SPDX-License-Identifier: Apache-2.0
"""What is decided about VMs alone: requests, and whether a GPU VM can be a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.config.vsphere import ClientsSection
from sluice.hypervisor.vsphere.errors import BadVmRequest
from sluice.hypervisor.vsphere.model import NVIDIA, Host, HostGpu, PassedThrough, Vm
from sluice.hypervisor.vsphere.pool_checks import mmio_gb_wanted, problems_of
from sluice.hypervisor.vsphere.vm_request import parse, wanted_text
from sluice.resources.vgpu_request import VgpuRequest

SECTION = ClientsSection(memory_mib=100, compute_percent=5, projects_allowed="amber, blue")
GPU = HostGpu("0000:3b:00.0", 0x2330, "H100", 80 << 10, is_active=True)
HOST = Host("host-1", "esx1", connected=True, in_maintenance=False, gpus=(GPU,))
FIT = Vm(
    id="vm-1",
    name="gpu",
    instance_uuid="50260000-0000-4000-8000-000000000001",
    is_template=False,
    is_on=True,
    host="host-1",
    folder="DC0/vm/gpu",
    resource_pool="DC0/host/C0/Resources/gpu",
    memory_mib=1024,
    reserved_mib=1024,
    devices=(PassedThrough(13000, "static", GPU.pci_address, vendor_id=NVIDIA),),
    extra={"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"},
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", (1, 100, 5, "auto", "default")),
        ("default", (1, 100, 5, "auto", "default")),
        ("count=2", (2, 100, 5, "auto", "default")),
        ("count=2,memory=4GiB;compute=25%  mode=reserved", (2, 4096, 25, "reserved", "default")),
        ("memory=512 project=amber", (1, 512, 5, "auto", "amber")),
    ],
)
def test_a_text_is_a_request(text: str, wanted: tuple[Any, ...]) -> None:
    found = parse(text, SECTION)
    assert (
        found.count,
        found.memory_mib,
        found.compute_percent,
        found.mode,
        found.project,
    ) == wanted


@settings(deadline=None)
@given(
    st.one_of(
        st.text(max_size=250),
        st.lists(
            st.sampled_from(["count=", "memory=", "compute=", "mode=", "9", "²", "GiB", " "])
        ).map("".join),
    )
)
def test_any_text_is_a_request_or_an_error_that_can_be_shown(text: str) -> None:
    found: VgpuRequest | str
    try:
        found = parse(text, SECTION)
    except BadVmRequest as error:
        found = str(error)
    if isinstance(found, str):
        assert found.isprintable()
        assert len(found) < 250
    else:
        assert 1 <= found.count <= 64


def test_what_chooses_a_client() -> None:
    vm = replace(FIT, attributes={"Sluice": "count=2"}, tag="count=3")
    tags = ClientsSection(category="Sluice")
    assert wanted_text(vm, tags) == "count=2"
    assert wanted_text(replace(vm, attributes={}), tags) == "count=3"
    assert wanted_text(replace(vm, attributes={}), SECTION) is None
    assert wanted_text(replace(vm, is_template=True), tags) is None
    below = ClientsSection(folder="DC0/vm")
    assert wanted_text(FIT, below) == ""
    assert wanted_text(FIT, ClientsSection(folder="DC0/v")) is None
    assert wanted_text(FIT, ClientsSection(resource_pool="gpu")) == ""
    assert wanted_text(FIT, ClientsSection(resource_pool="gp")) is None


def test_a_vm_that_is_fit_has_no_problems() -> None:
    assert problems_of(FIT, HOST) == []
    dynamic = PassedThrough(13000, "dynamic", "", ((NVIDIA, 0x2330),))
    assert problems_of(replace(FIT, devices=(dynamic,)), HOST) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"devices": ()}, ["no-gpu"]),
        ({"is_on": False}, ["power"]),
        ({"extra": {}}, ["mmio"]),
        ({"extra": {"pciPassthru.use64bitMMIO": "true"}}, ["mmio-size"]),
        ({"reserved_mib": 1023}, ["memory-reservation"]),
        (
            {"devices": (PassedThrough(1, "static", "0000:99:00.0", vendor_id=NVIDIA),)},
            ["card-missing"],
        ),
        ({"devices": (PassedThrough(1, "static", "0000:3b:00.0", vendor_id=0x8086),)}, ["no-gpu"]),
    ],
)
def test_each_problem_has_a_name(changes: dict[str, Any], names: list[str]) -> None:
    assert [problem.name for problem in problems_of(replace(FIT, **changes), HOST)] == names


@pytest.mark.parametrize("size", ["64", "0", "-128", "128GB", "1e9", "٣٢", "9" * 30, ""])
def test_a_window_that_is_no_size_or_too_small_is_named(size: str) -> None:
    extra = {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": size}
    [problem] = problems_of(replace(FIT, extra=extra), HOST)
    assert problem.name == "mmio-size"
    assert problem.text.endswith("set it to 128")


def test_a_card_that_is_not_passed_through_is_named() -> None:
    host = replace(HOST, gpus=(replace(GPU, is_active=False),))
    assert [problem.name for problem in problems_of(FIT, host)] == ["card-inactive"]


def test_the_window_is_the_next_power_of_two_above() -> None:
    assert [mmio_gb_wanted(gb << 10) for gb in (16, 24, 32, 80, 160)] == [32, 32, 64, 128, 256]
