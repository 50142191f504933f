# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of this host may be given out: checks them when they join, and hears of their faults.

Owned by gpus.host_gpus, which reports what it says and ends the sessions of a card that failed. A
GPU is at fault (out of the pool, its sessions end), held (it takes nothing new for now) or flagged
(it is given out, with a note). It promises that a real GPU is offered only after its checks or
where the operator does without, that none is checked while somebody uses it, and that a fault lasts
over restarts until the operator clears it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.config.server_gpus import HealthSection
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.acceptance import Acceptance, Outcome, Report
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.gpus.nvml_watch import NvmlWatch
from sluice.server.gpus.records import GpuRecord, GpuRecords
from sluice.server.gpus.xids import Verdict, classify

log = logging.getLogger("sluice.server")

SILENT_SECONDS = 60.0
LOOK_SECONDS = 10.0
CHECKING = "its acceptance checks run"


@dataclass(frozen=True, slots=True)
class Condition:
    """Of one GPU. Empty texts: healthy."""

    fault: str = ""
    held: str = ""
    note: str = ""

    @property
    def takes_work(self) -> bool:
        """Whether something new may be placed on it."""
        return not self.fault and not self.held


class Ward(Protocol):
    """Who acts on what is found; implemented by gpus.host_gpus."""

    def condition_changed(self, uuid: str) -> None:
        """A GPU is in another condition than before."""
        ...

    def sessions_on(self, uuid: str) -> int:
        """How many sessions use a GPU."""
        ...

    def note_on_sessions(self, uuid: str, text: str) -> None:
        """Tells in the logs of a GPU's sessions what happened on it."""
        ...


