# SPDX-License-Identifier: Apache-2.0
"""Events and looks in every order: an end is told once, and of the run that ended."""

from __future__ import annotations

import pytest

from sluice.hypervisor.guest_restarts import GuestRestarts, Told


@pytest.fixture
def restarts() -> GuestRestarts:
    return GuestRestarts()


def test_what_an_event_told_is_taken_once(restarts: GuestRestarts) -> None:
    restarts.stopped("a", "the VM was destroyed", known_off=False)
    restarts.restarted("b", "the guest's kernel crashed")
    assert restarts.take("a") == Told("the VM was destroyed")
    assert restarts.take("a") == Told()
    assert restarts.take("b") == Told("the guest's kernel crashed")


def test_the_event_of_an_end_that_was_seen_before_is_not_the_next_runs(
    restarts: GuestRestarts,
) -> None:
    restarts.stopped("a", "the VM was destroyed", known_off=True)
    restarts.started("a", None)
    assert restarts.take("a") == Told(started=True)


def test_nor_is_one_that_came_while_a_look_saw_the_end(restarts: GuestRestarts) -> None:
    assert restarts.take("a") == Told()
    restarts.stopped("a", "the VM was destroyed", known_off=False)
    restarts.seen_off("a")
    restarts.started("a", None)
    assert restarts.take("a") == Told(started=True)


@pytest.mark.parametrize("while_looking", [True, False])
def test_the_end_of_a_run_that_no_look_saw_is_told(
    restarts: GuestRestarts, while_looking: bool
) -> None:
    if while_looking:
        restarts.take("a")
    restarts.started("a", None)
    restarts.stopped("a", "the VM was destroyed", known_off=True)
    restarts.started("a", None)
    if while_looking:
        restarts.seen_off("a")
    assert restarts.take("a") == Told("the VM was destroyed", started=True)


def test_a_run_with_the_memory_of_an_older_one_tells_so(restarts: GuestRestarts) -> None:
    restarts.started("a", "the VM was restored from what was saved")
    assert restarts.take("a").why == "the VM was restored from what was saved"


def test_the_reset_after_a_crash_is_no_other_reason(restarts: GuestRestarts) -> None:
    restarts.restarted("a", "the guest's kernel crashed")
    restarts.reset("a", "the VM rebooted")
    assert restarts.take("a").why == "the guest's kernel crashed"
    restarts.reset("a", "the VM rebooted")
    assert restarts.take("a").why == "the VM rebooted"


def test_a_look_that_failed_gives_back_what_it_took(restarts: GuestRestarts) -> None:
    restarts.started("a", None)
    restarts.reset("a", "the VM rebooted")
    told = restarts.take("a")
    restarts.give_back("a", told.why, started=told.started)
    restarts.stopped("a", "the VM was destroyed", known_off=True)  # of the run that began
    assert restarts.take("a") == Told("the VM was destroyed", started=True)
