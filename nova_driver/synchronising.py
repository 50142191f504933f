# SPDX-License-Identifier: Apache-2.0
"""The two sides together: Placement's provider and the instances' grants, one pass of each.

Used by the service, again and again, and by `sluice openstack sync|check`, once. Blocking.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.nova_driver import flavors, inventory
from sluice.nova_driver.cloud import Cloud
from sluice.nova_driver.configuration import OpenStackConfig
from sluice.nova_driver.differences import Difference, Kind
from sluice.nova_driver.grant_life import Instance
from sluice.nova_driver.grants import Grants
from sluice.nova_driver.inventory import Found, Wanted
from sluice.nova_driver.placement import Placement
from sluice.pool_client.access import Access, Credentials
from sluice.pool_client.client import PoolClient

#: States in which Placement holds two sizes of an instance, or is about to hold another.
_UNSETTLED = frozenset({"BUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING", "ERROR"})


def origin_of(region: str) -> str:
    """The mark of a cloud's reservations in the controller."""
    return "openstack." + re.sub(r"[^A-Za-z0-9._-]", "-", region or "default")[:100]


@dataclass(frozen=True)
class Sides:
    """Both ends of the adapter."""

    config: OpenStackConfig
    cloud: Cloud
    controller: PoolClient
    placement: Placement
    grants: Grants
    origin: str

    def wanted(self) -> Wanted:
        """The provider as the pool is now."""
        gpus = self.controller.every("/gpus", "gpus")["gpus"]
        reservations = self.controller.every("/reservations", "reservations")["reservations"]
        memory, compute = inventory.amounts(gpus, reservations, self.origin)
        name = self.config.openstack.provider_name
        return Wanted(name, inventory.aggregate_of(name), memory, compute)

    def provider_differences(self) -> tuple[Wanted, Found, list[Difference]]:
        """What is wrong in Placement."""
        wanted = self.wanted()
        found = self.placement.look(wanted)
        return (
            wanted,
            found,
            inventory.differences(wanted, found, self.config.openstack.computes),
        )

    def mend_provider(self) -> list[Difference]:
        """Makes Placement true to the pool; returns what was not."""
        wanted, _, found = self.provider_differences()
        if found:
            self.placement.mend(found, wanted)
        return found

    def check(self) -> list[Difference]:
        """Every difference there is; changes nothing."""
        wanted, _, listed = self.provider_differences()
        listed += flavors.differences(self.cloud.flavors())
        listed += self.grants.differences()
        return listed + self._allocation_differences(wanted)

    def _allocation_differences(self, wanted: Wanted) -> list[Difference]:
        allocated = self.placement.usages(wanted)
        listed = []
        for instance in self.grants.instances():
            found = allocated.get(instance.id, {})
            if unlike := _unlike(instance, found):
                listed.append(
                    Difference(
                        Kind.ALLOCATION,
                        f"instance {instance.id}",
                        unlike,
                        found or "nothing",
                        "it was booted when its flavor's resources: said something else; resize it",
                    )
                )
        return listed


def _unlike(instance: Instance, found: dict[str, int]) -> dict[str, int]:
    """What the instance should have allocated, where it has something else."""
    if instance.specs is None or not instance.host or instance.status in _UNSETTLED:
        return {}
    return {} if found == instance.specs.resources else instance.specs.resources


def connect(config: OpenStackConfig) -> Sides:
    """Both ends, made but not spoken to; raises CloudError, PoolError."""
    cloud = Cloud(config.openstack.cloud, config.openstack.region)
    section = config.controller
    credentials = Credentials(section.ca_file, section.token_file)
    controller = PoolClient(Access.of(",".join(section.addresses), credentials))
    origin = origin_of(cloud.region)
    return Sides(
        config, cloud, controller, Placement(cloud), Grants(cloud, controller, origin), origin
    )
