# SPDX-License-Identifier: Apache-2.0
"""Flavors: what the scheduler counts against what the pool gives."""

from __future__ import annotations

from sluice.nova_driver.compute.extra_specs import VgpuSpecs
from sluice.nova_driver.flavors import differences, misfit

SPECS = VgpuSpecs(1024, 25)


def test_a_flavor_of_ours_and_one_of_nobodys_are_right() -> None:
    assert differences([{"name": "g", "extra_specs": SPECS.extra_specs()}, {"name": "m1"}]) == []


def test_sizes_that_placement_does_not_count() -> None:
    specs = {**SPECS.extra_specs(), "vgpu:count": "2"}
    found = differences([{"name": "g", "extra_specs": specs}])
    assert [(d.wanted, d.found) for d in found] == [
        ("resources:CUSTOM_SLUICE_VGPU_MIB=2048", "resources:CUSTOM_SLUICE_VGPU_MIB=1024"),
        ("resources:CUSTOM_SLUICE_VGPU_COMPUTE=50", "resources:CUSTOM_SLUICE_VGPU_COMPUTE=25"),
    ]


def test_resources_without_a_vgpu() -> None:
    specs = {"resources:CUSTOM_SLUICE_VGPU_MIB": "5"}
    [found] = differences([{"name": "g", "extra_specs": specs}])
    assert found.wanted == "no resources:CUSTOM_SLUICE_VGPU_MIB"


def test_a_flavor_that_cannot_be_read() -> None:
    [found] = differences([{"id": "7", "extra_specs": {"vgpu:compute": "all"}}])
    assert found.subject == "flavor 7"
    assert "vgpu:compute='all'" in found.found


def test_a_vgpu_that_no_gpu_could_hold() -> None:
    gpus = [
        {
            "state": "up",
            "mode": "pooled",
            "health": "ok",
            "memory_mib": 10_000,
            "reserved_mib": 400,
            "context_overhead_mib": 600,
        }
    ]
    assert misfit(VgpuSpecs(9000, 100), gpus) is None
    assert "9000 MiB" in str(misfit(VgpuSpecs(9001, 100), gpus))
    assert "0 MiB" in str(misfit(VgpuSpecs(1, 1), []))
