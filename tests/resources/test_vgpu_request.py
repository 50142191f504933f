# SPDX-License-Identifier: Apache-2.0
"""One definition of a vGPU request: what runs alone agrees with it, and no text gets past it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.guest_runtime import client_settings
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
from sluice.resources.vgpu_request import Mode, Number, RequestError, Sharing, VgpuRequest, shown


def test_the_drivers_of_nova_have_the_same_bounds() -> None:
    copied = {key: Number(low, high) for key, (low, high, _, _) in extra_specs.NUMBERS.items()}
    assert copied == {
        "count": fields.COUNT,
        "memory_mib": fields.DEFINED_MEMORY_MIB,
        "compute": fields.COMPUTE_PERCENT,
        "priority": fields.PRIORITY,
    }
    assert set(extra_specs.MODES) == {Mode.RESERVED, Mode.ON_DEMAND}


def test_the_bounds_are_those_that_stores_and_clients_know() -> None:
    bounds = {
        "COUNT": (1, 64),
        "MEMORY_MIB": (1, 2**30),
        "DEFINED_MEMORY_MIB": (1, 2**24),
        "COMPUTE_PERCENT": (1, 100),
        "PRIORITY": (-1000, 1000),
        "WAIT_SECONDS": (-1, 2**30),
        "JOB_PROCESSES": (1, 256),
    }
    for name, (low, high) in bounds.items():
        assert getattr(fields, name) == Number(low, high), name
    assert fields.MAX_LABELS == 16
    assert fields.PROJECT.pattern == "[A-Za-z0-9._-]{1,120}"
    assert fields.GPU_MODEL.pattern == "[A-Za-z0-9 ._()/-]{1,120}"
    assert fields.GPU_ARCHITECTURE.pattern == "[A-Za-z0-9._]{1,32}"
    assert fields.LABEL.pattern == "[A-Za-z0-9._/-]{1,63}=[A-Za-z0-9._/-]{1,63}"


def test_programs_and_the_pool_know_the_same_modes() -> None:
    assert client_settings.BY_NAME["mode"].accepts == tuple(Mode)
    assert client_settings.BY_NAME["sharing"].accepts == tuple(Sharing)


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
