# SPDX-License-Identifier: Apache-2.0
"""Tells requests that can never be granted from those that do not fit now.

Called by requests.Requests when a request comes in. It looks at what nodes are made of (few shapes,
however many nodes), as if nothing were booked; nodes that are away count, lost ones and GPUs at
fault do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sluice.controller.pool.admission.refusals import not_at_once, share_not_kept, wanted
from sluice.controller.pool.decisions import GrantRequest, Refused
from sluice.controller.pool.gpus.capacity import GpuKind, PoolCapacity, Shape
from sluice.controller.pool.gpus.slices import is_wanted
from sluice.controller.pool.model import Gpu, GpuKey, Sharing
from sluice.controller.pool.placement.search import PlacementSearch
from sluice.protocol.cuda_status import CudaStatus


def never(
    request: GrantRequest, pool_capacity: PoolCapacity, *, across: Collection[str] = ()
) -> Refused | None:
    """Refuses what would not fit even if every GPU that may be used were empty.

    `across`: the nodes that can have a part of a grant, where it asks for several.
    """
    where = f"node {request.node}" if request.local_only else "the pool"
    search = PlacementSearch(request, pool_capacity, lasting=True)
    shapes = dict(_shapes(search, pool_capacity))
    kinds = {kind for shape in shapes for _, kind in shape}
    if not kinds:
        return _nothing(request, pool_capacity, where)
    if not any(search.need(kind) for kind in kinds):
        return _not_shared_so(request, kinds, where) or _not_of_that_kind(request, kinds, where)
    each = {shape: _on_one_node(search, shape) for shape in shapes}
    if not any(cards for cards, _ in each.values()):
        return _too_large(request, kinds, where)
    cards = max(cards for cards, _ in each.values())
    slices = max(slices for _, slices in each.values())
    on_one = slices if request.same_gpu else cards
    if on_one >= request.count:
        return None
    in_all = together = 0
    if request.cross_node:
        in_all = sum(each[shape][0] * nodes for shape, nodes in shapes.items())
        able = dict(_shapes(search.within(across), pool_capacity))
        together = sum(each[shape][0] * nodes for shape, nodes in able.items())
    if request.may_span and together >= request.count:
        return None
    if request.cross_node and (request.local_only or in_all >= request.count):
        return _one_node_only(request, on_one, together)
    if request.may_span:
        text = f"{where} has {in_all} such GPU(s) in all"
        most = max(in_all, on_one)
    elif request.same_gpu:
        text = f"the GPUs of one node of {where} hold at most {slices} of them"
        most = slices
    else:
        text = f"{where} has at most {cards} such GPU(s) on one node"
        most = cards
    placed = (
        "on one node, if need be on the same GPU"
        if request.same_gpu
        else "each on a GPU of its own" + ("" if request.cross_node else " on one node")
    )
    return Refused(
        CudaStatus.DEVICE_UNAVAILABLE,
        f"wanted {wanted(request)}, {placed}; {text}; set SLUICE_VGPU to at most {most}",
    )


def never_shared_so(request: GrantRequest, pool_capacity: PoolCapacity) -> Refused | None:
    """Refuses what wants a share of a kind that no GPU which would do is shared by."""
    search = PlacementSearch(request, pool_capacity, lasting=True)
    kinds = {kind for shape, _ in _shapes(search, pool_capacity) for _, kind in shape}
    if any(search.need(kind) for kind in kinds):
        return None
    return _not_shared_so(request, kinds, f"node {request.node}" if request.node else "the pool")


def without_arbiter(request: GrantRequest, pool_capacity: PoolCapacity) -> bool:
    """Whether what is reserved would fit somewhere if an arbiter, which is away, was there."""
    now = PlacementSearch(request, pool_capacity)
    lasting = PlacementSearch(request, pool_capacity, lasting=True)
    kinds = {kind for shape, _ in _shapes(now, pool_capacity) for _, kind in shape}
    return any(lasting.need(kind) and not now.need(kind) for kind in kinds)


def reach(request: GrantRequest, pool_capacity: PoolCapacity) -> set[GpuKey]:
    """The GPUs that one of its vGPUs would fit on if they were empty."""
    search = PlacementSearch(request, pool_capacity, lasting=True)
    fit = {kind for shape in pool_capacity.shapes for kind in _capable(search, shape)}
    names = (
        pool_capacity.nodes if search.nodes is None else search.nodes & pool_capacity.nodes.keys()
    )
    return {
        capacity.gpu.key
        for name in names
        for capacity in pool_capacity.nodes[name].every()
        if capacity.kind in fit
    }


def _capable(search: PlacementSearch, shape: Shape) -> Iterator[GpuKind]:
    for count, kind in shape:
        if _on_one_node(search, ((count, kind),))[0]:
            yield kind


def _shapes(search: PlacementSearch, pool_capacity: PoolCapacity) -> Iterator[tuple[Shape, int]]:
    """What the nodes that may be used are made of, and how many of each there are."""
    if search.nodes is None:
        yield from ((shape, len(names)) for shape, names in pool_capacity.shapes.items())
        return
    counts: dict[Shape, int] = {}
    for name in search.nodes:
        if node := pool_capacity.nodes.get(name):
            counts[node.shape] = counts.get(node.shape, 0) + 1
    yield from counts.items()


def _on_one_node(search: PlacementSearch, shape: Shape) -> tuple[int, int]:
    """On how many GPUs of such a node a vGPU fits, and how many vGPUs fit in all."""
    cards = slices = 0
    for count, kind in shape:
        need = search.need(kind)
        if need is None:
            continue
        room_mib = kind.sample.memory_mib - kind.sample.reserved_mib
        if need.memory_mib <= room_mib and not need.stays:
            room_mib = kind.promise.limit_mib(kind.sample)
        times = min(room_mib // need.memory_mib, 100 // need.compute_percent)
        if times > 0:
            cards += count
            slices += count * times
    return cards, slices


def _nothing(request: GrantRequest, pool_capacity: PoolCapacity, where: str) -> Refused:
    if request.labels and any(pool_capacity.shapes):
        labels = ", ".join(f"{name}={value}" for name, value in request.labels)
        return Refused(
            CudaStatus.NO_DEVICE,
            f"no node with GPUs of {where} has the label(s) {labels}; look at `sluice node list`, "
            "or ask for others",
        )
    fix = (
        "set SLUICE_CONTROLLER and use the TCP channel to reach a GPU node"
        if request.local_only
        else "start sluice-server on a GPU node and look at `sluice gpu list`"
    )
    return Refused(CudaStatus.NO_DEVICE, f"{where} has no GPU; {fix}")


def _not_shared_so(request: GrantRequest, kinds: set[GpuKind], where: str) -> Refused | None:
    alike = {kind for kind in kinds if is_wanted(request, kind.model, kind.architecture)}
    if not alike:
        return None
    if request.sharing is Sharing.CONCURRENT:
        return not_at_once(where)
    return share_not_kept(request, where, {kind.sharing.shares for kind in alike})


def _not_of_that_kind(request: GrantRequest, kinds: set[GpuKind], where: str) -> Refused:
    asked = " ".join(part for part in (request.gpu_model, request.gpu_architecture) if part)
    there = sorted({f"{kind.model} {kind.architecture}".strip() for kind in kinds})
    return Refused(
        CudaStatus.NO_DEVICE, f"wanted a GPU {asked}; {where} has {', '.join(there)}: ask for these"
    )


def _too_large(request: GrantRequest, kinds: set[GpuKind], where: str) -> Refused:
    def most_of(gpu: Gpu) -> int:
        return gpu.grantable_beside(request.contexts)

    samples = [kind.sample for kind in kinds]
    largest = min(samples, key=lambda gpu: (-most_of(gpu), gpu.node, gpu.uuid))
    most_mib = most_of(largest)
    return Refused(
        CudaStatus.OUT_OF_MEMORY,
        f"wanted {request.memory_mib} MiB in one vGPU; the largest that {where} can give is "
        f"{most_mib} MiB ({largest.model} {largest.uuid} on {largest.node}); "
        f"set SLUICE_GMEM to at most {most_mib}",
    )


def _one_node_only(request: GrantRequest, most: int, together: int) -> Refused:
    """Why vGPUs that there are on several nodes are not to be had together."""
    if request.one_node and request.channel != "tcp":
        why = f"a client by {request.channel} has a session on one node"
        fix = "set SLUICE_CHANNEL=tcp"
    elif request.one_node:
        why, fix = "this client can have a session on one node", "update its client library"
    else:
        why = f"only {together} such GPU(s) are on nodes whose sluice-server can share a grant"
        fix = "update sluice-server on the others"
    return Refused(
        CudaStatus.NOT_SUPPORTED,
        f"wanted {wanted(request)} on several nodes (SLUICE_CROSS_NODE), and {why}, of which the "
        f"largest has {most} such GPU(s): {fix}, or set SLUICE_VGPU to at most {most}",
    )
