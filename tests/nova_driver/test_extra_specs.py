# SPDX-License-Identifier: Apache-2.0
"""What flavors say: read as they are meant, refused with the key and the remedy, never a crash."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.nova_driver.compute.extra_specs import KEYS, InvalidSpecs, VgpuSpecs, parse

SMALLEST = {"vgpu:memory_mib": "1024", "vgpu:compute": "25"}


def test_a_flavor_without_our_keys_asks_for_nothing() -> None:
    assert parse({"hw:cpu_policy": "shared", "resources:VGPU": "1"}) is None


def test_defaults() -> None:
    assert parse(SMALLEST) == VgpuSpecs(1024, 25, 1, "reserved", 0)


def test_what_is_written_is_read_back() -> None:
    specs = VgpuSpecs(4096, 100, 2, "reserved", -5)
    assert parse(specs.extra_specs()) == specs
    assert specs.resources == {"CUSTOM_SLUICE_VGPU_MIB": 8192, "CUSTOM_SLUICE_VGPU_COMPUTE": 200}


def test_several_nodes_are_refused_with_whole_gpus_too() -> None:
    whole = {"vgpu:memory_mib": "1024", "vgpu:compute": "100", "vgpu:count": "2"}
    assert parse({**whole, "vgpu:cross_node": "false"}) == parse(whole)
    with pytest.raises(InvalidSpecs, match="on one GPU node so far"):
        parse({**whole, "vgpu:cross_node": "true"})
    assert not any("cross_node" in key for key in VgpuSpecs(1024, 100, 2).extra_specs())


def test_on_demand_takes_nothing_of_placement() -> None:
    specs = parse({**SMALLEST, "vgpu:mode": "on-demand"})
    assert specs is not None
    assert specs.resources == {}
    assert not any(key.startswith("resources:") for key in specs.extra_specs())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("memory_mib", "0", "give a number, 1 to 16777216"),
        ("memory_mib", "4 GiB", "'4 GiB': give a number"),
        ("memory_mib", "1e3", "give a number"),
        ("memory_mib", "١٠", "give a number"),
        ("compute", "101", "1 to 100"),
        ("compute", "", "1 to 100"),
        ("count", "65", "1 to 64"),
        ("priority", "-1001", "-1000 to 1000"),
        ("mode", "dedicated", "give reserved or on-demand"),
        ("cross_node", "maybe", "leave it out, or give false"),
        ("cross_node", "true", "are on one GPU node so far; leave it out, or give false"),
        ("cross_node", "YES", "are on one GPU node so far"),
        ("memory", "1024", "vgpu:'memory' is unknown: there are count, memory_mib"),
        ("count", "9" * 5000, "give a number"),
        ("mode", "\x1b[2J\n", "'\\x1b[2J\\n'"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: str, said: str) -> None:
    with pytest.raises(InvalidSpecs) as caught:
        parse({**SMALLEST, f"vgpu:{key}": value})
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "vgpu:" in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidSpecs) as caught:
        parse({"vgpu:count": "no", "vgpu:mode": "x"})
    assert len(caught.value.problems) == 4  # both sizes are missing besides


@settings(deadline=None)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from([f"vgpu:{key}" for key in KEYS]), st.text(max_size=20)),
        st.one_of(st.text(max_size=30), st.integers().map(str)),
        max_size=8,
    )
)
def test_nothing_crashes(specs: dict[str, str]) -> None:
    try:
        found = parse(specs)
    except InvalidSpecs:
        return
    assert found is None or 1 <= found.compute <= 100
