# SPDX-License-Identifier: Apache-2.0
"""What the driver says that processes use of GPUs, beside what workers say of themselves."""

from __future__ import annotations

import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.server.gpus.process_use import ProcessUse, process_use
from sluice.server.sessions.use_comparison import Claim, Excess, UseComparison
from sluice.server.sessions.use_watch import UseWatch
from sluice.server.sessions.vgpu_time import TenantTime, VgpuTimes


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"status {value}")
        self.value = value


class FakeNvml:
    """NVML as far as it is asked here."""

    NVMLError = FakeNvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6

    def __init__(self, *samples: tuple[int, int, int], error: int = 0) -> None:
        self._samples, self._error = samples, error

    def nvmlDeviceGetProcessUtilization(self, gpu: object, since: int) -> list[Any]:  # noqa: N802
        if self._error:
            raise FakeNvmlError(self._error)
        return [
            SimpleNamespace(pid=pid, timeStamp=stamp, smUtil=util)
            for pid, stamp, util in self._samples
        ]


def test_samples_are_averaged_by_process_and_old_ones_left_out() -> None:
    nvml = FakeNvml((7, 11, 80), (7, 12, 40), (8, 11, 5), (9, 10, 100))
    assert process_use(nvml, None, 10) == ProcessUse({7: 0.6, 8: 0.05})


def test_nobody_is_told_from_nothing_known() -> None:
    assert process_use(FakeNvml(error=6), None, 0) == ProcessUse({})
    assert process_use(FakeNvml(error=3), None, 0) == ProcessUse(None, "status 3")
    assert process_use(FakeNvml(error=15), None, 0) == ProcessUse(None), "it may tell again"
    old = SimpleNamespace(NVMLError=FakeNvmlError)
    assert process_use(old, None, 0).shares is None, "a library without that function"


def claims(second: float, said: float, held: float | None) -> list[Claim]:
    """A worker that used and held such shares so far."""
    return [Claim("s", "GPU", 7, 3 + said * second, None if held is None else 9 + held * second)]


def minutes(
    said: float, held: float | None, seen: float, *, pid: int = 7, seconds: int = 65
) -> list[Excess]:
    comparison = UseComparison()
    found = []
    for second in range(0, seconds, 5):
        found += comparison.take(second, {"GPU": {pid: seen}}, claims(second, said, held))
    return found


def test_who_uses_what_it_says_and_has_turns_for_is_left_alone() -> None:
    assert minutes(said=0.3, held=0.35, seen=0.3) == []
    assert minutes(said=0.3, held=0.3, seen=0.49) == [], "NVML is not exact"
    assert minutes(said=1.0, held=1.0, seen=1.0) == []
    assert minutes(said=1.0, held=None, seen=1.0) == [], "nobody hands out turns"
    assert minutes(said=0.1, held=0.1, seen=1.0, pid=8) == [], "it is another process"
    assert minutes(said=0.0, held=0.0, seen=1.0, seconds=60) == [], "the minute is not over"


@pytest.mark.parametrize(("said", "held"), [(0.9, 0.1), (0.1, 0.9), (0.1, 0.1), (0.1, None)])
def test_who_uses_more_than_its_turns_or_its_word_explain_is_found(
    said: float, held: float | None
) -> None:
    (excess,) = minutes(said=said, held=held, seen=0.9)
    assert (excess.session_id, excess.gpu, excess.pid) == ("s", "GPU", 7)
    assert excess.seen == pytest.approx(0.9)
    assert excess.said == pytest.approx(said)
    assert excess.held == (None if held is None else pytest.approx(held))


def test_a_gpu_that_did_not_answer_is_compared_anew() -> None:
    comparison = UseComparison()
    for second in range(0, 200, 5):
        seen = {} if second % 50 == 0 else {"GPU": {7: 1.0}}
        assert comparison.take(second, seen, claims(second, 0, 0)) == []


def test_who_had_turns_for_a_part_of_a_minute_is_compared_anew() -> None:
    comparison = UseComparison()
    for second in range(0, 200, 5):
        held = None if second % 50 == 0 else 0.0  # the arbiter was gone
        seen = {"GPU": {7: 1.0}}
        assert comparison.take(second, seen, claims(second, 1.0, held)) == []


class FakeReader:
    """A driver that tells of GPU-1 and not of GPU-2."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []

    async def read(self, uuids: Collection[str]) -> dict[str, ProcessUse]:
        self.asked.append(set(uuids))
        known = {"GPU-1": ProcessUse({70: 1.0}), "GPU-2": ProcessUse(None, "not supported")}
        return {uuid: use for uuid, use in known.items() if uuid in uuids}


async def test_an_excess_is_told_with_its_figures_and_silence_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    times = VgpuTimes(lambda: now[0])
    told: list[str] = []

    def session(name: str, pid: int) -> Any:
        worker = SimpleNamespace(record=SimpleNamespace(pid=pid))
        return SimpleNamespace(
            id=name,
            opening=False,
            worker=worker,
            log=SimpleNamespace(write=told.append),
            vgpus=(),
        )

    sessions = {name: session(name, pid) for name, pid in (("a", 70), ("b", 71), ("c", 72))}
    for name, gpu in (("a", "GPU-1"), ("b", "GPU-2"), ("c", "GPU-3")):
        times.begin(name, f"grant {name}", {0: gpu})
    reader = FakeReader()
    figures: Any = SimpleNamespace(times=times)
    watch = UseWatch(reader, sessions, figures, lambda gpu: gpu == "GPU-3", lambda: now[0])
    times.hear_arbiter({"grant a": TenantTime(0, 0, 0)})
    caplog.set_level(logging.INFO, "sluice.server")
    found = []
    for _ in range(14):
        found += await watch.look()
        now[0] += 5
    assert [(e.session_id, e.seen, e.said, e.held) for e in found] == [("a", 1.0, 0.0, 0.0)]
    assert len(told) == 1
    assert "100%" in told[0]
    fields = [r.fields for r in caplog.records if hasattr(r, "fields")]
    assert [(f["event"], f["session_id"], f["seen"]) for f in fields] == [
        ("session.excess", "a", 1.0)
    ]
    assert len([r for r in caplog.records if "does not tell" in r.getMessage()]) == 1
    assert reader.asked[0] == {"GPU-1", "GPU-2"}, "one that a VM has is not asked"
    assert reader.asked[1:] == [{"GPU-1"}] * 13
