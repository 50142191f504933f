# SPDX-License-Identifier: Apache-2.0
"""What a domain's metadata asks for, whoever wrote it, and what of it is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.hypervisor.domain_document import DomainDocument, parse_domain
from sluice.hypervisor.following import DeviceChange, Plan, lacking, plan_of

from .domain_texts import OTHER_UUID, REQUEST, UUID, ours, q35, region

BAD_TEXT = ours().replace("memory-mib='1024'", "memory-mib='many'")

RINGING = replace(REQUEST, channel="ivshmem-doorbell")

NONE = parse_domain(q35())
ASKS = parse_domain(q35(metadata=ours()))
HAS = parse_domain(q35(devices=region()))
BOTH = parse_domain(q35(devices=region(), metadata=ours()))
BAD = parse_domain(q35(devices=region(), metadata=BAD_TEXT))
FOREIGN = parse_domain(q35(devices=region(OTHER_UUID), metadata=ours()))
LEFT = parse_domain(q35(devices=region() + region(OTHER_UUID)))
SMALLER = parse_domain(q35(devices=region(size_mib=32), metadata=ours()))


@pytest.mark.parametrize(
    ("persistent", "live", "live_change", "config_change"),
    [
        (NONE, None, DeviceChange(), DeviceChange()),
        (BOTH, BOTH, DeviceChange(), DeviceChange()),
        (ASKS, None, DeviceChange(), DeviceChange(put=REQUEST)),
        (ASKS, NONE, DeviceChange(), DeviceChange(put=REQUEST)),  # virsh edit: from the next start
        (
            NONE,
            ASKS,
            DeviceChange(put=REQUEST),
            DeviceChange(),
        ),  # virsh metadata without --config: now
        (ASKS, ASKS, DeviceChange(put=REQUEST), DeviceChange(put=REQUEST)),
        (BOTH, ASKS, DeviceChange(put=REQUEST), DeviceChange()),
        (HAS, HAS, DeviceChange(take=HAS.region), DeviceChange(take=HAS.region)),
        (NONE, HAS, DeviceChange(take=HAS.region), DeviceChange()),
        (BAD, BAD, DeviceChange(), DeviceChange()),  # nobody is thrown out for a slip of the pen
        (FOREIGN, FOREIGN, DeviceChange(), DeviceChange()),
        (LEFT, None, DeviceChange(), DeviceChange(take=LEFT.region)),  # its own goes all the same
        (SMALLER, SMALLER, DeviceChange(), DeviceChange(put=REQUEST, take=SMALLER.region)),
        (None, ASKS, DeviceChange(put=REQUEST), DeviceChange()),  # a transient domain
    ],
)
def test_each_side_follows_its_own_metadata(
    persistent: DomainDocument | None,
    live: DomainDocument | None,
    live_change: DeviceChange,
    config_change: DeviceChange,
) -> None:
    plan = plan_of(persistent, live)
    assert plan == Plan(live_change, config_change)
    assert plan.any == (live_change != DeviceChange() or config_change != DeviceChange())


def test_bad_metadata_is_named() -> None:
    assert BAD.problem is not None
    assert "memory-mib" in BAD.problem


def test_what_was_unplugged_comes_back_with_the_next_start_only() -> None:
    assert plan_of(BOTH, ASKS, may_plug=False) == Plan()
    assert plan_of(HAS, HAS, may_plug=False).live.take is not None


def test_a_doorbell_is_another_device() -> None:
    asks, plain, has = (
        parse_domain(q35(metadata=ours(RINGING), devices=devices))
        for devices in ("", region(), region(served=UUID))
    )
    assert has.region is not None
    assert has.region.size_bytes == REQUEST.region_bytes
    assert plan_of(asks, asks) == Plan(DeviceChange(put=RINGING), DeviceChange(put=RINGING))
    assert plan_of(has, has) == Plan()
    # what runs keeps what it has
    assert plan_of(plain, plain) == Plan(config=DeviceChange(put=RINGING, take=plain.region))
    back = parse_domain(q35(metadata=ours(), devices=region(served=UUID)))
    assert plan_of(back, back) == Plan(config=DeviceChange(put=REQUEST, take=back.region))


def test_anothers_server_gives_anothers_memory() -> None:
    copied = parse_domain(q35(metadata=ours(RINGING), devices=region(served=OTHER_UUID)))
    assert copied.region is None
    assert copied.foreign_regions == (f"sluice-{UUID}",)
    assert plan_of(copied, copied) == Plan()


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (BOTH, None),
        (ASKS, "not in its definition"),
        (SMALLER, "not in its definition"),
        (NONE, "asks for no vGPU"),
        (HAS, "asks for no vGPU"),
        (BAD, "memory-mib"),
        (FOREIGN, f"sluice-{OTHER_UUID}, the channel of another domain"),
    ],
)
def test_what_a_start_would_be_without_is_said(definition: DomainDocument, why: str | None) -> None:
    said = lacking(definition)
    assert (said is None) == (why is None)
    assert (why or "") in (said or "")
