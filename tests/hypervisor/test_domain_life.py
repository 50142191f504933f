# SPDX-License-Identifier: Apache-2.0
"""The server is told the same of a domain whether events or a later look found out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.hypervisor.domain_document import parse_domain
from sluice.hypervisor.domain_life import Known, Life, Observed, Step, observe, steps

from .domain_texts import OTHER_UUID, REQUEST, UUID, ours, q35, region

RUNNING = Observed(
    uuid=UUID, name="guest", life=Life.RUNNING, boot=7, request=REQUEST, has_device=True
)
OFF = replace(RUNNING, life=Life.OFF, boot=-1)
PAUSED = replace(RUNNING, life=Life.PAUSED)


def known(seen: Observed) -> Known:
    assert seen.request is not None
    return Known(seen.name, seen.request, seen.life, seen.boot)


def test_nothing_new_is_nothing_to_do() -> None:
    for seen in (RUNNING, OFF, PAUSED):
        assert steps(known(seen), seen) == []
    assert steps(None, None) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, RUNNING, [Step.ADD]),
        (None, OFF, [Step.ADD]),
        (None, PAUSED, [Step.ADD, Step.PAUSE]),
        (RUNNING, PAUSED, [Step.PAUSE]),
        (PAUSED, RUNNING, [Step.RESUME]),
        (RUNNING, OFF, [Step.STOP]),
        (PAUSED, OFF, [Step.STOP]),
        (OFF, RUNNING, []),
        (OFF, PAUSED, [Step.PAUSE]),
        (RUNNING, replace(RUNNING, boot=8), [Step.STOP]),
        (PAUSED, replace(RUNNING, boot=8), [Step.STOP, Step.RESUME]),
        (PAUSED, replace(PAUSED, boot=8), [Step.STOP, Step.PAUSE]),
        (RUNNING, replace(RUNNING, name="renamed"), [Step.ADD]),
        (RUNNING, replace(RUNNING, request=replace(REQUEST, compute_percent=50)), [Step.ADD]),
        (RUNNING, replace(RUNNING, request=None), [Step.REMOVE]),
        (RUNNING, None, [Step.REMOVE]),
        (OFF, None, [Step.REMOVE]),
    ],
)
def test_every_change_between_two_looks(
    before: Observed | None, after: Observed | None, expected: list[Step]
) -> None:
    assert steps(known(before) if before else None, after) == expected


def test_a_reboot_ends_the_sessions_though_the_domain_ran_all_the_time() -> None:
    assert steps(known(RUNNING), RUNNING, guest_restarted=True) == [Step.STOP]
    assert steps(known(OFF), OFF, guest_restarted=True) == []


def test_what_a_restored_vm_brings_back_is_nobodys() -> None:
    assert steps(known(OFF), RUNNING, guest_restarted=True) == [Step.STOP]


def test_a_guest_that_ended_while_no_server_ran_keeps_no_session() -> None:
    assert steps(None, RUNNING, guest_restarted=True) == [Step.ADD, Step.STOP]
    assert steps(None, PAUSED, guest_restarted=True) == [Step.ADD, Step.STOP, Step.PAUSE]


def look(persistent: str, live: str | None = None, *, paused: bool = False) -> Observed:
    return observe(
        parse_domain(persistent),
        parse_domain(live) if live else None,
        paused=paused,
        boot=3 if live else -1,
    )


def test_a_domain_is_served_once_it_has_request_and_device() -> None:
    full = q35(metadata=ours(), devices=region())
    assert look(full).request == REQUEST
    assert look(full).life is Life.OFF
    assert look(full, full).life is Life.RUNNING
    assert look(full, full, paused=True).life is Life.PAUSED
    assert look(q35(metadata=ours())).request is None
    assert look(q35(devices=region())).request is None
    assert look(q35(devices=region())).has_device


def test_a_channel_that_was_unplugged_while_running_is_out_of_use() -> None:
    full = q35(metadata=ours(), devices=region())
    seen = look(full, q35(metadata=ours()))
    assert (seen.life, seen.has_device) == (Life.OFF, True)
    assert steps(Known("guest", REQUEST, Life.RUNNING, 3), seen) == [Step.STOP]


def test_of_a_crashed_guest_only_qemu_is_kept() -> None:
    full = parse_domain(q35(metadata=ours(), devices=region()))
    seen = observe(full, full, paused=False, crashed=True, boot=3, went_off="it crashed")
    assert (seen.life, seen.has_device, seen.went_off) == (Life.OFF, True, "it crashed")
    assert steps(Known("guest", REQUEST, Life.RUNNING, 3), seen) == [Step.STOP]


def test_what_runs_counts_before_what_is_defined() -> None:
    edited = q35(metadata=ours(replace(REQUEST, compute_percent=99)), devices=region())
    assert look(edited, q35(metadata=ours(), devices=region())).request == REQUEST


def test_a_copied_definition_gets_nothing_of_the_original() -> None:
    seen = look(q35(metadata=ours(), devices=region(OTHER_UUID)))
    assert seen.request is None
    assert not seen.has_device
    assert OTHER_UUID in seen.problems[0]


def test_a_device_of_another_size_than_the_request_is_served_as_it_is() -> None:
    seen = look(q35(metadata=ours(), devices=region(size_mib=128)))
    assert seen.request == replace(REQUEST, region_mib=128)
    assert seen.has_device
    assert "128 MiB" in seen.problems[0]


def test_a_slip_of_the_pen_ends_nothing_that_was_served() -> None:
    bad = look(q35(metadata=ours().replace("compute='25'", "compute='lots'"), devices=region()))
    assert (bad.request, bad.unreadable) == (None, True)
    assert steps(None, bad) == []
    before = Known(bad.name, REQUEST, bad.life, bad.boot)
    assert steps(before, bad) == []
    assert steps(before, replace(bad, life=Life.RUNNING, boot=4)) == []
    gone = look(q35(metadata=ours().replace("compute='25'", "compute='lots'")))
    assert steps(before, gone) == [Step.REMOVE], "the device went, too"
