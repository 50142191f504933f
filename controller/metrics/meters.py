# SPDX-License-Identifier: Apache-2.0
"""What the controller measures as it happens: latencies, outcomes, the store.

Made once per process by controller.service and handed to the grant service, which observes; a
controller that leads again goes on counting. The pool's own figures are collector.py's. No label
ever holds a name that a caller chose.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from sluice.config.metric_families import LATENCY_BUCKETS
from sluice.config.version import own_version
from sluice.controller.pool.decisions import Granted, GrantRequest, Refused

WAIT_BUCKETS = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
MOST_PRIORITY = 10
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}


def priority_label(priority: int) -> str:
    """A priority as a label: clients choose any number, so those far out share one."""
    if priority > MOST_PRIORITY:
        return "higher"
    return "lower" if priority < -MOST_PRIORITY else str(priority)


def build_info(registry: CollectorRegistry, component: str) -> None:
    """Says which release runs."""
    Gauge(
        "sluice_build_info",
        "Always 1; which release of Sluice runs here.",
        ["component", "version"],
        registry=registry,
    ).labels(component, own_version()).set(1)


class Standing:
    """What every controller may say to anybody, as GET /v1/controller does: whether it leads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build_info(self.registry, "controller")
        self.leads = Gauge(
            "sluice_controller_leader",
            "1 if this controller leads the pool, 0 if another does or none.",
            registry=self.registry,
        )


class ControllerMeters:
    """Counters and histograms in a registry of their own."""

    def __init__(self) -> None:
        self.standing = Standing()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.grant_latency = Histogram(
            "sluice_grant_latency_seconds",
            "From a request's arrival to its stored grant, of requests that did not have to wait "
            "in the queue.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.queue_wait = Histogram(
            "sluice_queue_wait_seconds",
            "How long requests had waited in the queue when they left it, also before this "
            "controller heard of them.",
            ["priority", "outcome"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self.requests = Counter(
            "sluice_requests_total",
            "Requests for vGPUs by how they ended.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("granted", "refused", "withdrawn"):
            self.requests.labels(outcome)
        self.commit = Histogram(
            "sluice_store_commit_seconds",
            "From a decision of the pool to its being stored, its wait for its turn included.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.commit_failures = Counter(
            "sluice_store_commit_failures_total",
            "Commits that the store did not take.",
            registry=registry,
        )
        self.rest_requests = Counter(
            "sluice_rest_requests_total",
            "Answers of the REST API by method and status.",
            ["method", "code"],
            registry=registry,
        )

    def request_left(
        self,
        request: GrantRequest,
        answer: Granted | Refused | None,
        seconds: float,
        *,
        waited: bool,
    ) -> None:
        """A request is answered, or withdrawn (None), so long after this controller heard of it."""
        outcome = "withdrawn"
        if answer:
            outcome = "granted" if isinstance(answer, Granted) else "refused"
        self.requests.labels(outcome).inc()
        if waited:
            priority = priority_label(request.priority)
            self.queue_wait.labels(priority, outcome).observe(request.waited_seconds + seconds)
        elif outcome == "granted":
            self.grant_latency.observe(seconds)

    def committed(self, seconds: float, *, failed: bool) -> None:
        """The store has taken a commit, or has not."""
        if failed:
            self.commit_failures.inc()
        else:
            self.commit.observe(seconds)

    def answered(self, method: str, code: int) -> None:
        """A REST request has its answer."""
        self.rest_requests.labels(method if method in METHODS else "other", str(code)).inc()
