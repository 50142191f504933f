# SPDX-License-Identifier: Apache-2.0
"""Watches a host's GPUs through NVML: XID errors, uncorrectable ECC errors, cards that are lost.

Used by gpus.health. NVML's calls block, and one about a dying card may block for ever, so
they are made in a thread of their own; what it sees is handed to the event loop. It promises that
each event is told once, that a lost card is told once until it answers again, that a card which is
given away is held open no longer, and that a driver that does not answer holds up nothing but this
thread (`silent_seconds` says for how long).
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from sluice.config.native_files import SOFTGPU

log = logging.getLogger("sluice.server")

WAIT_MILLISECONDS = 500
LOOK_SECONDS = 5.0  # between two questions whether a card is there
AFTER_ERROR_SECONDS = 1.0
JOIN_SECONDS = 1.0
LET_GO_SECONDS = 10.0
#: Held while another thread has NVML open for a moment (gpu_figures): NVML lets GPUs go only when
#: nobody has it open any more.
NVML_OPEN = threading.Lock()


class Listener(Protocol):
    """Who is told, on the event loop; implemented by gpus.health."""

    def saw_xid(self, uuid: str, number: int) -> None:
        """The driver reported an XID error of a card."""
        ...

    def saw_double_bit_error(self, uuid: str) -> None:
        """Memory of a card has an error that ECC cannot correct."""
        ...

    def saw_lost(self, uuid: str, why: str) -> None:
        """A card does not answer any more."""
        ...


def nvml_beside(driver: str) -> Path | None:
    """The NVML that belongs to a driver; None for the software GPU where it was built.

    There, Sluice's own library of that name lies beside it, which would ask this very server.
    """
    if not driver:
        return None  # a host that gives no GPU
    path = Path(driver)
    library = path.parent / "libnvidia-ml.so.1"
    if path.name == SOFTGPU or not library.exists():
        return None
    return library


class NvmlWatch:
    """One thread that waits for what NVML has to say."""

    def __init__(self, library: Path, listener: Listener) -> None:
        self._library = library
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._watched: frozenset[str] = frozenset()
        self._changed = threading.Event()
        self._wanted, self._granted = 0, 0  # counts changes of what to watch, and those carried out
        self._places: dict[str, str] = {}  # PCI bus ids by UUID
        self._beat = time.monotonic()
        self._lost: set[str] = set()
        self._unknown: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="nvml-watch", daemon=True)

    def start(self, uuids: Iterable[str]) -> None:
        """Watches these GPUs from now on."""
        self.watch(uuids)
        self._thread.start()

    def watch(self, uuids: Iterable[str]) -> None:
        """Watches other GPUs than before; one that is given away is nobody's business here."""
        if self._watched != frozenset(uuids):
            self._watched = frozenset(uuids)
            self._wanted += 1
            self._changed.set()

    async def let_go_of_others(self, uuids: Iterable[str]) -> bool:
        """Watches these; returns whether NVML holds no other GPU any more."""
        self.watch(uuids)
        until = time.monotonic() + LET_GO_SECONDS
        while self._granted < self._wanted and time.monotonic() < until:
            if not self._thread.is_alive():
                return True
            await asyncio.sleep(0.05)
        return self._granted >= self._wanted

    def stop(self) -> None:
        """Ends the thread, or leaves it behind if NVML does not return."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    @property
    def silent_seconds(self) -> float:
        """How long ago NVML last returned."""
        return time.monotonic() - self._beat

    # in the thread

    def _run(self) -> None:
        try:
            ctypes.CDLL(str(self._library))  # by path, before NVML's Python asks by name
            import pynvml
        except (OSError, ImportError) as error:
            log.warning("GPUs are not watched: NVML cannot be loaded (%s)", error)
            return
        log.info("watching GPUs for errors: %s", self._library)
        while not self._stop.is_set():
            try:
                # anew each time: NVML holds a GPU that it has met open until it is shut down
                pynvml.nvmlInit()
                try:
                    self._watch_until_changed(pynvml)
                finally:
                    # the last one out: while somebody else reads, NVML would stay open
                    alone = NVML_OPEN.acquire(timeout=LET_GO_SECONDS / 2)
                    pynvml.nvmlShutdown()
                    if alone:
                        NVML_OPEN.release()
            except pynvml.NVMLError as error:
                log.warning("GPUs are not watched: NVML says %s; it is asked again", error)
                self._stop.wait(AFTER_ERROR_SECONDS)
            except Exception:
                log.exception("the GPUs' watch failed; it starts again")
                self._stop.wait(AFTER_ERROR_SECONDS)

    def _watch_until_changed(self, nvml: Any) -> None:
        self._changed.clear()
        wanted = self._wanted
        gpus = self._handles(nvml)
        events, can_wait = nvml.nvmlEventSetCreate(), False
        try:
            for uuid, handle in gpus.items():
                can_wait |= uuid not in self._lost and self._register(nvml, uuid, handle, events)
            self._granted = wanted
            looked = -LOOK_SECONDS
            while not self._stop.is_set() and not self._changed.is_set():
                self._beat = time.monotonic()
                if self._beat - looked >= LOOK_SECONDS:
                    looked = self._beat
                    self._look(nvml, gpus)
                if not can_wait:
                    self._stop.wait(WAIT_MILLISECONDS / 1000)
                elif not self._wait(nvml, events, gpus):
                    self._look(nvml, gpus)
                    return  # a set with a lost card in it never waits again
        finally:
            nvml.nvmlEventSetFree(events)

    def _handles(self, nvml: Any) -> dict[str, Any]:
        """Handles of what is watched; once their places are known nothing else is touched."""
        if self._watched - self._places.keys() - self._unknown:
            self._find_places(nvml)
        found: dict[str, Any] = {}
        for uuid in self._watched:
            try:
                found[uuid] = nvml.nvmlDeviceGetHandleByPciBusId(self._places[uuid])
            except KeyError:
                if uuid not in self._unknown:  # a part of a GPU (MIG), or another's driver
                    self._unknown.add(uuid)
                    log.warning("GPU %s is not watched: NVML does not know it", uuid)
            except nvml.NVMLError as error:
                if error.value not in self._gone(nvml):
                    raise
                self._tell_lost(uuid, f"NVML says {error}")
        return found

    def _gone(self, nvml: Any) -> tuple[int, ...]:
        return (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NOT_FOUND)

    def _find_places(self, nvml: Any) -> None:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                place = nvml.nvmlDeviceGetPciInfo(handle).busId
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError as error:
                log.warning("GPU %d does not tell NVML what it is: %s", index, error)
                continue
            self._places[uuid] = place.decode() if isinstance(place, bytes) else str(place)

    def _register(self, nvml: Any, uuid: str, handle: Any, events: Any) -> bool:
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        try:
            kinds = wanted & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if kinds:
                nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
        except nvml.NVMLError as error:
            log.warning("GPU %s: its errors are not reported (%s)", uuid, error)
            return False
        if not kinds:
            log.warning("GPU %s: its driver reports no errors", uuid)
        return bool(kinds)

    def _wait(self, nvml: Any, events: Any, gpus: dict[str, Any]) -> bool:
        """Waits for one event; False if this set is of no use any more."""
        try:
            data = nvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return True
            log.warning("NVML waits no longer for events: %s", error)
            self._stop.wait(AFTER_ERROR_SECONDS)
            return False
        where = ctypes.cast(data.device, ctypes.c_void_p).value
        for uuid, handle in gpus.items():
            if ctypes.cast(handle, ctypes.c_void_p).value != where:
                continue
            if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                self._tell(self._listener.saw_xid, uuid, int(data.eventData))
            elif data.eventType & nvml.nvmlEventTypeDoubleBitEccError:
                self._tell(self._listener.saw_double_bit_error, uuid)
        return True

    def _look(self, nvml: Any, gpus: dict[str, Any]) -> None:
        """Asks each card something that only a card which is there can answer."""
        for uuid, handle in gpus.items():
            try:
                nvml.nvmlDeviceGetMemoryInfo(handle)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    self._tell_lost(uuid, "it has fallen off the bus or does not answer")
                elif error.value == nvml.NVML_ERROR_RESET_REQUIRED:
                    self._tell_lost(uuid, "its driver says that it must be reset")
                else:
                    log.debug("GPU %s does not tell its memory: %s", uuid, error)
            else:
                if uuid in self._lost:
                    self._lost.discard(uuid)
                    self._changed.set()  # its errors are waited for again

    def _tell_lost(self, uuid: str, why: str) -> None:
        if uuid not in self._lost:
            self._lost.add(uuid)
            self._tell(self._listener.saw_lost, uuid, why)

    def _tell(self, tell: Callable[..., None], *what: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell, *what)

    def forget_lost(self, uuid: str) -> None:
        """The operator says that a card is well: if it is not, that is told again."""
        self._lost.discard(uuid)
        self._changed.set()
