# SPDX-License-Identifier: Apache-2.0
"""What the sessions of this host use, as their workers say, for /metrics.

Owned by sessions.lifecycle, which tells of each session's begin and end; refreshed by
server.metrics when somebody scrapes, and told by sessions.time_reports what workers answer to that,
which asks every second for the GPU's time (sessions.vgpu_time has those sums). Series
are not named after sessions, of which there is no end, but after places: a vGPU has the lowest
number that is free on its GPU while its grant has a session here, so that a GPU has at most as many
series as vGPUs at a time. It promises that counters never fall: what an ended session moved stays
counted, and what one moved before this server adopted it is not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as Counted

from sluice.config.metric_families import LATENCY_BUCKETS, Family, FamilyCollector, Samples
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.controller.link import GrantedVgpu
from sluice.server.sessions.records import Session, part_of_gpu
from sluice.server.sessions.session_history import SessionHistory
from sluice.server.sessions.vgpu_time import VgpuTime, VgpuTimes
from sluice.server.workers.packets import Message
from sluice.server.workers.worker import WorkerError

MIB = 1 << 20
ANSWER_SECONDS = 2.0
MOST = 1 << 62
#: Figures of a worker's `status` and the families that count them, over all sessions of a channel.
COUNTED = {
    "bytes_in": "sluice_channel_received_bytes_total",
    "bytes_out": "sluice_channel_sent_bytes_total",
    "commands": "sluice_channel_commands_total",
    "round_trips": "sluice_channel_round_trips_total",
    "merged": "sluice_channel_merged_commands_total",
}
#: And those of commands that ran singly where launches are merged: by why.
LEFT = {
    "merged_late": "late",
    "merged_differing": "differing",
    "merged_cut_short": "cut_short",
    "merged_not_made": "not_made",
    "merged_unseen": "unseen",
    "merged_answered": "answered",
    "merged_library": "library",
    "merged_other": "other",
}
GRAPHS = "merged_launches"
SUMMED = (*COUNTED, GRAPHS, *LEFT)
BUSY_MS = "gpu_busy_ms"  # of all its vGPUs: what a worker of an earlier release says

FAMILIES = (
    Family(
        "sluice_channel_received_bytes_total",
        "counter",
        "Bytes from clients to workers: commands, and what the GPU read from shared memory.",
        ("channel",),
    ),
    Family(
        "sluice_channel_sent_bytes_total",
        "counter",
        "Bytes from workers to clients: answers, and what the GPU wrote to shared memory.",
        ("channel",),
    ),
    Family(
        "sluice_channel_commands_total", "counter", "Commands that workers ran.", ("channel",)
    ),
    Family(
        "sluice_channel_round_trips_total",
        "counter",
        "Commands whose clients waited for an answer.",
        ("channel",),
    ),
    Family(
        "sluice_channel_merged_commands_total",
        "counter",
        "Commands in whose place graphs were launched, as they repeated (merge_launches).",
        ("channel",),
    ),
    Family(
        "sluice_channel_merged_graphs_total",
        "counter",
        "Graphs that were launched in the place of commands, as these repeated.",
        ("channel",),
    ),
    Family(
        "sluice_channel_left_commands_total",
        "counter",
        "Commands of sessions with merged launches that ran singly, by why (docs/protocol.md).",
        ("channel", "reason"),
    ),
    Family(
        "sluice_server_sessions",
        "gauge",
        "Sessions here, by the channel that they have now.",
        ("channel",),
    ),
    Family(
        "sluice_server_sessions_disconnected",
        "gauge",
        "Of these, sessions that wait for another connection of their client's.",
        ("channel",),
    ),
    Family(
        "sluice_server_sessions_started_total",
        "counter",
        "Sessions that began here, by the channel that they had first.",
        ("channel",),
    ),
    Family(
        "sluice_server_sessions_ended_total",
        "counter",
        "Sessions that ended here, by the channel that they had last.",
        ("channel",),
    ),
    Family(
        "sluice_server_workers_silent",
        "gauge",
        "Workers of sessions that did not say in time what they use.",
    ),
    Family(
        "sluice_vgpu_memory_limit_bytes", "gauge", "Memory that the vGPU has.", ("gpu", "vgpu")
    ),
    Family(
        "sluice_vgpu_memory_used_bytes",
        "gauge",
        "Memory that its sessions use of it, their libraries' too.",
        ("gpu", "vgpu"),
    ),
    Family(
        "sluice_vgpu_compute_limit_ratio",
        "gauge",
        "The share of the GPU's compute that the vGPU was granted.",
        ("gpu", "vgpu"),
    ),
    Family("sluice_vgpu_sessions", "gauge", "Sessions that have it.", ("gpu", "vgpu")),
    Family(
        "sluice_vgpu_busy_seconds_total",
        "counter",
        "GPU time that its sessions used, without their clients' pauses.",
        ("gpu", "vgpu"),
    ),
    Family(
        "sluice_vgpu_waiting_seconds_total",
        "counter",
        "Time that its work waited for a turn, while others had theirs.",
        ("gpu", "vgpu"),
    ),
    Family(
        "sluice_vgpu_turns_total", "counter", "Turns that its grant has had.", ("gpu", "vgpu")
    ),
    Family(
        "sluice_vgpu_together_seconds_total",
        "counter",
        "Time in which its grant ran at once with others instead of in turns.",
        ("gpu", "vgpu"),
    ),
    Family(
        "sluice_vgpu_share_ratio",
        "gauge",
        "The share of the GPU's time that it used in the last window: 1s, 60s.",
        ("gpu", "vgpu", "window"),
    ),
    Family(
        "sluice_vgpu_owner",
        "gauge",
        "1: whose the vGPU is, as this host knows it (user, vm, container, address).",
        ("gpu", "vgpu", "owner_kind", "owner"),
    ),
    Family(
        "sluice_vgpu_pod",
        "gauge",
        "1: the Kubernetes pod that has the vGPU, and its container where that is known.",
        ("gpu", "vgpu", "namespace", "pod", "pod_uid", "container"),
    ),
)  # fmt: skip


@dataclass(slots=True)
class Place:
    """A vGPU's number on its GPU, and who has it."""

    gpu: str
    number: int
    sessions: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Followed:
    """A session and what its worker said last."""

    session: Session
    places: dict[int, Place]  # by the session's own index of the vGPU
    base: dict[str, int]  # what its worker had counted before
    said: dict[str, int] = field(default_factory=dict)
    used_mib: dict[int, int] = field(default_factory=dict)  # by the same index


