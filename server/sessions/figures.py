# SPDX-License-Identifier: Apache-2.0
"""What the sessions of this host use, as their workers say, for /metrics.

Owned by sessions.lifecycle, which tells of each session's begin and end; refreshed by
server.metrics when somebody scrapes, so that nobody is asked for figures that nobody wants. Series
are not named after sessions, of which there is no end, but after places: a vGPU has the lowest
number that is free on its GPU while its grant has a session here, so that a GPU has at most as many
series as vGPUs at a time. It promises that counters never fall: what an ended session moved stays
counted, and what one moved before this server adopted it is not.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as Counted

from sluice.config.metric_families import LATENCY_BUCKETS, Family, FamilyCollector, Samples
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.controller.link import GrantedVgpu
from sluice.server.sessions.records import Session
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
}
BUSY = "gpu_busy_ms"

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
    Family("sluice_server_sessions", "gauge", "Sessions here, by channel.", ("channel",)),
    Family(
        "sluice_server_sessions_started_total",
        "counter",
        "Sessions that began here, by channel.",
        ("channel",),
    ),
    Family(
        "sluice_server_sessions_ended_total",
        "counter",
        "Sessions that ended here, by channel.",
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
        "GPU time of the work of sessions that have this vGPU alone.",
        ("gpu", "vgpu"),
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

    def __init__(self) -> None:
        self._followed: dict[str, Followed] = {}
        self._places: dict[str, dict[tuple[str, int], Place]] = defaultdict(dict)
        self._moved: dict[str, Counter[str]] = defaultdict(Counter)  # by channel, of the ended
        self._busy_ms: Counter[tuple[str, str]] = Counter()  # by GPU and number, of the ended
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
        if not adopted:
            self._started[session.requester.channel] += 1

    def hear(self, session_id: str, status: Message) -> None:
        """A worker said how it stands: when it was asked, or with its last words."""
        followed = self._followed.get(session_id)
        if followed is None:
            return
        for key, value in _numbers(status).items():
            # what a worker that was taken over says must not make a counter fall
            followed.said[key] = max(value, followed.said.get(key, 0))
        followed.used_mib = {
            index: _bounded(status.number(key))
            for index in followed.places
            if status.get(key := f"vgpu.{index}.used_mib")
        }

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
        if followed is None:
            return
        channel = followed.session.requester.channel
        self._ended[channel] += 1
        self._moved[channel].update(_moved(followed))
        if alone := _alone(followed):
            self._busy_ms[alone.gpu, str(alone.number)] += _busy_ms(followed)
        for place in followed.places.values():
            place.sessions.discard(session_id)
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
        moved = {channel: Counter(sums) for channel, sums in self._moved.items()}
        for followed in self._followed.values():
            moved.setdefault(followed.session.requester.channel, Counter()).update(_moved(followed))
        for channel in sorted({"shm", "ivshmem", "vsock", "tcp", *here, *moved}):
            samples.add("sluice_server_sessions", here[channel], channel)
            samples.add("sluice_server_sessions_started_total", self._started[channel], channel)
            samples.add("sluice_server_sessions_ended_total", self._ended[channel], channel)
            for figure, family in COUNTED.items():
                samples.add(family, moved.get(channel, Counter())[figure], channel)
        samples.add("sluice_server_workers_silent", self._silent)
        self._fill_vgpus(samples)

    def _fill_vgpus(self, samples: Samples) -> None:
        limits: dict[tuple[str, str], tuple[int, int]] = {}
        used: Counter[tuple[str, str]] = Counter()
        busy = Counter(self._busy_ms)
        for followed in self._followed.values():
            alone = _alone(followed)
            for index, place, vgpu in _vgpus(followed):
                at = (place.gpu, str(place.number))
                limits[at] = (vgpu.memory_mib, vgpu.compute_percent)
                if index in followed.used_mib:
                    used[at] += followed.used_mib[index]
                if place is alone:
                    busy[at] += _busy_ms(followed)
        for gpu, places in self._places.items():
            for place in places.values():
                at = (gpu, str(place.number))
                memory_mib, percent = limits[at]
                samples.add("sluice_vgpu_memory_limit_bytes", memory_mib * MIB, *at)
                samples.add("sluice_vgpu_compute_limit_ratio", percent / 100, *at)
                samples.add("sluice_vgpu_sessions", len(place.sessions), *at)
                if at in used:  # else no worker has said it yet
                    samples.add("sluice_vgpu_memory_used_bytes", used[at] * MIB, *at)
        for at, milliseconds in busy.items():
            samples.add("sluice_vgpu_busy_seconds_total", milliseconds / 1000, *at)

    def _place(self, session: Session, place: int) -> Place:
        gpu = session.vgpus[place].gpu_uuid
        here = self._places[gpu]
        key = (session.grant_id, place)
        if key not in here:
            taken = {other.number for other in here.values()}
            number = next(n for n in itertools.count() if n not in taken)
            here[key] = Place(gpu, number)
        return here[key]


def _vgpus(followed: Followed) -> Iterator[tuple[int, Place, GrantedVgpu]]:
    for (index, place), number in zip(
        followed.places.items(), followed.session.places, strict=True
    ):
        yield index, place, followed.session.vgpus[number]


def _alone(followed: Followed) -> Place | None:
    """The session's only vGPU: a worker sums the time of its GPUs up."""
    return followed.places[0] if len(followed.places) == 1 else None


def _numbers(status: Message) -> dict[str, int]:
    return {key: _bounded(status.number(key)) for key in (*COUNTED, BUSY) if status.get(key)}


def _bounded(number: int) -> int:
    # a worker that was taken over says what it likes, and no scrape may fail for it
    return min(max(0, number), MOST)


def _moved(followed: Followed) -> Mapping[str, int]:
    return {key: _since(followed, key) for key in COUNTED}


def _busy_ms(followed: Followed) -> int:
    return _since(followed, BUSY)


def _since(followed: Followed, key: str) -> int:
    return max(0, followed.said.get(key, 0) - followed.base.get(key, 0))
