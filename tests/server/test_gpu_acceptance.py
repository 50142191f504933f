# SPDX-License-Identifier: Apache-2.0
"""GPUs are checked before they are offered; checks that fail, hang or cannot be made harm nobody.

The checks' process is real. What it says is scripted where a sick GPU would be needed. A copy of
the software GPU under the name of NVIDIA's driver counts as a real GPU.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_plane import PYTHON_PATH, running, wait_for

from sluice.config.native_files import SOFTGPU, NativeFileMissing, find_native
from sluice.config.server_gpus import HealthSection
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.acceptance import Acceptance, Outcome, judge
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.gpus.expectations import expectation_of, shortfalls
from sluice.server.gpus.health import CHECKING, GpuHealth
from sluice.server.gpus.records import GpuRecords
from sluice.server.gpus.xids import CATALOGUE, Verdict, classify

ROOT = Path(__file__).resolve().parents[2]
H200 = {
    "from_host_gbs": 55.0,
    "to_host_gbs": 55.0,
    "on_device_gbs": 4000.0,
    "fp32_tflops": 50.0,
    "bf16_tflops": 700.0,
}


def lines(**changes: Any) -> list[bytes]:
    """What the checks print of a healthy H200, but for some changes."""
    figures = {**H200, **changes}
    said = [
        {"check": "memory", "ok": True, "text": "fine", "figures": {}},
        {"check": "copies", "ok": True, "text": "fine", "figures": figures},
    ]
    return [json.dumps(line).encode() + b"\n" for line in said]


# the table of expectations


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_models_are_known_by_the_drivers_names(name: str, model: str) -> None:
    found = expectation_of(name)
    assert found
    assert found.model == model


@pytest.mark.parametrize("name", ["NVIDIA H100 MIG 1g.10gb", "GeForce RTX 9090", "Sluice"])
def test_other_models_are_measured_and_not_judged(name: str) -> None:
    assert expectation_of(name) is None
    assert shortfalls(name, {"on_device_gbs": 1.0}) == []
    report = judge(name, lines(on_device_gbs=1.0), [], 0)
    assert report.outcome is Outcome.PASSED
    assert "not judged" in report.text
    assert report.figures["on_device_gbs"] == 1.0


# what is made of the checks' words


def test_a_healthy_card_passes() -> None:
    assert judge("NVIDIA H200", lines(), [], 0).outcome is Outcome.PASSED


@pytest.mark.parametrize("figure", list(H200))
def test_a_card_that_is_far_too_slow_fails(figure: str) -> None:
    report = judge("NVIDIA H200", lines(**{figure: H200[figure] / 10}), [], 0)
    assert report.outcome is Outcome.FAILED
    assert "expected of H200 SXM" in report.text


def test_wrong_bits_and_crashes_fail_and_a_missing_cupy_does_not() -> None:
    wrong = b'{"check": "fp32", "ok": false, "text": "3 of 9 elements are wrong", "figures": {}}\n'
    report = judge("NVIDIA H200", [*lines(), wrong], [], 0)
    assert (report.outcome, report.text) == (Outcome.FAILED, "fp32: 3 of 9 elements are wrong")
    crashed = judge("NVIDIA H200", lines(), [b"Traceback\nBoom: no\n"], -11)
    assert crashed.text == "its checks ended by signal 11: Boom: no"
    missing = judge("NVIDIA H200", [b'{"unchecked": "install CuPy"}\n'], [], 0)
    assert (missing.outcome, missing.text) == (Outcome.UNCHECKED, "install CuPy")
    assert judge("NVIDIA H200", [b"garbage\n{}\n[]\n"], [], 0).outcome is Outcome.UNCHECKED


# the process


def script(tmp_path: Path, text: str) -> Sequence[str]:
    path = tmp_path / "checks.py"
    path.write_text(text)
    return (sys.executable, str(path))


async def test_checks_that_hang_are_ended_in_time_with_what_they_started(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
print({lines()[0].decode()!r}, flush=True)
time.sleep(1000)
"""
    acceptance = Acceptance("libcuda.so.1", 10.0, 64, command=script(tmp_path, code))
    report = await acceptance.check("GPU-0", "NVIDIA H200")
    assert report.outcome is Outcome.FAILED
    assert report.text == "its checks did not end within 10 s (after memory)"
    for pid in (tmp_path / "pids").read_text().split():
        state = Path(f"/proc/{pid}/stat")
        wait_for(lambda s=state: not s.exists() or ") Z" in s.read_text(), message=f"{pid} to end")


