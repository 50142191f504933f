# SPDX-License-Identifier: Apache-2.0
"""A request is believed only within its bounds, whoever wrote the metadata."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from sluice.hypervisor.device_xml import request_metadata
from sluice.hypervisor.errors import InvalidRequest
from sluice.hypervisor.request import NAMESPACE, DomainRequest, parse_request


def element(attributes: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<s:vgpu xmlns:s='{NAMESPACE}' {attributes}/>")


def test_a_request_survives_its_own_metadata() -> None:
    request = DomainRequest(
        count=2,
        memory_mib=3072,
        compute_percent=50,
        region_mib=64,
        slots=8,
        priority=-3,
        vsock=True,
    )
    written = ElementTree.fromstring(request_metadata(request, with_namespace=True))
    assert parse_request(written) == request


def test_defaults_fill_what_a_person_leaves_out() -> None:
    request = parse_request(element("memory-mib='1024' compute='25'"))
    assert (request.count, request.region_mib, request.slots, request.priority) == (1, 256, 4, 0)


def test_attributes_of_a_newer_release_are_ignored() -> None:
    parse_request(element("memory-mib='1024' compute='25' mode='reserved' colour='blue'"))


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("compute='25'", "memory-mib is missing"),
        ("memory-mib='0' compute='25'", "memory-mib=0"),
        ("memory-mib='-1' compute='25'", "memory-mib=-1"),
        ("memory-mib='1e9' compute='25'", "memory-mib='1e9'"),
        ("memory-mib='0x400' compute='25'", "memory-mib='0x400'"),
        ("memory-mib=' 1024' compute='25'", "memory-mib=' 1024'"),
        ("memory-mib='٣' compute='25'", "memory-mib="),
        ("memory-mib='" + "9" * 5000 + "' compute='25'", "memory-mib="),
        ("memory-mib='999999999' compute='25'", "memory-mib=999999999"),
        ("memory-mib='1024' compute='101'", "compute=101"),
        ("memory-mib='1024' compute='0'", "compute=0"),
        ("memory-mib='1024' compute='25' count='65'", "count=65"),
        ("memory-mib='1024' compute='25' region-mib='100'", "power of two"),
        ("memory-mib='1024' compute='25' region-mib='2097152'", "region-mib=2097152"),
        ("memory-mib='1024' compute='25' slots='100000'", "slots=100000"),
        ("memory-mib='1024' compute='25' region-mib='8' slots='4'", "too small for 4 slots"),
        ("memory-mib='1024' compute='25' vsock='maybe'", "vsock='maybe'"),
        ("memory-mib='1024&#10;evil' compute='25'", r"\n"),
    ],
)
def test_bad_numbers_are_refused_by_name(attributes: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_request(element(attributes))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_the_refusal_of_a_small_region_names_one_that_works() -> None:
    with pytest.raises(InvalidRequest, match="region-mib=32") as refused:
        DomainRequest(memory_mib=1, compute_percent=1, region_mib=16, slots=4)
    assert "4 MiB" in str(refused.value)
    DomainRequest(memory_mib=1, compute_percent=1, region_mib=32, slots=4)


def test_another_namespaces_element_is_not_a_request() -> None:
    with pytest.raises(InvalidRequest, match="not ours"):
        parse_request(ElementTree.fromstring("<vgpu xmlns='urn:x' memory-mib='1' compute='1'/>"))
