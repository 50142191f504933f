# SPDX-License-Identifier: Apache-2.0
"""What pages show of nodes, GPUs and projects, made from the pool's memory.

Used by console.parts. They read and change nothing, and look at no more than what they show, but
for lists with filters. Memory is in MiB, compute in percent of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.console.drawing import Part, Stretch, bar, hue_of
from sluice.controller.api.schemas import GpuView, gpu_view
from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    Gpu,
    GpuKey,
    Grant,
    Quota,
    SessionState,
)
from sluice.controller.pool.pool import Pool
from sluice.resources.vgpu_request import Sharing

WHOLE_PERCENT = 100.0
MOST_PROGRAMS = 3


@dataclass(frozen=True, slots=True)
class Slice:
    """A vGPU on its GPU, and whose it is."""

    grant: str
    number: int  # in the grant
    project: str
    hue: int
    memory_mib: int
    overhead_mib: int  # of its processes' contexts, besides
    compute_percent: int
    used_percent: float | None  # of the GPU in the last second; None: its node has not said
    priority: int
    reservation: str
    sharing: Sharing
    programs: tuple[str, ...]
    sessions: int

    @property
    def id(self) -> str:
        """As REST names it."""
        return f"{self.grant}.{self.number}"


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A GPU with its slices, drawn to scale."""

    gpu: GpuView
    slices: list[Slice]
    memory: list[Part]
    compute: list[Part]
    used_percent: float | None  # of its time, in the last second; None: nobody has said
    promised_mib: int

    @property
    def free_mib(self) -> int:
        """What nobody was promised."""
        return max(0, self.gpu.memory_mib - self.gpu.reserved_mib - self.promised_mib)

    @property
    def free_percent(self) -> int:
        """The same of its compute."""
        return max(0, 100 - self.gpu.granted_percent - self.gpu.kept_percent)


def slices_of(pool: Pool, key: GpuKey) -> list[Slice]:
    """The vGPUs on a GPU, the oldest grant's first."""
    grants = sorted(pool.grants_live_on_gpu(key), key=lambda g: (g.created, g.id))
    return [each for grant in grants for each in _slices(pool, grant, key)]


def _slices(pool: Pool, grant: Grant, key: GpuKey) -> list[Slice]:
    alive = [s for s in pool.sessions_of(grant.id) if s.state is not SessionState.ENDED]
    found = []
    for number, (place, vgpu) in enumerate(grant.placed()):
        if place != key:
            continue
        users = [s for s in alive if not s.chosen or number in s.chosen]
        time = pool.vgpu_time(grant.id, number)
        project = grant.project or DEFAULT_PROJECT
        found.append(
            Slice(
                grant=grant.id,
                number=number,
                project=project,
                hue=hue_of(project),
                memory_mib=vgpu.memory_mib,
                overhead_mib=vgpu.overhead_mib,
                compute_percent=vgpu.compute_percent,
                used_percent=round(time.share_1s * 100, 1) if time else None,
                priority=grant.priority,
                reservation=grant.reservation,
                sharing=vgpu.sharing,
                programs=tuple(sorted({s.program for s in users if s.program}))[:MOST_PROGRAMS],
                sessions=len(users),
            )
        )
    return found


def gpu_card(pool: Pool, gpu: Gpu) -> GpuCard:
    """A GPU as its card shows it."""
    shown, slices = gpu_view(pool, gpu), slices_of(pool, gpu.key)
    used = [s.used_percent for s in slices if s.used_percent is not None]
    memory = [
        Stretch(gpu.reserved_mib, "system", f"kept back by the node: {gpu.reserved_mib:,} MiB")
    ]
    compute = []
    for each in slices:
        name = f"{each.project}, grant {each.id}"
        context = f" and {each.overhead_mib:,} MiB of contexts" if each.overhead_mib else ""
        memory.append(
            Stretch(
                each.memory_mib + each.overhead_mib,
                "slice",
                f"{name}: {each.memory_mib:,} MiB promised{context}",
                each.hue,
            )
        )
        said = "" if each.used_percent is None else f", {each.used_percent:g} % used"
        compute.append(
            Stretch(
                each.compute_percent,
                "slice",
                f"{name}: {each.compute_percent} % promised{said}",
                each.hue,
                each.used_percent,
            )
        )
    memory.append(Stretch(shown.kept_mib, "kept", f"kept for reservations: {shown.kept_mib:,} MiB"))
    compute.append(
        Stretch(shown.kept_percent, "kept", f"kept for reservations: {shown.kept_percent} %")
    )
    return GpuCard(
        gpu=shown,
        slices=slices,
        memory=bar(memory, gpu.memory_mib),
        compute=bar(compute, WHOLE_PERCENT),
        used_percent=round(sum(used), 1) if used else None,
        promised_mib=shown.granted_mib + shown.kept_mib,
    )


@dataclass(frozen=True, slots=True)
class Limit:
    """What a project holds of something, and the most that it may; 0: no limit."""

    name: str
    held: int
    most: int
    unit: str

    @property
    def share(self) -> float:
        """Of the most, from 0 to 1."""
        return min(1.0, self.held / self.most) if self.most else 0.0


def limits_of(pool: Pool, project: str) -> tuple[list[Limit], Quota]:
    """A project's quota with what it holds, and the quota itself (generation 0: it has none)."""
    quota = pool.quotas.limits.get(project) or Quota(project, generation=0)
    held = pool.quotas.held(project)
    return [
        Limit("vGPUs", held.vgpus, quota.vgpus, ""),
        Limit("Memory", held.memory_mib, quota.memory_mib, "MiB"),
        Limit("Compute", held.compute_percent, quota.compute_percent, "%"),
    ], quota


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue, and why it waits."""

    position: int
    request: str
    reservation: str
    project: str
    program: str
    priority: int
    vgpus: int
    memory_mib: int
    compute_percent: int
    why: str


def waiting(pool: Pool, first: int, most: int) -> list[Waiting]:
    """So many of those that wait, from a position on; the next to be served has position 1."""
    found: list[Waiting] = []
    for position, entry in enumerate(pool.queue, 1):
        if position < first:
            continue
        if len(found) == most:
            break
        request = entry.request
        found.append(
            Waiting(
                position,
                request.request_id,
                request.reservation,
                request.project or DEFAULT_PROJECT,
                request.program,
                request.priority,
                request.count,
                request.memory_mib,
                request.compute_percent,
                _why(pool, request),
            )
        )
    return found


def _why(pool: Pool, request: GrantRequest) -> str:
    if said := pool.requests.why_waiting(request):
        return said
    free = pool.fragmentation()
    if request.memory_mib > free.largest_vgpu_mib:
        return f"the most memory that one vGPU could get now is {free.largest_vgpu_mib:,} MiB"
    if request.compute_percent == WHOLE_PERCENT and free.free_cards < request.count:
        return f"it wants whole GPUs ({request.count}), and {free.free_cards} are free"
    return "no node has room for all of it now"
