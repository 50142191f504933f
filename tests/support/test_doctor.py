# SPDX-License-Identifier: Apache-2.0
"""`sluice doctor` on hosts that run, that are broken, and in a guest's own Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane

from sluice.guest_runtime.examination import Area, examine, exit_status
from sluice.guest_runtime.findings import Finding, Verdict, bad, note, ok
from tests.support.commands import run

CHECKOUT = Path(__file__).resolve().parents[2]


def doctor(plane: ControlPlane, *words: str) -> dict[str, Any]:
    done = run(
        "doctor", "--json", *words,
        "--server-config", str(plane.folder / "server.conf"),
        "--controller-config", str(plane.folder / "controller.conf"),
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if document["problems"] else 0), done.stderr
    return document


def wrong(document: dict[str, Any]) -> dict[str, str]:
    return {
        f"{each['area']}: {each['subject']}": each["text"]
        for each in document["findings"]
        if each["verdict"] == "bad"
    }


def of_this_machine(document: dict[str, Any]) -> dict[str, str]:
    """What is wrong beyond the account of workers, which a machine for tests need not have."""
    found = wrong(document)
    return {k: v for k, v in found.items() if "worker user" not in k and "cgroups" not in k}


@pytest.mark.control_plane(fake=False)
def test_a_pool_that_runs_is_well_and_each_part_that_goes_is_missed(plane: ControlPlane) -> None:
    found = doctor(plane)
    assert not of_this_machine(found)
    areas = {each["area"] for each in found["findings"]}
    assert {"server", "controller", "controller's store", "server's controllers"} <= areas
    plane.stop("server")
    gone = of_this_machine(doctor(plane))
    assert list(gone) == ["server: sluice-server"]
    plane.stop("controller")
    gone = of_this_machine(doctor(plane))
    assert "server's controllers: gRPC" in gone
    assert any(name.startswith("controller: controller http") for name in gone)


def test_wrong_files_end_with_status_1_and_name_the_key(tmp_path: Path) -> None:
    server, controller = tmp_path / "server.conf", tmp_path / "controller.conf"
    server.write_text("[server]\nlisten_prt = 1\n")
    controller.write_text("[controller]\nrest_port = many\n")
    done = run("doctor", "-q", "--server-config", str(server), "--controller-config",
               str(controller))  # fmt: skip
    assert done.returncode == 1
    assert "listen_prt" in done.stdout
    assert "rest_port = many" in done.stdout
    assert all(" -> " in line for line in done.stdout.splitlines() if line.startswith("  BAD"))
    assert run("doctor", "--part", "kitchen").returncode == 2


def test_a_guests_python_needs_nothing_else(tmp_path: Path) -> None:
    """As in the bundle: a package of its own name, beside nothing of ours."""
    (tmp_path / "sluice_guest").symlink_to(CHECKOUT / "guest_runtime")
    home = tmp_path / "home"
    (home / ".sluice").mkdir(parents=True)
    (home / ".sluice/client.conf").write_text("[client]\nchannel = pigeon\n")
    done = run("doctor", "--json", module="sluice_guest", PYTHONPATH=str(tmp_path), HOME=str(home))
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert "channel" in wrong(document)["client settings: configuration"]
    assert run("doctor", "--nonsense", module="sluice_guest",
               PYTHONPATH=str(tmp_path)).returncode == 2  # fmt: skip


def test_a_check_that_fails_itself_hides_no_other() -> None:
    def fails() -> Sequence[Finding]:
        raise RuntimeError("no such thing")

    results = examine([Area("first", fails), Area("second", lambda: [ok("a", "b")])])
    assert [result.finding.verdict for result in results] == [Verdict.BAD, Verdict.OK]
    assert "no such thing" in results[0].finding.text
    assert exit_status(results) == 1
    assert exit_status(examine([Area("x", lambda: [note("a", "b")])])) == 0
    assert exit_status(examine([Area("x", lambda: [bad("a", "b", "c")])])) == 1
