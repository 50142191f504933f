# SPDX-License-Identifier: Apache-2.0
"""What one process does to itself stays its own: faults, and forks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .prompted import Prompted

pytestmark = pytest.mark.control_plane(reused=True)

Start = Callable[..., Prompted]
ROUNDS = 1_000_000
CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])


@CHANNELS
def test_an_illegal_address_of_one_session_is_not_the_others(start: Start, channel: str) -> None:
    faulty, right = start(channel), start(channel)
    assert right.ask(f"launch {ROUNDS}") == "launch: ok"
    assert faulty.ask("illegal") == "illegal: error 700 cudaErrorIllegalAddress"
    assert right.ask("wait") == "wait: ok"
    assert right.ask(f"turned {ROUNDS}") == "turned: right"
    assert right.ask("compute 20000") == "compute: wrong 0 of 20000"
    assert faulty.ask("compute") == "compute: error 700 cudaErrorIllegalAddress", "it is sticky"
    faulty.quit()
    assert right.ask("compute") == "compute: wrong 0 of 1000"
    assert start(channel).ask("compute") == "compute: wrong 0 of 1000"


@CHANNELS
def test_a_forked_child_gets_cudas_error_and_its_parent_goes_on(start: Start, channel: str) -> None:
    parent = start(channel)
    assert parent.ask(f"launch {ROUNDS}") == "launch: ok"
    child = parent.ask("fork")
    assert child == "child: cudaErrorInitializationError cudaErrorInitializationError"
    assert parent.answer() == "fork: child ended with 0"
    assert parent.ask(f"turned {ROUNDS}") == "turned: right"
    assert parent.ask("compute") == "compute: wrong 0 of 1000"
    parent.quit()
