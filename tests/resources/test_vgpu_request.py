# SPDX-License-Identifier: Apache-2.0
"""One definition of a vGPU request: what runs alone agrees with it, and no text gets past it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.guest_runtime import configuration, options
from sluice.nova_driver.compute import extra_specs
from sluice.resources import vgpu_request as fields
from sluice.resources.request_forms import (
    METADATA,
    SESSION_LINES,
    VM_TEXT,
    read_numbers,
    read_session_lines,
    read_vm_text,
)
from sluice.resources.vgpu_request import Mode, Number, RequestError, Text, VgpuRequest, shown

SETTINGS = {setting.key: setting for setting in configuration.SETTINGS}


def test_the_drivers_of_nova_have_the_same_bounds() -> None:
    copied = {key: Number(low, high) for key, (low, high, _, _) in extra_specs.NUMBERS.items()}
    assert copied == {
        "count": fields.COUNT,
        "memory_mib": fields.DEFINED_MEMORY_MIB,
        "compute": fields.COMPUTE_PERCENT,
        "priority": fields.PRIORITY,
    }
    assert set(extra_specs.MODES) == {Mode.RESERVED, Mode.ON_DEMAND}


@pytest.mark.parametrize(
    ("key", "option", "bounds"),
    [
        ("client.vgpu_count", "--vgpu", fields.COUNT),
        ("client.gmem", "--gmem", fields.MEMORY_MIB),
        ("client.ratio", "--ratio", fields.COMPUTE_PERCENT),
        ("client.priority", "--priority", fields.PRIORITY),
        ("client.wait", "--wait", fields.WAIT_SECONDS),
        (None, "--processes", fields.JOB_PROCESSES),
    ],
)
def test_guests_have_the_same_bounds(key: str | None, option: str, bounds: Number) -> None:
    assert options.OPTIONS[option][1:] == (bounds.low, bounds.high)
    if key is not None:
        assert SETTINGS[key].accepts == range(bounds.low, bounds.high + 1)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("client.project", fields.PROJECT),
        ("client.gpu_model", fields.GPU_MODEL),
        ("client.gpu_architecture", fields.GPU_ARCHITECTURE),
    ],
)
def test_guests_accept_the_same_texts(key: str, text: Text) -> None:
    assert SETTINGS[key].text == (text.pattern, text.allowed)


def test_guests_accept_as_many_labels_and_the_same_modes() -> None:
    label, most = fields.LABEL.pattern, fields.MAX_LABELS
    assert configuration.LABELS[0] == f"{label}(, *{label}){{0,{most - 1}}}"
    assert SETTINGS["client.mode"].accepts == tuple(Mode)
    assert configuration.MODE[0].split("|") == list(Mode)


def test_metadata_says_what_is_missing_and_what_is_allowed() -> None:
    with pytest.raises(RequestError, match="memory-mib is missing: give 1 to 16777216") as refused:
        read_numbers(METADATA, {"compute": "25"})
    assert (refused.value.field, refused.value.found) == ("memory-mib", None)
    with pytest.raises(RequestError) as refused:
        read_numbers(METADATA, {"memory-mib": "1", "compute": "25 %"})
    assert (refused.value.field, refused.value.found, refused.value.allowed) == (
        "compute",
        "'25 %'",
        "give a number, 1 to 100",
    )


DEFAULTS = VgpuRequest(memory_mib=100, compute_percent=5, project="default")


def test_a_vms_text_overrules_the_defaults() -> None:
    asked = read_vm_text("memory=4GiB;mode=reserved, count=2", DEFAULTS, {"default"})
    assert asked == VgpuRequest(
        count=2, memory_mib=4096, compute_percent=5, mode=Mode.RESERVED, project="default"
    )
    assert read_vm_text(" default ", DEFAULTS, {"default"}) == DEFAULTS


@pytest.mark.parametrize("name", VM_TEXT)
def test_each_field_of_a_vms_text_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_vm_text(f"{name}=!", DEFAULTS, {"default"})
    assert refused.value.field == name
    assert refused.value.found == "'!'"


@pytest.mark.parametrize("name", SESSION_LINES)
def test_each_line_behind_a_session_is_refused_by_its_variable(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_session_lines(f"{name}=\x1b[2J\n".encode(), DEFAULTS)
    assert refused.value.field == SESSION_LINES[name].variable
    assert str(refused.value).isprintable()


@given(st.text(max_size=5000))
def test_a_strangers_text_is_short_and_plain_in_a_log(text: str) -> None:
    safe = shown(text)
    assert len(safe) <= fields.SHOWN_CHARACTERS + 2
    assert safe.isascii()
    assert safe.isprintable()