class GpuHealth:
    """The condition of every GPU of this host."""

    def __init__(
        self,
        section: HealthSection,
        records: GpuRecords,
        acceptance: Acceptance,
        ward: Ward,
        *,
        driver_version: str,
        watch: Callable[[GpuHealth], NvmlWatch] | None = None,
    ) -> None:
        self._section = section
        self._records = records
        self._acceptance = acceptance
        self._ward = ward
        self._driver_version = driver_version
        self._gpus: dict[str, LocalGpu] = {}
        self._known: dict[str, GpuRecord] = {}
        self._conditions: dict[str, Condition] = {}
        self._given_away: set[str] = set()  # to VMs: no business of this host's
        self._to_check: list[str] = []
        self._checking = ""
        self._work = asyncio.Event()
        self._make_watch = watch
        self._watch: NvmlWatch | None = None
        self.xid_counts: Counter[tuple[str, int]] = Counter()  # by UUID and number, since the start

    def condition(self, uuid: str) -> Condition:
        """How a GPU is."""
        return self._conditions.get(uuid, Condition())

    # joining and leaving

    def join(self, gpus: Sequence[LocalGpu]) -> None:
        """These are the GPUs that the host offers, from now on; new ones are checked."""
        for uuid in self._gpus.keys() - {gpu.uuid for gpu in gpus}:
            del self._gpus[uuid]
            self._conditions.pop(uuid, None)
        for gpu in gpus:
            if gpu.uuid not in self._gpus:
                self._gpus[gpu.uuid] = gpu
                self._known[gpu.uuid] = self._records.read(gpu.uuid)
                self._conditions[gpu.uuid] = self._first_condition(gpu)
        if self._watch:
            self._watch.watch(self._watched)
        elif self._make_watch and self._section.watch and self._gpus:
            self._watch = self._make_watch(self)
            self._watch.start(self._watched)
        self._work.set()

    def _first_condition(self, gpu: LocalGpu) -> Condition:
        record = self._known[gpu.uuid]
        if record.fault or record.worn:
            log.error("GPU %s: %s", gpu.uuid, record.fault or record.worn)
            return self._standing(record)
        if gpu.software:
            return Condition()  # there is nothing in it that could be sick
        if self._section.gpu_acceptance == "off":
            return Condition()
        if record.outcome and record.driver == self._driver_version:
            log.info(
                "GPU %s: %s on driver %s before (%s); not checked again",
                gpu.uuid, record.outcome, record.driver, record.text,
            )  # fmt: skip
            return self._judged(record)
        if busy := self._ward.sessions_on(gpu.uuid):
            text = (
                f"unchecked: {busy} session(s) ran on it when the server started; check it with "
                f"`sluice gpu check {gpu.uuid}` when it is free"
            )
            log.warning("GPU %s is %s", gpu.uuid, text)
            return Condition(note=text)
        self._to_check.append(gpu.uuid)
        return Condition(held=CHECKING)

    @property
    def _watched(self) -> set[str]:
        return self._gpus.keys() - self._given_away

    async def give_away(self, uuid: str) -> None:
        """A VM gets the GPU: it is let go, and what becomes of it there is not told.

        Raises OrderRefused where it is still held here.
        """
        if uuid == self._checking:
            raise OrderRefused("its acceptance checks run; ask again when they are done")
        self._given_away.add(uuid)
        if uuid in self._to_check:
            self._to_check.remove(uuid)
        if self._watch and not await self._watch.let_go_of_others(self._watched):
            self.take_back(uuid)
            raise OrderRefused("NVML does not let it go: its driver does not answer")

    def take_back(self, uuid: str) -> None:
        """The GPU is this host's again."""
        self._given_away.discard(uuid)
        if self._watch:
            self._watch.watch(self._watched)
        if uuid in self._gpus and self.condition(uuid).held == CHECKING:
            self._to_check.append(uuid)
            self._work.set()

    # the checks

    async def run(self) -> None:
        """Checks what is to be checked, one card at a time, for ever."""
        try:
            while True:
                # not wait_for: before Python 3.12 it loses a cancellation that meets an event
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._work.wait()
                self._work.clear()
                self._complain_of_silence()
                while self._to_check:
                    self._checking = self._to_check.pop(0)
                    try:
                        if gpu := self._gpus.get(self._checking):
                            await self._check(gpu)
                    finally:
                        self._checking = ""
        finally:
            if self._watch:
                self._watch.stop()

    def check(self, uuid: str) -> None:
        """Has a free GPU checked (again). Raises OrderRefused."""
        gpu = self._gpus.get(uuid)
        if gpu is None:
            raise OrderRefused(f"this node has no GPU {uuid}")
        if gpu.software:
            raise OrderRefused(
                "it is a software GPU, and exempt: there is nothing in it that could be sick"
            )
        if uuid in self._given_away:
            raise OrderRefused(
                "a VM has it; take it back first: `sluice pool switch GPU --to pooled`"
            )
        if busy := self._ward.sessions_on(uuid):
            raise OrderRefused(
                f"{busy} session(s) run on it; drain it first: `sluice gpu drain {uuid}`"
            )
        if uuid != self._checking and uuid not in self._to_check:
            self._to_check.append(uuid)
            self._set(uuid, Condition(self.condition(uuid).fault, CHECKING))
            self._work.set()

    def clear(self, uuid: str) -> None:
        """The operator says that a card is well again. Raises OrderRefused.

        A real one is checked before it is offered; one that is still lost is at fault again.
        """
        gpu = self._gpus.get(uuid)
        if gpu is None:
            raise OrderRefused(
                f"this node has no GPU {uuid}; restart sluice-server when its driver sees it"
            )
        record = self._known[uuid]
        record.fault = record.worn = ""
        record.since = 0.0
        record.outcome = record.driver = ""
        self._records.write(record)
        log.warning("GPU %s: the operator cleared its fault", uuid)
        if self._watch:
            self._watch.forget_lost(uuid)
        if gpu.software or self._section.gpu_acceptance == "off":
            self._set(uuid, Condition())
            return
        try:
            self.check(uuid)
        except OrderRefused as refused:
            self._set(uuid, Condition(note=f"unchecked: {refused}"))
        else:
            self._set(uuid, Condition(held=CHECKING))

    async def _check(self, gpu: LocalGpu) -> None:
        log.info("GPU %s: its acceptance checks begin", gpu.uuid)
        report = await self._acceptance.check(gpu.uuid, gpu.name)
        record = self._known[gpu.uuid]
        record.outcome, record.text = report.outcome.value, report.text
        record.driver, record.checked = self._driver_version, time.time()
        record.figures = report.figures
        if report.outcome is Outcome.UNCHECKED:
            record.outcome = ""  # what is missing may be installed by the next start
        self._records.write(record)
        record.outcome = report.outcome.value
        _log_report(gpu.uuid, report)
        if gpu.uuid in self._gpus:
            self._set(gpu.uuid, self._judged(record))

    def _judged(self, record: GpuRecord) -> Condition:
        """What its checks mean, beside what else is known of it."""
        if record.fault or record.worn:
            return self._standing(record)
        section = self._section
        if record.outcome == Outcome.FAILED.value:
            text = f"it did not pass its acceptance checks: {record.text}"
            refused = section.gpu_acceptance == "refuse"
            return Condition(fault=text) if refused else Condition(note=text)
        if record.outcome == Outcome.UNCHECKED.value:
            text = f"unchecked: {record.text}"
            refused = section.gpu_unchecked == "refuse"
            return Condition(fault=text) if refused else Condition(note=text)
        return Condition()

    # what NVML sees (Listener)

    def saw_xid(self, uuid: str, number: int) -> None:
        """The driver reported an XID error of a card."""
        self.xid_counts[uuid, number] += 1
        xid = classify(number, self._section.fault_xids, self._section.ignored_xids)
        remedy = f"; {xid.remedy}" if xid.remedy else ""
        level = logging.ERROR if xid.verdict in (Verdict.FAULT, Verdict.WORN) else logging.WARNING
        log.log(level, "GPU %s: %s (%s)%s", uuid, xid.text, xid.verdict.value, remedy)
        if uuid in self._gpus:
            self._ward.note_on_sessions(uuid, f"GPU {uuid} reported {xid.text}")
        if xid.verdict is Verdict.FAULT:
            self._fail(uuid, f"{xid.text}{remedy}")
        elif xid.verdict is Verdict.WORN:
            self._wear(uuid, f"{xid.text}{remedy}")

    def saw_double_bit_error(self, uuid: str) -> None:
        """Memory of a card has an error that ECC cannot correct."""
        xid = classify(48, self._section.fault_xids, self._section.ignored_xids)
        log.error("GPU %s: an uncorrectable ECC error", uuid)
        if xid.verdict is Verdict.FAULT:
            self._fail(uuid, f"an uncorrectable ECC error (double bit); {xid.remedy}")

    def saw_lost(self, uuid: str, why: str) -> None:
        """A card does not answer any more."""
        log.error("GPU %s is lost: %s", uuid, why)
        self._fail(uuid, f"it is lost: {why}")

    def _fail(self, uuid: str, text: str) -> None:
        record = self._known.get(uuid)
        if uuid not in self._watched or record is None or record.fault:
            return  # the first error is the cause; those after it follow from it
        record.fault, record.since = text, time.time()
        self._records.write(record)
        self._set(uuid, self._standing(record))

    def _wear(self, uuid: str, text: str) -> None:
        record = self._known.get(uuid)
        if uuid not in self._watched or record is None or record.fault or record.worn:
            return
        record.worn, record.since = text, time.time()
        self._records.write(record)
        self._set(uuid, self._standing(record))

    def _standing(self, record: GpuRecord) -> Condition:
        held = f"{record.worn}; then clear it: `sluice gpu clear`" if record.worn else ""
        return Condition(record.fault, held)

    def _set(self, uuid: str, condition: Condition) -> None:
        if self._conditions.get(uuid) != condition:
            self._conditions[uuid] = condition
            self._ward.condition_changed(uuid)

    def _complain_of_silence(self) -> None:
        if self._watch and self._watch.silent_seconds > SILENT_SECONDS:
            log.error(
                "NVML has not answered for %.0f s: the driver hangs; see the kernel's log (dmesg)",
                self._watch.silent_seconds,
            )


def driver_version() -> str:
    """The kernel driver's; "unknown" where nothing tells."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"
    words = first.split()
    return next((word for word in words if word[0].isdigit() and "." in word), first)


def _log_report(uuid: str, report: Report) -> None:
    for check in report.checks:
        figures = " ".join(f"{name}={value:.1f}" for name, value in check.figures.items())
        log.info(
            "GPU %s: check %s: %s, %s %s (%.1f s)",
            uuid, check.name, "ok" if check.ok else "FAILED", check.text, figures, check.seconds,
        )  # fmt: skip
    level = logging.INFO if report.outcome is Outcome.PASSED else logging.ERROR
    if report.outcome is Outcome.UNCHECKED:
        level = logging.WARNING
    log.log(level, "GPU %s: %s: %s", uuid, report.outcome.value, report.text)
