# SPDX-License-Identifier: Apache-2.0
"""Keeps instances' reservations true to Nova: asks both sides, takes the steps of grant_life.py.

Used by synchronising.py, one call at a time; blocking. Owns the memory of what is held, which a
full pass renews, and of what could not be done. Every pass may be repeated, and interrupted
anywhere: what is missing is done by the next. A pass over changes asks Nova once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sluice.nova_driver.cloud import Cloud
from sluice.nova_driver.differences import Difference, Kind
from sluice.nova_driver.grant_life import (
    Action,
    Held,
    Instance,
    Release,
    Reserve,
    Resize,
    Size,
    instance_of,
    steps,
)
from sluice.pool_client.client import PoolClient
from sluice.pool_client.errors import Refused

log = logging.getLogger(__name__)

#: Room is given back before anybody asks for it.
_ORDER = (Release, Resize, Reserve)
#: Steps that the controller takes in one call.
MOST_ITEMS = 250
NOT_FOUND = 404
LONGEST_LINE = 250


class Grants:
    """The grants of one cloud's instances; `origin` marks them as ours in the controller."""

    def __init__(self, cloud: Cloud, controller: PoolClient, origin: str) -> None:
        self._cloud = cloud
        self._controller = controller
        self._origin = origin
        self._held: dict[str, dict[str, Held]] = defaultdict(dict)
        self._changed_since = ""
        self._is_sure = True  # of what is held: no call was left without an answer
        #: What is wrong, by instance; tried again at every pass.
        self.problems: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()  # flavors and problems that the event log has

    def reconcile(self) -> int:
        """Looks at every instance and every reservation; returns how many steps it took."""
        self._renew()
        instances: dict[str, Instance] = {}
        latest = ""
        listed: set[str] = set()
        for server in self._cloud.servers():
            instance = instance_of(server)
            listed.add(instance.id)
            latest = max(latest, str(server.get("updated") or ""))
            if instance.specs or instance.problem or instance.id in self._held:
                instances[instance.id] = instance
        actions = [a for each in instances.values() for a in self._steps(each.id, each)]
        for owner in [o for o, held in self._held.items() if held and o not in instances]:
            # a list that lacks an instance is no proof: a cell may have been left out
            found = self._cloud.server(owner)
            actions += self._steps(owner, instance_of(found) if found else None)
        for gone in self.problems.keys() - instances.keys():
            del self.problems[gone]
        # Nova shows each instance the flavor as it was at its boot: good and bad ones of one name
        self._told &= {(each.flavor, each.problem) for each in instances.values()}
        done = self._take(actions)
        self._changed_since = latest  # not before: what was not taken is looked at again
        self._end_access(lambda vm: vm not in listed and self._cloud.server(vm) is None)
        return done

    def reconcile_changes(self) -> int:
        """Looks at what has changed since the last pass, and at what has a problem."""
        self._be_sure()
        actions: list[Action] = []
        seen: set[str] = set()
        latest = self._changed_since
        for server in self._cloud.servers(self._changed_since):
            instance = instance_of(server)
            latest = max(latest, str(server.get("updated") or ""))
            seen.add(instance.id)
            actions += self._steps(instance.id, instance)
        done = self._take(actions)
        self._changed_since = latest  # not before: what was not taken is looked at again
        for owner in [owner for owner in self.problems if owner not in seen]:
            done += self.look(owner)
        return done

    def look(self, server_id: str) -> int:
        """Looks at one instance."""
        self._be_sure()
        server = self._cloud.server(server_id)
        return self._take(self._steps(server_id, instance_of(server) if server else None))

    def reservation_changed(self, reservation_id: str) -> str:
        """Somebody else changed one; returns the instance to look at, if it is ours."""
        try:
            found = self._controller.get(f"/reservations/{reservation_id}")
        except Refused as refused:
            if not refused.is_not_found:
                raise
            return ""
        if found["origin"] != self._origin:
            return ""
        self._remember(found)
        return str(found["owner"])

    def differences(self) -> list[Difference]:
        """What `reconcile` would do, and what it cannot."""
        self._renew()
        instances = [instance_of(server) for server in self._cloud.servers()]
        listed = [d for each in instances for d in self._differences(each.id, each)]
        known = {each.id for each in instances}
        for owner in sorted(o for o, held in self._held.items() if held and o not in known):
            server = self._cloud.server(owner)
            listed += self._differences(owner, instance_of(server) if server else None)
        return listed

    def instances(self) -> list[Instance]:
        """Every instance that has to do with the pool."""
        found = (instance_of(server) for server in self._cloud.servers())
        return [each for each in found if each.specs or each.problem]

    # within

    def _be_sure(self) -> None:
        """What was perhaps done is looked for, before it is asked for once more."""
        if not self._is_sure:
            self._renew()

    def _renew(self) -> None:
        found = self._controller.every("/reservations", "reservations", origin=self._origin)
        self._held.clear()
        for reservation in found["reservations"]:
            self._remember(reservation)
        self._is_sure = True

    def _remember(self, reservation: Mapping[str, Any]) -> Held:
        held = held_of(reservation)
        if reservation["state"] == "ended":
            self._held[held.owner].pop(held.id, None)
        else:
            self._held[held.owner][held.id] = held
        return held

    def _steps(self, owner: str, instance: Instance | None) -> list[Action]:
        actions = steps(instance, list(self._held.get(owner, {}).values()))
        if instance is not None and instance.problem:
            self._note(owner, instance.problem)
            self._tell(instance.flavor, instance.problem)
        elif not actions:
            self.problems.pop(owner, None)
        return actions

    def _take(self, actions: Iterable[Action]) -> int:
        """Takes steps, room given back first; returns how many were taken."""
        ordered = sorted(actions, key=lambda action: _ORDER.index(type(action)))
        done: list[Action] = []
        for begin in range(0, len(ordered), MOST_ITEMS):
            done += self._take_part(ordered[begin : begin + MOST_ITEMS])
        if gone := {_owner(a) for a in done if isinstance(a, Release) and a.gone}:
            self._end_access(lambda vm: vm in gone)
        return len(done)

    def _take_part(self, actions: Sequence[Action]) -> list[Action]:
        """Takes steps in one call; returns those that were taken."""
        items = [self._item(action) for action in actions]
        self._is_sure = False
        try:
            outcomes = self._controller.post("/reservations:batch", {"items": items})["outcomes"]
        except Refused as why:
            for action in actions:
                self._note(_owner(action), f"{_verb(action)} refused: {why}")
            return []
        self._is_sure = True
        done: list[Action] = []
        refused: set[str] = set()
        for action, outcome in zip(actions, outcomes, strict=True):
            if self._carried_out(action, outcome):
                done.append(action)
            else:
                refused.add(_owner(action))
        for owner in {_owner(action) for action in done} - refused:
            self.problems.pop(owner, None)
        return done

    def _carried_out(self, action: Action, outcome: Mapping[str, Any]) -> bool:
        """Takes in what became of one; whether it was done."""
        owner, problem = _owner(action), outcome["problem"]
        if problem and isinstance(action, Release) and outcome["status"] == NOT_FOUND:
            self._held[owner].pop(action.held.id, None)
            return True
        if problem:
            self._note(owner, f"{_verb(action)} refused: {problem['detail']}")
            return False
        answer = outcome["reservation"]
        if isinstance(action, Reserve):
            log.info("instance %s: %s, %s", owner, action.size, answer["state"])
        elif isinstance(action, Resize):
            log.info("instance %s: now %s, was %s", owner, action.size, action.held.size)
        else:
            log.info("instance %s: given back, %s", owner, action.reason)
        self._remember(answer)
        return True

    def _end_access(self, is_gone: Callable[[str], bool]) -> None:
        """Withdraws what vendordata gave instances that are no more; their tokens go with it."""
        found = self._controller.every("/enrolments", "enrolments", state="live")["enrolments"]
        for each in found:
            if each["name"] != enrolment_name(self._origin, each["vm"]) or not is_gone(each["vm"]):
                continue
            try:
                self._controller.delete(f"/enrolments/{each['id']}")
            except Refused as refused:
                if not refused.is_not_found:
                    raise
            log.info("instance %s: its access is withdrawn", each["vm"])

    def _item(self, action: Action) -> dict[str, Any]:
        """A step as an item of the controller's REST API."""
        if isinstance(action, Release):
            return {"do": "end", "id": action.held.id}
        sizes = {
            "count": action.size.count,
            "memory_mib": action.size.memory_mib,
            "compute_percent": action.size.compute,
        }
        if isinstance(action, Resize):
            return {"do": "resize", "id": action.held.id, **sizes}
        return {
            "do": "create",
            "owner_kind": "vm",
            "owner": action.owner,
            "project": action.project or None,
            **sizes,
            "priority": action.priority,
            "wait": True,
            "origin": self._origin,
        }

    def _note(self, owner: str, problem: str) -> None:
        if self.problems.get(owner) != problem:
            log.warning("instance %s: %s", owner, problem)
        self.problems[owner] = problem

    def _tell(self, flavor: str, problem: str) -> None:
        """Once for a flavor, however many instances have it: operators read the event log."""
        if (flavor, problem) in self._told:
            return
        body = {
            "kind": "adapter.openstack.flavor_refused",
            "subject": _line(flavor),
            "text": _line(f"{problem}; its instances get no vGPU, and keep what they hold"),
        }
        try:
            self._controller.post("/events", body)
        except Refused as refused:
            log.warning("the event log does not take it: %s", refused)
        self._told.add((flavor, problem))

    def _differences(self, owner: str, instance: Instance | None) -> list[Difference]:
        subject = f"instance {owner}"
        held = list(self._held.get(owner, {}).values())
        if instance and instance.problem:
            why = "its flavor cannot be used; nothing that it has is taken away"
            return [Difference(Kind.FLAVOR, subject, "valid extra specs", instance.problem, why)]
        listed = []
        for action in steps(instance, held):
            state = f"{instance.status} on {instance.host or 'no host'}" if instance else "gone"
            if isinstance(action, Reserve):
                why = f"it is {state} and holds nothing of the pool"
                listed.append(Difference(Kind.GRANT, subject, str(action.size), "nothing", why))
            elif isinstance(action, Resize):
                found, why = str(action.held.size), f"it is {state}"
                listed.append(Difference(Kind.GRANT, subject, str(action.size), found, why))
            else:
                found = f"reservation {action.held.id}"
                listed.append(Difference(Kind.GRANT, subject, "nothing", found, action.reason))
        listed += [
            Difference(
                Kind.GRANT, subject, "held", "waiting", f"reservation {each.id} waits for room"
            )
            for each in held
            if each.waiting
        ]
        why = "a program has vGPUs of one node only; resize the instance, or make room on one node"
        listed += [
            Difference(Kind.GRANT, subject, "on one node", ", ".join(each.nodes), why)
            for each in held
            if len(each.nodes) > 1
        ]
        return listed


def held_of(reservation: Mapping[str, Any]) -> Held:
    """Reads the controller's REST API."""
    return Held(
        id=reservation["id"],
        owner=reservation["owner"],
        project=reservation["project"],
        size=Size(reservation["count"], reservation["memory_mib"], reservation["compute_percent"]),
        priority=reservation["priority"],
        waiting=reservation["state"] == "waiting",
        generation=reservation["generation"],
        nodes=tuple(sorted({slot["gpu"].partition(":")[0] for slot in reservation["slots"]})),
    )


def enrolment_name(origin: str, instance: str) -> str:
    """The name that the controller gives an instance's enrolment (api/vendordata_routes.py)."""
    return f"{origin} instance {instance}"


def _owner(action: Action) -> str:
    return action.owner if isinstance(action, Reserve) else action.held.owner


def _line(text: str) -> str:
    """A stranger's text, as the event log takes it."""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_LINE]


def _verb(action: Action) -> str:
    if isinstance(action, Reserve):
        return f"a grant of {action.size} was"
    if isinstance(action, Resize):
        return f"a change from {action.held.size} to {action.size} was"
    return "giving it back was"
