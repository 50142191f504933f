# SPDX-License-Identifier: Apache-2.0
"""What cannot be granted is refused at once, with the reason where people look for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from control_plane import ControlPlane

from .prompted import Prompted, is_cuda_error

pytestmark = pytest.mark.control_plane(reused=True)

Start = Callable[..., Prompted]


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_more_memory_than_any_gpu_has_is_a_clear_error_at_once(
    plane: ControlPlane, start: Start, channel: str
) -> None:
    # it would wait for ever for what may come; this never comes
    application = start(channel, opened=False, SLUICE_GMEM="16777216", SLUICE_WAIT="-1")
    answer = application.ask("open", 20)
    assert is_cuda_error(answer), answer
    application.say("quit")
    said = "wanted 16777216 MiB in one vGPU; the largest"
    errors = application.errors()
    assert said in errors
    assert "SLUICE_GMEM" in errors
    asked = "server" if channel == "shm" else "controller"
    assert said in (plane.folder / "log" / f"{asked}.log").read_text()
    assert plane.grants() == []
    assert start(channel).ask("compute") == "compute: wrong 0 of 1000"