async def test_the_checks_see_one_gpu_and_no_more_of_the_environment_than_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CONTROLLER", "secret")
    code = f"""
import json, os, sys
open({str(tmp_path / "seen")!r}, "w").write(json.dumps([dict(os.environ), sys.argv[1:]]))
"""
    acceptance = Acceptance(
        "/x/libcuda.so.1", 20, 64, [tmp_path / "lib"], command=script(tmp_path, code)
    )
    report = await acceptance.check("GPU-7", "NVIDIA H200")
    assert report.text == "its checks said nothing"
    seen, arguments = json.loads((tmp_path / "seen").read_text())
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert seen["LD_LIBRARY_PATH"].startswith(str(tmp_path / "lib"))
    assert "SLUICE_CONTROLLER" not in seen
    assert arguments == ["--driver", "/x/libcuda.so.1", "--memory-mib", "64"]


async def test_without_cupy_the_real_checks_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('no module named cupy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = await Acceptance("libc.so.6", 30, 64).check("GPU-0", "NVIDIA H200")
    assert report.outcome is Outcome.UNCHECKED
    assert "CuPy cannot be imported" in report.text
    assert "install `sluice-gpu[gpu]`" in report.text


# what the server does about it


class FakeWard:
    def __init__(self) -> None:
        self.busy = 0
        self.changes: list[str] = []

    def condition_changed(self, uuid: str) -> None:
        self.changes.append(uuid)

    def sessions_on(self, uuid: str) -> int:
        return self.busy

    def note_on_sessions(self, uuid: str, text: str) -> None:
        pass


class Node:
    """A GPU's health on a node whose checks say what a test wants, by a real process."""

    def __init__(self, folder: Path, *, version: str = "580.1", **health: Any) -> None:
        self.folder = folder
        self.ward = FakeWard()
        self.says(*lines())
        code = f"""
open({str(folder / "runs")!r}, "a").write("x")
print(open({str(folder / "says")!r}).read(), end="", flush=True)
"""
        self.health = GpuHealth(
            HealthSection.model_validate(health),
            GpuRecords(folder / "state"),
            Acceptance("libcuda.so.1", 20, 64, command=script(folder, code)),
            self.ward,
            driver_version=version,
        )

    def says(self, *said: bytes) -> None:
        (self.folder / "says").write_bytes(b"".join(said))

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text()) if path.exists() else 0

    async def checked(self) -> None:
        """Lets it check what is to be checked."""
        working = asyncio.create_task(self.health.run())
        while self.health.condition(GPU.uuid).held == CHECKING:
            await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


GPU = LocalGpu("GPU-0", "NVIDIA H200", 143000, False, 534, 0)
UNCHECKED = b'{"unchecked": "install CuPy"}\n'


async def test_a_gpu_is_offered_after_its_checks_and_not_checked_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.health.join([GPU])
    assert node.health.condition(GPU.uuid).held == CHECKING
    await node.checked()
    assert node.health.condition(GPU.uuid).takes_work
    assert node.ward.changes == [GPU.uuid]
    again = Node(tmp_path)
    again.health.join([GPU])
    assert again.health.condition(GPU.uuid).takes_work
    assert again.runs == 1
    newer = Node(tmp_path, version="590.2")
    newer.health.join([GPU])
    assert newer.health.condition(GPU.uuid).held == CHECKING, "the driver is another one"


