# SPDX-License-Identifier: Apache-2.0
"""Domain XML is read for what it says of us, and for nothing that another domain owns."""

from __future__ import annotations

import pytest

from sluice.hypervisor.domain_document import PciAddress, parse_domain
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.request import NAMESPACE

from .domain_texts import OTHER_UUID, REQUEST, UUID, ours, pc, q35, region


def test_a_domain_with_a_request_and_its_channel() -> None:
    document = parse_domain(q35(metadata=ours(), devices=region()))
    assert document.uuid == UUID
    assert document.request == REQUEST
    assert document.problem is None
    assert document.region is not None
    assert document.region.size_bytes == 64 << 20
    assert document.region.address == PciAddress(bus=2, slot=0)
    assert document.is_q35


def test_a_domain_that_asks_for_nothing() -> None:
    document = parse_domain(pc())
    assert (document.request, document.problem, document.region) == (None, None, None)
    assert not document.is_q35


def test_the_channel_of_another_domain_is_never_ours() -> None:
    document = parse_domain(q35(metadata=ours(), devices=region(OTHER_UUID)))
    assert document.region is None
    assert document.foreign_regions == (f"sluice-{OTHER_UUID}",)


def test_other_shared_memory_is_left_alone() -> None:
    other = (
        "<shmem name='looking-glass'><model type='ivshmem-plain'/><size unit='M'>32</size></shmem>"
    )
    document = parse_domain(q35(devices=other))
    assert document.region is None
    assert document.foreign_regions == ()


@pytest.mark.parametrize(
    "metadata",
    [
        "<vgpu xmlns='urn:nova' memory-mib='1024' compute='25'/>",
        "<vgpu memory-mib='1024' compute='25'/>",
        f"<n:x xmlns:n='urn:nova'><v:vgpu xmlns:v='{NAMESPACE}' memory-mib='1' compute='1'/></n:x>",
    ],
)
def test_foreign_metadata_is_no_request(metadata: str) -> None:
    document = parse_domain(q35(metadata=metadata, devices=region()))
    assert document.request is None
    assert document.problem is None


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (f"<v:vgpu xmlns:v='{NAMESPACE}' memory-mib='x' compute='1'/>", "memory-mib='x'"),
        (f"<v:gpu xmlns:v='{NAMESPACE}' memory-mib='1' compute='1'/>", "not ours"),
        (ours() + ours(), "2 elements"),
    ],
)
def test_a_bad_request_is_a_problem_and_no_request(metadata: str, problem: str) -> None:
    document = parse_domain(q35(metadata=metadata, devices=region()))
    assert document.request is None
    assert document.problem is not None
    assert problem in document.problem


@pytest.mark.parametrize(
    "text", ["", "<domain/>", "<domain><uuid>../../etc</uuid></domain>", "<a>", "<network/>"]
)
def test_what_is_no_domain_is_refused(text: str) -> None:
    with pytest.raises(HypervisorError):
        parse_domain(text)


def test_a_uuid_in_capitals_is_the_same_domain() -> None:
    assert parse_domain(q35(uuid=UUID.upper())).region_name == f"sluice-{UUID}"
