# SPDX-License-Identifier: Apache-2.0
"""What a domain's metadata asks for, whoever wrote it, and what of it is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.hypervisor.domain_document import DomainDocument, parse_domain
from sluice.hypervisor.following import Wish, Wishes, wishes_of

from .domain_texts import OTHER_UUID, REQUEST, UUID, ours, q35, region

BAD_TEXT = ours().replace("memory-mib='1024'", "memory-mib='many'")

RINGING = replace(REQUEST, channel="ivshmem-doorbell")

NONE = parse_domain(q35())
ASKS = parse_domain(q35(metadata=ours()))
HAS = parse_domain(q35(devices=region()))
BOTH = parse_domain(q35(devices=region(), metadata=ours()))
BAD = parse_domain(q35(devices=region(), metadata=BAD_TEXT))
FOREIGN = parse_domain(q35(devices=region(OTHER_UUID), metadata=ours()))
SMALLER = parse_domain(q35(devices=region(size_mib=32), metadata=ours()))


@pytest.mark.parametrize(
    ("persistent", "live", "live_wish", "config_wish"),
    [
        (NONE, None, Wish(), Wish()),
        (BOTH, BOTH, Wish(), Wish()),
        (ASKS, None, Wish(), Wish(put=REQUEST)),
        (ASKS, NONE, Wish(), Wish(put=REQUEST)),  # virsh edit: from the next start
        (NONE, ASKS, Wish(put=REQUEST), Wish()),  # virsh metadata without --config: now
        (ASKS, ASKS, Wish(put=REQUEST), Wish(put=REQUEST)),
        (BOTH, ASKS, Wish(put=REQUEST), Wish()),
        (HAS, HAS, Wish(take=HAS.region), Wish(take=HAS.region)),
        (NONE, HAS, Wish(take=HAS.region), Wish()),
        (BAD, BAD, Wish(), Wish()),  # nobody is thrown out for a slip of the pen
        (FOREIGN, FOREIGN, Wish(), Wish()),
        (SMALLER, SMALLER, Wish(), Wish(put=REQUEST, take=SMALLER.region)),
        (None, ASKS, Wish(put=REQUEST), Wish()),  # a transient domain
    ],
)
def test_each_side_follows_its_own_metadata(
    persistent: DomainDocument | None,
    live: DomainDocument | None,
    live_wish: Wish,
    config_wish: Wish,
) -> None:
    wishes = wishes_of(persistent, live)
    assert wishes == Wishes(live_wish, config_wish)
    assert wishes.any == (live_wish != Wish() or config_wish != Wish())


def test_bad_metadata_is_named() -> None:
    assert BAD.problem is not None
    assert "memory-mib" in BAD.problem


def test_what_was_unplugged_comes_back_with_the_next_start_only() -> None:
    assert wishes_of(BOTH, ASKS, may_plug=False) == Wishes()
    assert wishes_of(HAS, HAS, may_plug=False).live.take is not None


def test_a_doorbell_is_another_device() -> None:
    asks, plain, has = (
        parse_domain(q35(metadata=ours(RINGING), devices=devices))
        for devices in ("", region(), region(served=UUID))
    )
    assert has.region is not None
    assert has.region.size_bytes == REQUEST.region_bytes
    assert wishes_of(asks, asks) == Wishes(Wish(put=RINGING), Wish(put=RINGING))
    assert wishes_of(has, has) == Wishes()
    # what runs keeps what it has
    assert wishes_of(plain, plain) == Wishes(config=Wish(put=RINGING, take=plain.region))
    back = parse_domain(q35(metadata=ours(), devices=region(served=UUID)))
    assert wishes_of(back, back) == Wishes(config=Wish(put=REQUEST, take=back.region))


def test_anothers_server_gives_anothers_memory() -> None:
    copied = parse_domain(q35(metadata=ours(RINGING), devices=region(served=OTHER_UUID)))
    assert copied.region is None
    assert copied.foreign_regions == (f"sluice-{UUID}",)
    assert wishes_of(copied, copied) == Wishes()
