# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs and the VMs that hold them, without I/O: who may have one, and what is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pool_bench import PoolBench

from sluice.controller.pool.gpus.attachment import (
    Attachment,
    AttachmentState,
    AttachWhen,
    ReportedHolding,
)
from sluice.controller.pool.gpus.attachments import Attachments
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import Event, GpuKey, GpuMode
from sluice.controller.pool.pool import Snapshot

GPU = GpuKey("a", "a-gpu0")
PCI = "0000:65:00.0"
VM = "606ef660-97e7-4293-92c4-c8b7480e0c99"
OTHER = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def native(make_bench: Callable[..., PoolBench]) -> PoolBench:
    """A node with one GPU, handed over to be a VM's."""
    bench = make_bench(hands_over=True, node_timeout_seconds=1e9)
    bench.node("a", 8000, pci_address=PCI)
    bench.pool.switching.switch_gpu(GPU, GpuMode.NATIVE)
    bench.pool.switching.handed_over(GPU)
    assert bench.pool.mode(GPU) is GpuMode.NATIVE
    bench.pool.take_changes()
    return bench


def attachments(bench: PoolBench) -> Attachments:
    return bench.pool.native_gpus


def begin(bench: PoolBench, domain: str = "web", **how: Any) -> Any:
    return attachments(bench).begin_attach(GPU, domain, AttachWhen.BOTH, rom_bar=True, **how)


def holding(uuid: str = VM, name: str = "web", **how: bool) -> ReportedHolding:
    return ReportedHolding(PCI, uuid, name, **{"live": True, "config": True, **how})


def attached(bench: PoolBench) -> Attachment:
    begin(bench)
    attachments(bench).finish_attach(GPU, holding(), "")
    return bench.pool.attachments[GPU]


def kinds(bench: PoolBench) -> list[str]:
    return [c.kind for c in bench.pool.take_changes() if isinstance(c, Event)]


def test_a_native_gpu_goes_to_one_vm_and_comes_back(native: PoolBench) -> None:
    order = begin(native)
    assert (order.node, order.pci_address, order.domain) == ("a", PCI, "web")
    record = native.pool.attachments[GPU]
    assert (record.state, record.domain_name) == (AttachmentState.ATTACHING, "web")
    attachments(native).finish_attach(GPU, holding(), "", "mind its BARs")
    assert (record.state, record.domain_uuid, record.live, record.config, record.reason) == (
        AttachmentState.ATTACHED, VM, True, True, "mind its BARs",
    )  # fmt: skip
    order = attachments(native).begin_detach(GPU)
    assert order.domain == VM, "a name may be another VM's by now"
    attachments(native).finish_detach(GPU, None, "")
    assert native.pool.attachments == {}
    assert native.pool.mode(GPU) is GpuMode.NATIVE
    assert kinds(native) == ["gpu.attached", "gpu.detached"]