async def test_a_card_that_fails_is_refused_over_restarts_until_it_is_cleared(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.says(*lines(on_device_gbs=1000.0))
    node.health.join([GPU])
    await node.checked()
    assert "copies within its memory 1000.0 GB/s" in node.health.condition(GPU.uuid).fault
    again = Node(tmp_path)
    again.health.join([GPU])
    assert again.health.condition(GPU.uuid).fault
    again.health.clear(GPU.uuid)
    await again.checked()
    assert again.health.condition(GPU.uuid).takes_work
    assert again.runs == 2


async def test_where_the_operator_wants_it_a_sick_card_is_only_flagged(tmp_path: Path) -> None:
    node = Node(tmp_path, gpu_acceptance="flag")
    node.says(*lines(fp32_tflops=1.0))
    node.health.join([GPU])
    await node.checked()
    condition = node.health.condition(GPU.uuid)
    assert condition.takes_work
    assert "did not pass" in condition.note


async def test_a_card_that_cannot_be_checked_joins_flagged_or_not_at_all(tmp_path: Path) -> None:
    for unchecked in ("flag", "refuse"):
        node = Node(tmp_path, gpu_unchecked=unchecked)
        node.says(UNCHECKED)
        node.health.join([GPU])
        await node.checked()
        condition = node.health.condition(GPU.uuid)
        assert condition.takes_work == (unchecked == "flag")
        assert (condition.note or condition.fault) == "unchecked: install CuPy"
    assert node.runs == 2, "what is missing may be installed by the next start"


async def test_busy_exempt_and_unwanted_cards_are_not_checked(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ward.busy = 2
    node.health.join([GPU])
    assert "2 session(s) ran on it" in node.health.condition(GPU.uuid).note
    with pytest.raises(OrderRefused, match="drain it first"):
        node.health.check(GPU.uuid)
    software = Node(tmp_path)
    software.health.join([replace(GPU, software=True)])
    assert software.health.condition(GPU.uuid).takes_work
    with pytest.raises(OrderRefused, match="exempt"):
        software.health.check(GPU.uuid)
    off = Node(tmp_path, gpu_acceptance="off")
    off.health.join([GPU])
    assert off.health.condition(GPU.uuid).takes_work
    assert node.runs == 0


async def test_an_error_during_its_checks_condemns_a_card_that_passes_them(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.health.join([GPU])
    node.health.saw_xid(GPU.uuid, 48)
    assert node.health.condition(GPU.uuid).fault
    await node.checked()
    node.health.check(GPU.uuid)
    await node.checked()
    assert node.health.condition(GPU.uuid).fault.startswith("XID 48")


async def test_a_state_folder_that_cannot_be_used_costs_no_service(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in its place")
    node = Node(tmp_path)
    node.health.join([GPU])
    await node.checked()
    assert node.health.condition(GPU.uuid).takes_work


def test_a_record_that_is_damaged_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    for text in ("", "[]", "{", '{"fault": 3, "unknown": 1}'):
        (tmp_path / "gpus" / "GPU-0.json").write_text(text)
        assert GpuRecords(tmp_path).read("GPU-0").outcome == ""


# a real server


@pytest.mark.parametrize(
    ("cupy", "health", "why"),
    [
        ("raise ImportError('not here')", "flagged", "unchecked: CuPy cannot be imported"),
        (
            "class arange:\n  def __init__(self, n): pass\n  def sum(self): return 7",
            "fault",
            "start: AssertionError: 0 + 1 + 2 + 3 is not 6",
        ),
        (
            "import time\ndef arange(n): time.sleep(1000)",
            "fault",
            "its checks did not end within 3 s (before the first was done)",
        ),
        ("import os\nos.abort()", "fault", "its checks ended by signal 6"),
    ],
    ids=["missing", "wrong", "hangs", "crashes"],
)
def test_what_a_server_reports_of_its_gpu(tmp_path: Path, cupy: str, health: str, why: str) -> None:
    try:
        software = find_native(SOFTGPU)
    except NativeFileMissing:
        pytest.skip("the native part is not built")
    driver = tmp_path / "driver" / "libcuda.so.1"
    driver.parent.mkdir()
    shutil.copy(software, driver)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "cupy.py").write_text(cupy + "\n")
    environment = {"PYTHONPATH": f"{PYTHON_PATH}:{tmp_path / 'site'}"}
    server = {"driver": driver, "context_overhead_mib": 0}
    # only what hangs comes to its end so
    checks = {"acceptance_seconds": 3 if "within 3 s" in why else 60}
    with running(tmp_path, server=server, health=checks, environment=environment) as plane:
        waits = plane.client(wait_seconds=30)
        [gpu] = wait_for(
            lambda: [g for g in plane.rest.get("/gpus").json()["gpus"] if g["health"] == health],
            message=f"its GPU to be {health}",
        )
        assert why in (gpu["fault"] or gpu["note"])
        if health == "flagged":
            while waits.first["status"] == 600:
                waits.first = waits.read()
            assert waits.first["status"] == 0
            refused = plane.rest.post(f"/gpus/{gpu['uuid']}/check")
            assert refused.status_code == 409
            assert "1 session(s) run on it" in refused.json()["detail"]


# the catalogue


def test_the_page_for_operators_is_the_catalogue() -> None:
    page = (ROOT / "docs" / "gpu-health.md").read_text().split("### XID errors")[1]
    shown: dict[int, str] = {}
    for verdict, numbers in re.findall(r"^\| ([^|]+?) \| ([0-9][0-9, –]*) \|", page, re.MULTILINE):
        for part in numbers.split(","):
            first, _, last = part.strip().partition("–")
            for number in range(int(first), int(last or first) + 1):
                assert number not in shown
                shown[number] = verdict.split()[0].rstrip(":")
    words = {"fault": "fault", "worn": "worn", "the": "application", "noted": "noted"}
    assert {n: words[word] for n, word in shown.items()} == {
        xid.number: xid.verdict.value for xid in CATALOGUE.values()
    }


def test_the_operator_overrules_the_catalogue() -> None:
    assert classify(79).verdict is Verdict.FAULT
    assert classify(79, ignored={79}).verdict is Verdict.NOTED
    assert classify(31, faults={31}).verdict is Verdict.FAULT
    assert classify(4711).verdict is Verdict.NOTED