class SessionFigures:
    """Every session's figures, and those of the ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.times = VgpuTimes(clock)
        self.history = SessionHistory(clock)
        self._followed: dict[str, Followed] = {}
        self._places: dict[str, dict[tuple[str, int], Place]] = defaultdict(dict)
        self._moved: dict[str, Counter[str]] = defaultdict(Counter)  # by channel, of the ended
        # seconds and turns of the ended, by family, GPU and number
        self._had: dict[tuple[str, str, str], float] = defaultdict(float)
        self._started: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._silent = 0
        self.registry = CollectorRegistry()
        self._start_seconds = Histogram(
            "sluice_server_session_start_seconds",
            "From a grant to the session's start: taking a worker and giving it the channel.",
            ["channel"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._refusals = Counted(
            "sluice_server_refusals_total",
            "Sessions that were refused, by the CUDA error that their clients got.",
            ["error"],
            registry=self.registry,
        )
        self.registry.register(FamilyCollector(FAMILIES, self.fill))
        self._asking: asyncio.Task[None] | None = None
        #: Told of every answer of a session's worker.
        self.on_heard: Callable[[Session, Message], None] = lambda session, status: None

    # sessions come and go

    def begin(self, session: Session, adopted: Message | None = None) -> None:
        """A session began, or was adopted and its worker's counters stood so already."""
        if session.gone.is_set():
            return  # its worker has exited before this could be said
        found = {index: self._place(session, place) for index, place in enumerate(session.places)}
        for place in found.values():
            place.sessions.add(session.id)
        base = _numbers(adopted) if adopted else {}
        self._followed[session.id] = Followed(session, found, base)
        gpus = {place: session.vgpus[place].gpu_uuid for place in session.places}
        said = _used_seconds(session, adopted) if adopted else None
        age = max(0.0, time.time() - session.started) if adopted else 0.0
        self.times.begin(session.id, session.grant_id, gpus, said, age)
        if not adopted:
            self._started[session.requester.channel] += 1

    def hear(self, session_id: str, status: Message) -> None:
        """A worker said how it stands: when it was asked, or with its last words."""
        followed = self._followed.get(session_id)
        if followed is None:
            return
        self.on_heard(followed.session, status)
        for key, value in _numbers(status).items():
            # what a worker that was taken over says must not make a counter fall
            followed.said[key] = max(value, followed.said.get(key, 0))
        used = _used_seconds(followed.session, status)
        self.times.hear(session_id, used)
        followed.used_mib = {
            index: _bounded(status.number(key))
            for index in followed.places
            if status.get(key := f"vgpu.{index}.used_mib")
        }
        memory_mib = float(sum(followed.used_mib.values()))
        self.history.hear(session_id, sum(used.values()), memory_mib, followed.said)

    def moved(self, session_id: str, channel: str) -> None:
        """The session goes by this channel from now on: before its requester says so.

        What it moved by then stays counted with the one that it had.
        """
        followed = self._followed.get(session_id)
        if followed and followed.session.requester.channel != channel:
            self._moved[followed.session.requester.channel].update(_moved(followed))
            followed.base = {**followed.base, **followed.said}

    def started(self, channel: str, seconds: float) -> None:
        """A granted session has its worker, after so long."""
        self._start_seconds.labels(channel).observe(seconds)

    def refused(self, status: int) -> None:
        """A client was told why it gets no session."""
        known = status in CudaStatus._value2member_map_
        self._refusals.labels(CudaStatus(status).name.lower() if known else "other").inc()

    def end(self, session_id: str) -> None:
        """The session's worker has exited."""
        followed = self._followed.pop(session_id, None)
        self.history.end(session_id)
        if followed is None:
            return
        channel = followed.session.requester.channel
        self._ended[channel] += 1
        self._moved[channel].update(_moved(followed))
        self._keep(self.times.end(session_id))
        self._leave_places(followed)

    def change_gpu(self, session: Session, gpu: str) -> None:
        """The session is on this GPU, and its vGPUs; what they had by then is the other's.

        Those of a job move with the first of its sessions that does.
        """
        followed = self._followed.get(session.id)
        if followed is None:
            return
        moving = [vgpu for vgpu in self.times.of(session.id) if vgpu.gpu != gpu]
        self._keep(moving)
        for vgpu in moving:
            vgpu.gpu, vgpu.elsewhere = gpu, _sums(vgpu)
        self._leave_places(followed)
        followed.places = {n: self._place(session, at) for n, at in enumerate(session.places)}
        for place in followed.places.values():
            place.sessions.add(session.id)

    def _keep(self, vgpus: Iterable[VgpuTime]) -> None:
        """What they had of their GPUs stays counted there."""
        for vgpu in vgpus:
            at = vgpu.gpu, str(self._number(vgpu.gpu, (vgpu.grant_id, vgpu.place)))
            for family, value in _had(vgpu).items():
                self._had[family, *at] += value

    def _leave_places(self, followed: Followed) -> None:
        for place in followed.places.values():
            place.sessions.discard(followed.session.id)
        for gpu in {place.gpu for place in followed.places.values()}:
            here = self._places[gpu]
            for key in [key for key, place in here.items() if not place.sessions]:
                del here[key]

    # a scrape

    async def refresh(self) -> None:
        """Asks every worker how it stands; who asks meanwhile waits for the same answers."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        await asyncio.shield(self._asking)

    async def _ask_all(self) -> None:
        sessions = [f.session for f in self._followed.values() if not f.session.opening]
        answers = await asyncio.gather(*(self._ask(session) for session in sessions))
        self._silent = answers.count(False)

    async def _ask(self, session: Session) -> bool:
        try:
            status = await session.worker.status(ANSWER_SECONDS)
        except WorkerError:
            return session.worker.exited
        self.hear(session.id, status)
        return True

    def fill(self, samples: Samples) -> None:
        """Adds every series."""
        here = Counter(f.session.requester.channel for f in self._followed.values())
        waiting = Counter(
            f.session.requester.channel
            for f in self._followed.values()
            if f.session.disconnected_since
        )
        moved = {channel: Counter(sums) for channel, sums in self._moved.items()}
        for followed in self._followed.values():
            moved.setdefault(followed.session.requester.channel, Counter()).update(_moved(followed))
        for channel in sorted({"shm", "ivshmem", "vsock", "rdma", "tcp", *here, *moved}):
            samples.add("sluice_server_sessions", here[channel], channel)
            samples.add("sluice_server_sessions_disconnected", waiting[channel], channel)
            samples.add("sluice_server_sessions_started_total", self._started[channel], channel)
            samples.add("sluice_server_sessions_ended_total", self._ended[channel], channel)
            of_channel = moved.get(channel, Counter())
            for figure, family in COUNTED.items():
                samples.add(family, of_channel[figure], channel)
            samples.add("sluice_channel_merged_graphs_total", of_channel[GRAPHS], channel)
            for figure, reason in LEFT.items():
                samples.add(
                    "sluice_channel_left_commands_total", of_channel[figure], channel, reason
                )
        samples.add("sluice_server_workers_silent", self._silent)
        self._fill_vgpus(samples)

    def _fill_vgpus(self, samples: Samples) -> None:
        limits: dict[tuple[str, str], tuple[int, int]] = {}
        used: Counter[tuple[str, str]] = Counter()
        for followed in self._followed.values():
            for index, place, vgpu in _vgpus(followed):
                at = (place.gpu, str(place.number))
                limits[at] = (vgpu.memory_mib, vgpu.compute_percent)
                if index in followed.used_mib:
                    used[at] += followed.used_mib[index]
        for gpu, places in self._places.items():
            for place in places.values():
                at = (gpu, str(place.number))
                memory_mib, percent = limits[at]
                samples.add("sluice_vgpu_memory_limit_bytes", memory_mib * MIB, *at)
                samples.add("sluice_vgpu_compute_limit_ratio", percent / 100, *at)
                samples.add("sluice_vgpu_sessions", len(place.sessions), *at)
                who = self._followed[min(place.sessions)].session.requester
                samples.add("sluice_vgpu_owner", 1, *at, who.owner_kind.value, who.owner_name)
                if who.claim:
                    namespace = who.claim.name.partition("/")[0]
                    pod = (namespace, who.claim.pod_name, who.container.pod, who.claim.container)
                    samples.add("sluice_vgpu_pod", 1, *at, *pod)
                if at in used:  # else no worker has said it yet
                    samples.add("sluice_vgpu_memory_used_bytes", used[at] * MIB, *at)
        self._fill_times(samples)

    def _fill_times(self, samples: Samples) -> None:
        had = self._had.copy()
        for key, vgpu in self.times.vgpus.items():
            at = vgpu.gpu, str(self._number(vgpu.gpu, key))
            for family, value in _had(vgpu).items():
                had[family, *at] += value
            samples.add("sluice_vgpu_share_ratio", vgpu.share_1s, *at, "1s")
            samples.add("sluice_vgpu_share_ratio", vgpu.share_60s, *at, "60s")
        for (family, *labels), value in had.items():
            samples.add(family, value, *labels)

    def _place(self, session: Session, place: int) -> Place:
        gpu = session.vgpus[place].gpu_uuid
        key = (session.grant_id, place)
        return self._places[gpu].setdefault(key, Place(gpu, self._number(gpu, key)))

    def _number(self, gpu: str, key: tuple[str, int]) -> int:
        """Of a vGPU; where none of its sessions is on that GPU just now the next that is free."""
        here = self._places[gpu]
        if key in here:
            return here[key].number
        taken = {other.number for other in here.values()}
        return next(n for n in itertools.count() if n not in taken)


def _vgpus(followed: Followed) -> Iterator[tuple[int, Place, GrantedVgpu]]:
    for (index, place), number in zip(
        followed.places.items(), followed.session.places, strict=True
    ):
        yield index, place, followed.session.vgpus[number]


def _had(vgpu: VgpuTime) -> dict[str, float]:
    """What its counters of the GPU that it is on show."""
    return {name: sum_ - vgpu.elsewhere.get(name, 0.0) for name, sum_ in _sums(vgpu).items()}


def _sums(vgpu: VgpuTime) -> dict[str, float]:
    """What it had, but not what it had before this server took it over."""
    return {
        "sluice_vgpu_busy_seconds_total": vgpu.used - vgpu.before,
        "sluice_vgpu_waiting_seconds_total": vgpu.waited - vgpu.waited_before,
        "sluice_vgpu_turns_total": vgpu.turns - vgpu.turns_before,
        "sluice_vgpu_together_seconds_total": vgpu.together - vgpu.together_before,
    }


def _busy_seconds(status: Message, vgpus: int) -> dict[int, float]:
    """What a worker has measured of each of its vGPUs, by its own index."""
    said = {
        index: _bounded(status.number(key)) / 1e6
        for index in range(vgpus)
        if status.get(key := f"vgpu.{index}.busy_us")
    }
    if not said and vgpus == 1 and status.get(BUSY_MS):
        return {0: _bounded(status.number(BUSY_MS)) / 1e3}
    return said


def _used_seconds(session: Session, status: Message) -> dict[int, float]:
    """The same of the GPU's time: who runs at once with others has a part of the GPU meanwhile."""
    busy = _busy_seconds(status, len(session.places))
    return {
        index: seconds * part_of_gpu(session.vgpus[session.places[index]])
        for index, seconds in busy.items()
    }


def _numbers(status: Message) -> dict[str, int]:
    return {key: _bounded(status.number(key)) for key in SUMMED if status.get(key)}


def _bounded(number: int) -> int:
    # a worker that was taken over says what it likes, and no scrape may fail for it
    return min(max(0, number), MOST)


def _moved(followed: Followed) -> Mapping[str, int]:
    return {key: _since(followed, key) for key in SUMMED}


def _since(followed: Followed, key: str) -> int:
    return max(0, followed.said.get(key, 0) - followed.base.get(key, 0))
