# SPDX-License-Identifier: Apache-2.0
"""A checkout below /tmp, over which the rig's guest has a file system of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rigs.kvm import images, rig
from tests.rigs.kvm.images import Images, Progress

pytestmark = [
    pytest.mark.vm,
    pytest.mark.skipif(os.geteuid() != 0, reason="the KVM rig needs root"),
]


@pytest.fixture
def covered() -> Iterator[Path]:
    """A folder below /tmp, with a path that has no room for the name of a Unix socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        deep = Path(folder) / ("deep-" * 15)
        deep.mkdir()
        yield deep


def test_its_guest_boots_and_sees_it(covered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = images.prepare

    def with_agent_there(_: Path, progress: Progress) -> Images:
        agent = covered / "qemu-ga"
        found = prepare(rig.CHECKOUT / "build/rig/images", progress)
        shutil.copy(found.agent, agent)
        return replace(found, agent=agent)

    monkeypatch.setattr(images, "prepare", with_agent_there)
    monkeypatch.setenv("SLUICE_RIG", str(covered / "rig"))
    (covered / "of-the-checkout").write_text("seen")
    with rig.Rig("demo") as started:
        monkeypatch.setattr(rig, "CHECKOUT", covered)
        guest = started.define_guest("covered")
        guest.start()
        guest.wait_ready()
        assert guest.check(f"cat {covered}/of-the-checkout") == "seen"
        assert guest.check("ls /tmp | wc -l").strip() == "1"
