# SPDX-License-Identifier: Apache-2.0
"""libvirt's hook: what it says and to whom, and that no start ever waits or fails because of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.hypervisor.hook_commands import FILE, hook_text
from sluice.hypervisor.region_file import RegionFiles

from .conftest import CHECKOUT
from .domain_texts import OTHER_UUID, UUID, ours, q35, region

FULL = q35(metadata=ours(), devices=region())
MIB = 1 << 20


class Host:
    """A run folder, a folder of regions and the hook for both."""

    def __init__(self, folder: Path) -> None:
        self.run, self.shm = folder / "run", folder / "shm"
        self.run.mkdir()
        self.shm.mkdir()
        self.region = self.shm / f"sluice-{UUID}"
        self.hook = folder / "50-sluice"
        text = hook_text(str(self.run)).replace('"/dev/shm"', repr(str(self.shm)))
        self.hook.write_text(text.replace("SECONDS = 2\n", "SECONDS = 60\n"))
        self.hook.chmod(0o755)

    def call(self, operation: str, sub: str, document: str = FULL) -> None:
        """As libvirtd does; it says nothing and ends well."""
        done = subprocess.run(
            [self.hook, "guest", operation, sub, "-"],
            input=document.encode(),
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def door(host: Host) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(host.run / "vms.sock"))
    listening.listen(8)
    listening.settimeout(60)
    return listening


def heard(door: socket.socket) -> dict[str, dict[str, str]]:
    line, _ = door.accept()
    with line, line.makefile() as lines:
        found: dict[str, dict[str, str]] = json.loads(lines.readline())
        return found


def test_it_tells_the_server(host: Host, door: socket.socket) -> None:
    for operation, sub in (("prepare", "begin"), ("started", "begin"), ("release", "end")):
        host.call(operation, sub)
        said = {"uuid": UUID, "name": "guest", "operation": operation, "sub": sub, "extra": "-"}
        assert heard(door) == {"hook": said}
    assert not (host.run / "ended").exists()


def test_of_domains_that_are_not_sluices_it_says_nothing(host: Host, door: socket.socket) -> None:
    host.call("prepare", "begin", q35())
    host.call("release", "end", "no XML at all")
    door.setblocking(False)
    with pytest.raises(BlockingIOError):
        door.accept()


def test_without_a_server_the_end_of_a_domain_is_cleaned_up(host: Host) -> None:
    host.region.write_bytes(b"secret00" * (MIB // 8))
    files = RegionFiles("here", host.shm, host.run)
    host.call("stopped", "end")
    assert host.region.read_bytes()[:6] == b"secret", "it may still be in use"
    host.call("release", "end")
    assert host.region.stat().st_size == MIB
    assert host.region.stat().st_blocks == 0, "the host has its memory again"
    assert not any(host.region.read_bytes())
    assert files.ended_since(UUID, -1)
    assert not files.ended_since(OTHER_UUID, -1)


def test_a_link_in_the_place_of_a_region_is_not_followed(host: Host, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    host.region.symlink_to(victim)
    host.call("release", "end")
    assert victim.read_text() == "precious"


def test_a_server_that_hangs_holds_no_start_up(host: Host) -> None:
    full = socket.socket(socket.AF_UNIX)
    full.bind(str(host.run / "vms.sock"))
    full.listen(0)
    waiting = []
    for _ in range(4):  # nobody accepts, and there is no room to wait in
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        waiting.append(one)
        one.connect_ex(str(host.run / "vms.sock"))
    began = time.monotonic()
    host.call("prepare", "begin")
    assert time.monotonic() - began < 15


def commands(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sluice.hypervisor.cli",
        "hook",
        *words,
        "--folder",
        str(tmp_path),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT / "python"),
        "SLUICE_RUN_DIR": "/elsewhere/run",
    }
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def test_it_is_installed_beside_those_of_others_and_taken_away_again(tmp_path: Path) -> None:
    other = tmp_path / "qemu.d" / "10-other"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    hook = tmp_path / FILE
    assert commands(tmp_path, "show").returncode == 1
    done = commands(tmp_path, "install")
    assert done.returncode == 0, done.stderr
    assert "restart it" in done.stdout
    assert os.access(hook, os.X_OK)
    assert "RUN_FOLDER = '/elsewhere/run'\n" in hook.read_text()
    assert commands(tmp_path, "show").returncode == 0
    before = hook.stat().st_mtime_ns
    assert commands(tmp_path, "install").stdout.strip().endswith("is there")
    assert hook.stat().st_mtime_ns == before
    hook.write_text(hook.read_text() + "# an older one\n")
    assert commands(tmp_path, "show").returncode == 1
    assert commands(tmp_path, "install").returncode == 0
    assert commands(tmp_path, "show").returncode == 0
    assert commands(tmp_path, "remove").returncode == 0
    assert commands(tmp_path, "remove").returncode == 0, "twice changes nothing"
    assert sorted(tmp_path.rglob("*")) == [other.parent, other]


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    hook = tmp_path / FILE
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\n")
    for verb in ("install", "remove", "show"):
        refused = commands(tmp_path, verb)
        assert refused.returncode == 1
        assert "not Sluice's" in refused.stderr
    assert hook.read_text() == "#!/bin/sh\n"
