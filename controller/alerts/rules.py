# SPDX-License-Identifier: Apache-2.0
"""The rules: each looks at the pool and names what is wrong, with words for people.

Used by watch. They change nothing, and look at single nodes and GPUs only where the sums say that
there is one to be found. packaging/monitoring has Prometheus' rules, which see more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from sluice.config.controller import AlertsSection
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.tallies import FAULTY
from sluice.controller.pool.model import NodeState

#: What one rule names at a time; that there are more is said.
MOST_OF_RULE = 100

Found = tuple[str, str]
"""What it is about (empty: the pool), and what is wrong with it."""


class Severity(StrEnum):
    """How soon somebody should look."""

    PAGE = "page"
    WARNING = "warning"
    INFO = "info"


class About(StrEnum):
    """What the subjects of a rule's alerts are."""

    POOL = "pool"  # of the pool as a whole, or of something that has no page
    NODE = "node"
    GPU = "gpu"
    PROJECT = "project"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Rule:
    """`held` is for how many seconds it has to be so before it fires; `says` is when, in words."""

    name: str
    severity: Severity
    held: float
    find: Callable[[GrantService], Iterator[Found]]
    about: About = About.POOL
    says: str = ""
    own: bool = False  # an operator's, of [alerts] rules_file


def rules(section: AlertsSection) -> list[Rule]:
    """Those that are on."""
    every = [
        Rule("node-lost", Severity.PAGE, section.node_seconds, _lost_nodes, About.NODE,
             "a node is lost"),
        Rule("store-down", Severity.PAGE, section.store_seconds, _store_down,
             says="the store takes nothing"),
        Rule("gpu-faulty", Severity.WARNING, 0.0, _faulty_gpus, About.GPU, "a GPU is at fault"),
        Rule("queue-stuck", Severity.WARNING, 0.0, lambda s: _stuck(s, section.queue_seconds),
             About.QUEUE, f"a request has waited for {section.queue_seconds:g} seconds"),
        Rule("project-at-quota", Severity.INFO, section.quota_seconds, _at_quota, About.PROJECT,
             "a project holds all that it may"),
    ]  # fmt: skip
    return [rule for rule in every if rule.name not in section.off]


def _lost_nodes(service: GrantService) -> Iterator[Found]:
    if service.tallies.nodes[NodeState.LOST]:
        for node in service.pool.nodes.values():
            if node.state is NodeState.LOST:
                yield node.name, f"node {node.name} is lost: nothing is heard from its server"


def _store_down(service: GrantService) -> Iterator[Found]:
    if trouble := service.trouble:
        yield "", f"the store takes nothing, so nothing is granted: {trouble}"


def _faulty_gpus(service: GrantService) -> Iterator[Found]:
    if any(count and health == FAULTY for (_, health), count in service.tallies.gpus.items()):
        for gpu in service.pool.gpus.values():
            if gpu.fault:
                yield str(gpu.key), f"GPU {gpu.key} is at fault: {gpu.fault}"


def _stuck(service: GrantService, seconds: float) -> Iterator[Found]:
    since = service.pool.queue.oldest
    if since is None:
        return
    waited = time.monotonic() - since
    if waited >= seconds:
        yield "", f"a request has waited for {waited / 60:.0f} minutes; {_waiting(service)}"


def _waiting(service: GrantService) -> str:
    count = len(service.pool.queue)
    return f"{count} request{'s wait' if count != 1 else ' waits'} in all"


def _at_quota(service: GrantService) -> Iterator[Found]:
    quotas = service.pool.quotas
    for project, quota in quotas.limits.items():
        held = quotas.held(project)
        full = [
            what
            for what, has, most in (
                ("vGPUs", held.vgpus, quota.vgpus),
                ("memory", held.memory_mib, quota.memory_mib),
                ("compute", held.compute_percent, quota.compute_percent),
            )
            if most and has >= most
        ]
        if full:
            yield project, f"project {project} holds all that it may of {', '.join(full)}"


def found_by(rule: Rule, service: GrantService) -> dict[str, str]:
    """What a rule finds, by what it is about; no more than it may name."""
    found = dict(islice(rule.find(service), MOST_OF_RULE + 1))
    if len(found) > MOST_OF_RULE:
        found.popitem()
        last = next(reversed(found))
        found[last] += f"; there are more than {MOST_OF_RULE} such"
    return found
