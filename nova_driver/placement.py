# SPDX-License-Identifier: Apache-2.0
"""The pool's provider in Placement, seen and mended through openstacksdk. Blocking.

Used by synchronising.py. Owns what the provider, its traits, its aggregate and its inventories are;
of compute hosts only the membership in that aggregate. Every change carries the generation that was
read; where somebody else was faster, it is read and tried again. What the change is, inventory.py
says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from sluice.nova_driver.cloud import Cloud, CloudError
from sluice.nova_driver.differences import Difference, Kind
from sluice.nova_driver.inventory import CLASSES, POOL_TRAIT, SHARES_TRAIT, TRAITS, Found, Wanted

VERSION = "1.36"  # sharing providers with generations in every body
MOST_CONFLICTS = 8
_CONFLICT = 409


class Placement:
    """One cloud's Placement."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def look(self, wanted: Wanted) -> Found:
        """Everything that `inventory.differences` compares."""
        provider = self._provider(wanted.name)
        own: dict[str, Any] = {}
        if provider:
            base = f"/resource_providers/{provider}"
            own = {
                "provider_traits": self._get(f"{base}/traits")["traits"],
                "provider_aggregates": self._get(f"{base}/aggregates")["aggregates"],
                "inventories": self._get(f"{base}/inventories")["inventories"],
            }
        members = self._members(wanted.aggregate)
        return Found(
            provider=provider,
            classes={c["name"] for c in self._get("/resource_classes")["resource_classes"]},
            traits=set(self._get("/traits?name=startswith:CUSTOM_SLUICE_")["traits"]),
            computes={
                name: [wanted.aggregate] if uuid in members else []
                for uuid, name in self._computes().items()
            },
            **own,
        )

    def mend(self, found: list[Difference], wanted: Wanted) -> None:
        """Makes Placement so that these differences are gone; raises CloudError."""
        kinds = {each.kind for each in found}
        if Kind.RESOURCE_CLASS in kinds:
            for name in CLASSES:
                self._put(f"/resource_classes/{name}", None)
        if Kind.TRAIT in kinds:
            for name in TRAITS:
                self._put(f"/traits/{name}", None)
        provider = self._provider(wanted.name)
        if not provider:
            provider = self._create(wanted.name)
        base = f"/resource_providers/{provider}"
        if Kind.PROVIDER_TRAITS in kinds:
            self._change(
                f"{base}/traits",
                lambda now: {"traits": sorted({*now["traits"], SHARES_TRAIT, POOL_TRAIT})},
            )
        if Kind.PROVIDER_AGGREGATE in kinds:
            self._join(provider, wanted.aggregate, joined=True)
        if Kind.INVENTORY in kinds:
            self._change(f"{base}/inventories", lambda _: {"inventories": wanted.inventories})
        computes = {name: uuid for uuid, name in self._computes().items()}
        for each in found:
            if each.kind is Kind.COMPUTE_AGGREGATE and each.subject in computes:
                joined = each.wanted == "may use the pool"
                self._join(computes[each.subject], wanted.aggregate, joined=joined)

    def usages(self, wanted: Wanted) -> dict[str, dict[str, int]]:
        """What instances (their UUIDs) have allocated of the pool."""
        provider = self._provider(wanted.name)
        if not provider:
            return {}
        found = self._get(f"/resource_providers/{provider}/allocations")["allocations"]
        return {consumer: dict(each["resources"]) for consumer, each in found.items()}

    def _computes(self) -> dict[str, str]:
        """Compute hosts by UUID that Placement knows: one that joins is its provider's a bit later,
        and one that Nova cannot make a provider for must not keep the others waiting."""
        known = {each["uuid"] for each in self._get("/resource_providers")["resource_providers"]}
        return {uuid: name for uuid, name in self._cloud.computes().items() if uuid in known}

    def _provider(self, name: str) -> str:
        found = self._get(f"/resource_providers?name={quote(name)}")["resource_providers"]
        return str(found[0]["uuid"]) if found else ""

    def _members(self, aggregate: str) -> set[str]:
        found = self._get(f"/resource_providers?member_of={aggregate}")["resource_providers"]
        return {each["uuid"] for each in found}

    def _create(self, name: str) -> str:
        answer = self._cloud.placement("POST", "/resource_providers", VERSION, json={"name": name})
        if answer.status_code == _CONFLICT:  # somebody else made it meanwhile
            return self._provider(name)
        return str(self._cloud.checked(answer, f"provider {name}")["uuid"])

    def _join(self, provider: str, aggregate: str, *, joined: bool) -> None:
        def change(now: Any) -> Any:
            others = {*now["aggregates"]} - {aggregate}
            return {"aggregates": sorted(others | ({aggregate} if joined else set()))}

        self._change(f"/resource_providers/{provider}/aggregates", change)

    def _change(self, path: str, change: Callable[[Any], Any]) -> None:
        for _ in range(MOST_CONFLICTS):
            now = self._get(path)
            body = {
                **change(now),
                "resource_provider_generation": now["resource_provider_generation"],
            }
            answer = self._cloud.placement("PUT", path, VERSION, json=body)
            if answer.status_code != _CONFLICT:
                self._cloud.checked(answer, path)
                return
        raise CloudError(
            f"Placement: {path} was changed by others {MOST_CONFLICTS} times in a row; it is tried "
            "again at the next pass"
        )

    def _get(self, path: str) -> Any:
        return self._cloud.checked(self._cloud.placement("GET", path, VERSION), path)

    def _put(self, path: str, body: Any) -> None:
        self._cloud.checked(self._cloud.placement("PUT", path, VERSION, json=body), path)
