# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/console.md: a real controller and server in a real Chromium.

`make screenshots` runs it. The pool is real, on software GPUs; what charts and usage show of the
time before is made up, as nobody waits a day for a picture.
"""

from __future__ import annotations

import asyncio
import getpass
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import ControlPlane, wait_for  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from sluice.controller.history import history_file  # noqa: E402
from sluice.controller.history.history_file import HistoryFile  # noqa: E402
from sluice.controller.history.series import STEP_SECONDS, Values  # noqa: E402
from sluice.controller.pool.usage_records import UsageRecord  # noqa: E402
from sluice.controller.store.sqlite import SqliteStore  # noqa: E402
from tests.console.chromium import Person, launched  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
SIZE = (1180, 820)
HOURS = 6
PROJECTS = (("vision", 3.0), ("speech", 1.6), ("physics", 0.7))


@contextmanager
def pool(folder: Path) -> Iterator[tuple[ControlPlane, str]]:
    """Four software GPUs, sessions of three projects, requests that wait; and an admin's token."""
    token_file = folder / "node.token"
    plane = ControlPlane(
        folder,
        auth={"required": "yes", "requests_per_second": 2000},
        token_file=token_file,
        patience=60,  # the controller is stopped for a while
        server={"node_name": "gpu-1"},
        projects={"users": f"{getpass.getuser()} = vision speech physics"},
        environment={"SLUICE_SOFTGPU_COUNT": "4", "SLUICE_SOFTGPU_MEMORY_MIB": "16384"},
    )
    try:
        plane.start_controller()
        token = plane.first_token()
        plane.rest = plane.rest_as(token)
        node = plane.rest.post("/tokens", json={"role": "node", "node": plane.node}).json()
        token_file.write_text(node["secret"] + "\n")
        plane.start_server()
        _work(plane)
        yield plane, token
    finally:
        plane.close()


def _work(plane: ControlPlane) -> None:
    for project, program, gmem, ratio in (
        ("vision", "train.py", 8192, 50),
        ("vision", "eval.py", 2048, 25),
        ("speech", "asr.py", 12288, 75),
        ("speech", "tts.py", 2048, 25),
        ("physics", "md.py", 14336, 100),
        ("physics", "notebook", 1024, 10),
    ):
        lines = [f"project={project}"]
        plane.client(request_lines=lines, program=program, gmem_mib=gmem, ratio_percent=ratio)
    for project, program in (("vision", "sweep.py"), ("speech", "align.py"), ("physics", "cfd.py")):
        plane.client(
            request_lines=[f"project={project}"],
            program=program,
            gmem_mib=14336,
            ratio_percent=100,
            vgpu_count=2,
            wait_seconds=-1,
        )
    wanted = {"owner_kind": "project", "owner": "vision", "project": "vision", "memory_mib": 2048}
    plane.rest.post("/reservations", json={**wanted, "compute_percent": 20})
    plane.rest.put("/quotas/speech", json={"vgpus": 2, "memory_mib": 0, "compute_percent": 0})
    wait_for(lambda: plane.rest.get("/queue").json()["total"] == 3)


def make_up_history(folder: Path, names: list[str]) -> None:
    """Some hours, as a pool of people would have them."""
    history_file.BREATH_SECONDS = 0
    file = HistoryFile(folder / "history.db")
    now = int(time.time() // STEP_SECONDS) * STEP_SECONDS
    for number, began in enumerate(range(now - HOURS * 3600, now, STEP_SECONDS)):
        wave = 0.5 + 0.35 * math.sin(number / 120) + 0.08 * math.sin(number * 1.7)
        promised = 0.75 if number % 900 < 600 else 1.0
        values = Values(promised * wave, promised, 12_000 + 40 * (number % 150), 2.0)
        file.write(began, dict.fromkeys(names, values))
    file.close()


def make_up_usage(folder: Path) -> None:
    """A week of three projects."""
    hour = int(time.time() // 3600)

    def record(project: str, factor: float, back: int) -> UsageRecord:
        by_day = factor * (1.1 + math.sin(2 * math.pi * (hour - back) / 24))
        held = (3600 * by_day, 8192 * 3600 * by_day, 60 * 3600 * by_day)
        until = (hour - back + 1) * 3600.0
        return UsageRecord(project, hour - back, *held, until, 1400 * by_day, 90 * by_day)

    async def write() -> None:
        store = SqliteStore(folder / "controller.db")
        await store.load()
        records = [record(*each, back) for back in range(1, 150) for each in PROJECTS]
        await store.commit(records)
        await store.close()

    # playwright's own loop is this thread's
    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    thread.join()


def main() -> int:
    """Takes the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        with pool(folder) as (plane, token):
            gpu = plane.rest.get("/gpus").json()["gpus"][0]["id"]
            plane.stop("controller")
            make_up_history(folder, ["pool", f"gpu:{gpu}", f"node:{plane.node}"])
            make_up_usage(folder)
            plane.start_controller()
            plane.rest = plane.rest_as(token)
            wait_for(lambda: plane.rest.get("/queue").json()["total"] == 3)
            browser = launched(playwright)
            _take(browser, plane, token, gpu)
            browser.close()
    return 0


def _take(browser: Any, plane: ControlPlane, token: str, gpu: str) -> None:
    for name, path, dark, waits_for in (
        ("console-pool", "/", False, ".part-queue tbody tr"),
        ("console-gpu", f"/gpu?id={quote(gpu)}", True, ".plot canvas"),
        ("console-usage", "/usage", False, ".plot canvas"),
    ):
        person = Person(browser, plane.url, SIZE, dark=dark)
        person.sign_in(token)
        page = person.open(path)
        page.locator(waits_for).first.wait_for()
        time.sleep(0.5)  # fonts and the first live update
        target = PICTURES / f"{name}.png"
        page.screenshot(path=str(target), full_page=name != "console-pool")
        if person.wrong:
            sys.exit(f"{path}: {person.wrong}")
        person.close()
        print(f"{target.relative_to(ROOT)}: {target.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    sys.exit(main())
