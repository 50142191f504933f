# SPDX-License-Identifier: Apache-2.0
"""Where the pool puts what a server asks for that relays: at home if that could ever serve it."""

from __future__ import annotations

from typing import Any

import pytest
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.model import Mode, OwnerKind
from sluice.protocol.cuda_status import CudaStatus

GUEST: dict[str, Any] = {
    "node": "b",
    "local_only": True,
    "relay": True,
    "channel": "ivshmem",
    "domain_uuid": "u-1",
    "domain_name": "guest",
    "memory_mib": 1000,
}


@pytest.fixture
def pool(bench: PoolBench) -> PoolBench:
    bench.node("a", 8000)
    return bench


def where(granted: Granted) -> tuple[str, str, str]:
    return granted.session.node, granted.session.relay, granted.session.channel


def test_a_node_without_a_gpu_is_served_by_another_one(pool: PoolBench) -> None:
    granted = pool.granted(**GUEST)
    assert where(granted) == ("a", "b", "relay")
    assert granted.session.domain_uuid == "u-1"
    assert pool.pool.requests.node_of(granted.session.request_id) == "b"


def test_a_server_that_does_not_relay_is_refused_as_ever(pool: PoolBench) -> None:
    refused = pool.refused(**{**GUEST, "relay": False})
    assert refused.status is CudaStatus.NO_DEVICE
    assert "node b has no GPU" in refused.message


def test_a_gpu_at_home_is_preferred_and_waited_for(pool: PoolBench) -> None:
    pool.node("b", 2000)
    first = pool.granted(**{**GUEST, "memory_mib": 2000})
    assert where(first) == ("b", "", "ivshmem")
    refused = pool.refused(**{**GUEST, "wait_seconds": 0})
    assert "SLUICE_WAIT" in refused.message


def test_what_home_can_never_hold_goes_elsewhere(pool: PoolBench) -> None:
    pool.node("b", 2000)
    assert where(pool.granted(**{**GUEST, "memory_mib": 2001})) == ("a", "b", "relay")


def test_a_job_is_joined_where_it_is(pool: PoolBench) -> None:
    job = {"job": "j", "job_domain": "vm u-1"}
    first = pool.granted(**GUEST, **job)
    second = pool.granted(**GUEST, **job)
    assert second.grant.id == first.grant.id
    assert where(second) == ("a", "b", "relay")
    refused = pool.refused(**{**GUEST, "relay": False}, **job)
    assert "has its vGPUs on node a" in refused.message


def test_a_client_by_tcp_is_nobodys_to_relay(pool: PoolBench) -> None:
    assert where(pool.granted(channel="tcp", memory_mib=1000)) == ("a", "", "tcp")


def test_what_is_to_be_reserved_and_is_not_stays_refused(pool: PoolBench) -> None:
    assert "reservation" in pool.refused(**GUEST, mode=Mode.RESERVED).message


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.RESERVED])
def test_what_is_held_for_a_vm_elsewhere_goes_before_its_own_hosts_gpu(
    pool: PoolBench, mode: Mode
) -> None:
    reservation = pool.reserve(
        "r", owner_kind=OwnerKind.VM, owner="u-1", memory_mib=1000, compute_percent=10
    )
    pool.node("b", 8000)  # where the VM has moved to
    granted = pool.granted(**GUEST, mode=mode)
    assert where(granted) == ("a", "b", "relay")
    assert granted.grant.reservation == reservation.id


def test_what_is_held_for_a_vm_at_home_needs_no_relay(pool: PoolBench) -> None:
    pool.node("b", 8000)
    size = {"memory_mib": 1000, "compute_percent": 10}
    reservation = pool.reserve("r", owner_kind=OwnerKind.VM, owner="u-1", node="b", **size)
    granted = pool.granted(**GUEST)
    assert where(granted) == ("b", "", "ivshmem")
    assert granted.grant.reservation == reservation.id


def test_more_than_is_held_for_a_vm_elsewhere_is_its_own_hosts(pool: PoolBench) -> None:
    pool.reserve("r", owner_kind=OwnerKind.VM, owner="u-1", memory_mib=1000, compute_percent=10)
    pool.node("b", 8000)
    granted = pool.granted(**{**GUEST, "memory_mib": 2000})
    assert (where(granted), granted.grant.reservation) == (("b", "", "ivshmem"), "")
