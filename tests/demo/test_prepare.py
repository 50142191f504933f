# SPDX-License-Identifier: Apache-2.0
"""What `make demo` says before, during and after its steps, and whose its files are afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import demo
import prepare
from prepare import Step, StepFailed

CHECKOUT = Path(__file__).resolve().parents[2]


def step(*commands: tuple[str, ...]) -> Step:
    return Step("one", "the one step", commands, "plug it in")


@pytest.mark.parametrize("name", ["with space", "colon:", "dollar$", "quote'"])
def test_a_path_that_would_fail_later_is_refused_at_once(tmp_path: Path, name: str) -> None:
    checkout = tmp_path / name
    checkout.mkdir()
    found = prepare.obstacles(checkout, guest=False)
    assert any(str(checkout) in line and "move it" in line for line in found)


def test_usual_paths_are_none(tmp_path: Path) -> None:
    checkout = tmp_path / "Größe_2.0" / "sluice@work+1~x"
    checkout.mkdir(parents=True)
    assert not [line for line in prepare.obstacles(checkout, guest=False) if "path" in line]


def test_make_refuses_spaces_for_every_target(tmp_path: Path) -> None:
    checkout = tmp_path / "with space"
    checkout.mkdir()
    (checkout / "Makefile").symlink_to(CHECKOUT / "Makefile")
    done = subprocess.run(
        ["make", "help"], check=False, cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "has spaces" in done.stderr


def test_a_user_hears_of_sudo_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with_guest = prepare.obstacles(tmp_path, guest=True)
    assert any("sudo make demo" in line and "GUEST=no" in line for line in with_guest)
    assert not any("sudo" in line for line in prepare.obstacles(tmp_path, guest=False))


def test_a_build_folder_of_another_checkout_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "build" / "native" / "CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    cache.write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere/native\n")
    assert any("rm -rf" in line for line in prepare.obstacles(tmp_path, guest=False))
    cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}/native\n")
    assert not any("rm -rf" in line for line in prepare.obstacles(tmp_path, guest=False))


def test_a_failed_step_names_its_last_words_its_log_and_the_way_on(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "1-one.log"
    with pytest.raises(StepFailed) as caught:
        prepare.run_step(step(("sh", "-c", "echo no such wheel; exit 3")), tmp_path, log, print)
    said = str(caught.value)
    for part in ("no such wheel", "the one step", "ended with 3", str(log), "plug it in"):
        assert part in said
    assert "no such wheel" in log.read_text()


def test_a_missing_program_fails_its_step_as_well(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="no-such-program: No such file"):
        prepare.run_step(step(("no-such-program",)), tmp_path, tmp_path / "log", print)


def test_a_step_stops_at_its_first_failure(tmp_path: Path) -> None:
    commands = (("false",), ("touch", str(tmp_path / "after")))
    with pytest.raises(StepFailed):
        prepare.run_step(step(*commands), tmp_path, tmp_path / "log", print)
    assert not (tmp_path / "after").exists()


def test_a_long_step_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "PROGRESS_EVERY", 0.05)
    said: list[str] = []
    go_on = tmp_path / "go_on"

    def say(line: str) -> None:
        said.append(line)
        if "12 of 240" in line:
            go_on.touch()

    script = f'echo "[12/240] Building"; while [ ! -e {go_on} ]; do sleep 0.02; done'
    prepare.run_step(step(("sh", "-c", script)), tmp_path, tmp_path / "log", say)
    assert any("12 of 240 files" in line for line in said)


def test_an_interrupted_step_may_tidy_up(tmp_path: Path) -> None:
    script = "trap 'sleep 0.5; touch tidied; exit 1' INT; touch began; while :; do sleep 0.02; done"
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(CHECKOUT / "tests" / "demo")!r})
import prepare
here = Path.cwd()
step = prepare.Step("one", "one", (("bash", "-c", {script!r}),), "")
prepare.run_step(step, here, here / "log", print)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        # a shell started with SIGINT ignored, as behind `&`, has no trap for it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(60)
    assert (tmp_path / "tidied").exists()


def test_the_callers_pool_is_not_the_demos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_CONTROLLER", "pool.example:9123")
    monkeypatch.setenv("SLUICE_NATIVE_DIR", "/elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    found = prepare.environment(tmp_path)
    assert not {"SLUICE_CONTROLLER", "SLUICE_NATIVE_DIR", "LD_LIBRARY_PATH"} & set(found)
    assert found["PATH"].startswith(str(tmp_path / ".venv" / "bin"))


def test_an_environment_is_made_once_for_each_project_file(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    project = tmp_path / "pyproject.toml"
    project.touch()
    words = [command[-1] for command in prepare.python_commands(tmp_path, str(python))]
    assert words == [str(tmp_path / ".venv"), "demo", str(tmp_path / ".venv" / "sluice-demo")]
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    (tmp_path / ".venv" / "sluice-demo").touch()
    assert prepare.python_commands(tmp_path, str(python)) == ()
    later = time.time() + 10
    os.utime(project, (later, later))
    assert len(prepare.python_commands(tmp_path, str(python))) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's checkout")
def test_what_root_made_is_the_checkouts_owners(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    checkout = tmp_path / "checkout"
    (checkout / "build").mkdir(parents=True)
    (checkout / "build" / "made").touch()
    (checkout / "build" / "link").symlink_to(outside)
    os.chown(checkout, 1234, 1235)
    prepare.leave_to_owner(checkout)
    for path in (checkout / "build", checkout / "build" / "made", checkout / "build" / "link"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (1234, 1235)
    assert outside.stat().st_uid == 0


def test_other_guests_regions_are_not_looked_at(tmp_path: Path) -> None:
    ours, other = "8f14e45f-ceea-467f-9575-000000000001", "8f14e45f-ceea-467f-9575-000000000002"
    (tmp_path / f"sluice-{other}").touch()
    assert demo.regions_of(ours, tmp_path) == []
    (tmp_path / "sluice").mkdir()
    (tmp_path / "sluice" / ours).touch()
    (tmp_path / f"sluice-{ours}").touch()
    assert len(demo.regions_of(ours, tmp_path)) == 2
