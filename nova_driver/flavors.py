# SPDX-License-Identifier: Apache-2.0
"""Flavors whose `vgpu:` and `resources:` extra specs belong together.

Used by the commands. It makes flavors whole or not at all, and says of existing ones what does not
fit: Placement counts what `resources:` says, the pool gives what `vgpu:` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.nova_driver.cloud import FLAVOR_VERSION, Cloud, CloudError
from sluice.nova_driver.compute.extra_specs import (
    NAMESPACE,
    InvalidSpecs,
    VgpuSpecs,
    parse,
)
from sluice.nova_driver.differences import Difference, Kind
from sluice.nova_driver.inventory import CHANNEL_TRAIT, CLASSES, in_service

RESOURCES = "resources:"


def differences(flavors: Iterable[Mapping[str, Any]]) -> list[Difference]:
    """What is wrong with flavors; pure."""
    listed = []
    for flavor in flavors:
        specs: Mapping[str, str] = flavor.get("extra_specs") or {}
        subject = f"flavor {flavor.get('name') or flavor.get('id')}"
        try:
            wanted = parse(specs)
        except InvalidSpecs as error:
            why = "its instances get no vGPU, and are refused on hosts with the virt driver"
            listed.append(Difference(Kind.FLAVOR, subject, "valid extra specs", str(error), why))
            continue
        resources = wanted.resources if wanted else {}
        for name in CLASSES:
            found = specs.get(RESOURCES + name)
            want = str(resources[name]) if name in resources else None
            if found == want:
                continue
            why = (
                "the scheduler does not count what the pool gives"
                if want is not None
                else f"the scheduler counts what nobody is given: it has no {NAMESPACE} keys for it"
            )
            listed.append(
                Difference(
                    Kind.FLAVOR,
                    subject,
                    f"{RESOURCES}{name}={want}" if want is not None else f"no {RESOURCES}{name}",
                    f"{RESOURCES}{name}={found}" if found is not None else "absent",
                    why,
                )
            )
    return listed


def misfit(specs: VgpuSpecs, gpus: Iterable[Mapping[str, Any]]) -> str | None:
    """Why no GPU of the pool could ever hold one of these vGPUs; None where one could."""
    largest = max(
        (
            gpu["memory_mib"] - gpu["reserved_mib"] - gpu["context_overhead_mib"]
            for gpu in gpus
            if in_service(gpu)
        ),
        default=0,
    )
    if specs.memory_mib <= largest:
        return None
    return (
        f"vgpu:memory_mib={specs.memory_mib}: the largest vGPU that a GPU in service can hold has "
        f"{largest} MiB"
    )


def create(
    cloud: Cloud,
    name: str,
    specs: VgpuSpecs,
    *,
    vcpus: int,
    ram_mib: int,
    disk_gib: int,
    channel: bool,
    public: bool,
) -> dict[str, Any]:
    """Makes the flavor with all its extra specs, or nothing; raises CloudError."""
    body = {
        "flavor": {
            "name": name,
            "vcpus": vcpus,
            "ram": ram_mib,
            "disk": disk_gib,
            "os-flavor-access:is_public": public,
        }
    }
    path = "/flavors"
    made = cloud.checked(cloud.compute("POST", path, FLAVOR_VERSION, json=body), path)["flavor"]
    extra = specs.extra_specs()
    if channel:
        extra[f"trait:{CHANNEL_TRAIT}"] = "required"
    path = f"/flavors/{made['id']}/os-extra_specs"
    try:
        answer = cloud.compute("POST", path, FLAVOR_VERSION, json={"extra_specs": extra})
        cloud.checked(answer, path)
    except CloudError:
        # a flavor that asks for nothing would boot instances without a vGPU
        cloud.compute("DELETE", f"/flavors/{made['id']}", FLAVOR_VERSION)
        raise
    return {
        "id": made["id"],
        "name": made["name"],
        "vcpus": made["vcpus"],
        "ram": made["ram"],
        "disk": made["disk"],
        "extra_specs": extra,
    }