def test_only_a_native_gpu_of_a_node_that_is_there_is_given(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    with pytest.raises(Unknown):
        attachments(bench).begin_attach(GpuKey("a", "x"), "web", AttachWhen.BOTH, rom_bar=True)
    with pytest.raises(Impossible, match="is pooled; only a native GPU"):
        begin(bench)
    bench.pool.switching.switch_gpu(GPU, GpuMode.NATIVE)
    with pytest.raises(Impossible, match="is draining"):
        begin(bench)
    bench.pool.switching.handed_over(GPU)
    with pytest.raises(Impossible, match=r"\[native\] addresses"):
        begin(bench)
    with pytest.raises(Impossible, match="held by no VM"):
        attachments(bench).begin_detach(GPU)
    bench.node("a", 8000, pci_address=PCI)
    bench.pool.membership.disconnected("a")
    with pytest.raises(Impossible, match="node a is away"):
        begin(bench)
    assert bench.pool.attachments == {}


def test_nobody_else_gets_what_a_vm_holds(native: PoolBench) -> None:
    begin(native)
    for domain in ("db", "web"):
        with pytest.raises(Impossible, match="has an order about"):
            begin(native, domain)
    attachments(native).finish_attach(GPU, holding(), "")
    with pytest.raises(Impossible, match="to VM web; take it back first"):
        begin(native, "db")
    begin(native, VM)  # once more for the same VM does no harm
    attachments(native).finish_attach(GPU, None, "libvirt is away")
    record = native.pool.attachments[GPU]
    assert (record.state, record.reason) == (AttachmentState.ATTACHED, "libvirt is away")


def test_what_the_server_cannot_do_leaves_nothing_booked(native: PoolBench) -> None:
    begin(native)
    attachments(native).finish_attach(GPU, None, "0000:65:00.1 shares its group")
    assert native.pool.attachments == {}
    changes = native.pool.take_changes()
    [event] = [c for c in changes if isinstance(c, Event)]
    assert (event.kind, event.text) == (
        "gpu.not_attached", "to VM web: 0000:65:00.1 shares its group",
    )  # fmt: skip


def test_a_gpu_that_a_vm_holds_does_not_return_to_the_pool(native: PoolBench) -> None:
    attached(native)
    with pytest.raises(Impossible, match="held by VM web"):
        native.pool.switching.switch_gpu(GPU, GpuMode.POOLED)
    attachments(native).begin_detach(GPU)
    attachments(native).finish_detach(GPU, holding(config=False), "the guest has not released it")
    with pytest.raises(Impossible, match="held by VM web"):
        native.pool.switching.switch_gpu(GPU, GpuMode.POOLED)
    attachments(native).report("a", [])
    [handover] = native.pool.switching.switch_gpu(GPU, GpuMode.POOLED).handovers
    assert (handover.back, handover.pci_address) == (True, PCI)
    assert native.pool.mode(GPU) is GpuMode.RETURNING, "its driver has yet to have it"
    with pytest.raises(Impossible, match="is returning"):
        begin(native)
    native.pool.switching.handed_over(GPU, "0000:65:00.0 is bound to vfio-pci")
    assert "bound to vfio-pci" in native.pool.switches[GPU].reason
    assert native.pool.expire().handovers == []
    native.clock.seconds += 31
    [again] = native.pool.expire().handovers
    assert again.back, "what failed is tried again"
    native.pool.switching.handed_over(GPU, generation=again.generation)
    assert native.pool.mode(GPU) is GpuMode.POOLED


def test_libvirt_is_the_truth(native: PoolBench) -> None:
    record = attached(native)
    kinds(native)
    attachments(native).report("a", [holding()])
    assert native.pool.take_changes() == [], "nothing has changed"
    attachments(native).report("a", [holding(live=False, name="renamed")])
    assert (record.live, record.domain_name) == (False, "renamed")
    attachments(native).report("a", [])
    assert native.pool.attachments == {}, "destroyed, undefined, or taken out with virsh"
    attachments(native).report("a", [holding(OTHER, "db")])
    assert native.pool.attachments[GPU].domain_name == "db", "put in with virsh"
    attachments(native).report("a", [holding(), holding(OTHER, "db", live=False)])
    assert native.pool.attachments[GPU].domain_uuid == VM, "who runs with it has it"
    assert kinds(native) == [
        "gpu.detached", "gpu.attached", "gpu.contested", "gpu.attached",
    ]  # fmt: skip


def test_a_gpu_of_the_pool_in_a_vms_definition_is_said_once(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000, pci_address=PCI)
    kinds(bench)
    for _ in range(3):
        attachments(bench).report("a", [holding(live=False)])
    assert bench.pool.attachments == {}
    assert kinds(bench) == ["gpu.contested"]
    attachments(bench).report("a", [])
    attachments(bench).report("a", [holding(live=False)])
    assert kinds(bench) == ["gpu.contested"], "it was taken out and is back"


def test_a_report_does_not_decide_about_an_order_under_way(native: PoolBench) -> None:
    begin(native)
    attachments(native).report("a", [])
    assert native.pool.attachments[GPU].state is AttachmentState.ATTACHING
    attachments(native).unanswered(GPU, "its stream ended")
    assert "next report" in native.pool.attachments[GPU].reason
    attachments(native).report("a", [holding()])
    assert native.pool.attachments[GPU].state is AttachmentState.ATTACHED
    attachments(native).begin_detach(GPU)
    attachments(native).unanswered(GPU, "its stream ended")
    attachments(native).report("a", [])
    assert native.pool.attachments == {}


def test_a_lost_node_keeps_its_vms_gpus_and_an_operator_may_forget_them(
    native: PoolBench,
) -> None:
    attached(native)
    native.pool.membership.disconnected("a")
    native.clock.seconds += 2e9
    assert native.pool.expire().lost == ["a"]
    assert GPU in native.pool.attachments
    with pytest.raises(Impossible, match="node a is lost"):
        attachments(native).begin_detach(GPU)
    attachments(native).forget(GPU)
    assert native.pool.attachments == {}
    native.node("a")
    attachments(native).report("a", [holding()])
    assert GPU in native.pool.attachments, "it returned, and its VM has it"


def test_what_was_recorded_survives_a_restart_and_is_handed_over_again(
    native: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    attached(native)
    pool = native.pool
    after = make_bench(
        hands_over=True,
        snapshot=Snapshot(
            list(pool.nodes.values()),
            list(pool.gpus.values()),
            switches=list(pool.switches.values()),
            attachments=list(pool.attachments.values()),
        ),
    )
    assert after.pool.attachments[GPU].domain_name == "web"
    after.node("a")
    assert GPU in after.pool.gpus, "its VM has it: that CUDA does not see it is no news"
    attachments(after).report("a", [])
    assert after.pool.attachments == {}


# the hand-over


def test_a_gpu_that_cannot_be_a_vms_is_not_drained_for_one(bench: PoolBench) -> None:
    bench.node("a", 8000, native_problem="this host translates no device's memory")
    grant = bench.granted().grant
    with pytest.raises(Impossible, match="translates no device"):
        bench.pool.switching.switch_gpu(GPU, GpuMode.NATIVE, preempt=True)
    assert bench.pool.mode(GPU) is GpuMode.POOLED
    assert grant.ended is None
    bench.pool.switching.switch_gpu(GPU, GpuMode.DRAINED)


def test_what_fails_is_tried_again_and_said_once(make_bench: Callable[..., PoolBench]) -> None:
    bench = make_bench(hands_over=True, node_timeout_seconds=1e9)
    bench.node("a", 8000, pci_address=PCI)
    pool = bench.pool
    [first] = pool.switching.switch_gpu(GPU, GpuMode.NATIVE).handovers
    assert (first.to_native, first.pci_address) == (True, PCI)
    pool.switching.handed_over(GPU, "nvidia-persistenced has it open", first.generation)
    assert "nvidia-persistenced" in bench.pool.switches[GPU].reason
    for _ in range(3):
        assert bench.pool.expire().handovers == []
        bench.clock.seconds += 31
        [again] = bench.pool.expire().handovers
        pool.switching.handed_over(GPU, "nvidia-persistenced has it open", again.generation)
    assert kinds(bench).count("gpu.stuck") == 1
    bench.pool.membership.disconnected("a")
    bench.clock.seconds += 31
    assert bench.pool.expire().handovers == [], "it waits for its node"
    [again] = bench.node("a", 8000, pci_address=PCI).handovers
    pool.switching.handed_over(GPU, generation=again.generation)
    assert bench.pool.mode(GPU) is GpuMode.NATIVE
