# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics as both services declare them: a table of families, filled at each scrape.

Used by controller.metrics and server.metrics. A family that is declared and has nothing to say
yields no series: what is not known is absent, never zero. What is not declared cannot be exported,
so that the tables are the whole truth, which docs, dashboard and alert rules are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# a series of times of birth beside each counter, which no rule or dashboard here asks for
disable_created_metrics()  # type: ignore[no-untyped-call]

# steps from what a commit takes on a fast disk to what somebody notices
LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; a counter's name ends with _total, as it is exposed."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


class Samples:
    """What one scrape found, family by family."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._metrics = {family.name: _metric(family) for family in families}
        self._labels = {family.name: family.labels for family in families}

    def add(self, name: str, value: float, *labels: str) -> None:
        """A series' value; the labels are in the family's order."""
        if len(labels) != len(self._labels[name]):
            raise ValueError(f"{name} has the labels {self._labels[name]}, not {labels}")
        self._metrics[name].add_metric(labels, value)

    def found(self) -> Iterable[Metric]:
        """The families that have something to say."""
        return [metric for metric in self._metrics.values() if metric.samples]


class FamilyCollector(Collector):
    """Fills a table of families each time that it is asked."""

    def __init__(self, families: Sequence[Family], fill: Callable[[Samples], None]) -> None:
        self._families = families
        self._fill = fill

    def describe(self) -> Iterable[Metric]:
        """Every family, without series."""
        return [_metric(family) for family in self._families]

    def collect(self) -> Iterable[Metric]:
        """Those that have series now."""
        samples = Samples(self._families)
        self._fill(samples)
        return samples.found()


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The body and the content type for a scraper that accepts these."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def declared_names(registry: CollectorRegistry) -> dict[str, str]:
    """The type of every metric that the registry may expose, by the name of its series.

    A histogram's series have _bucket, _sum or _count added.
    """
    names: dict[str, str] = {}
    for collector in list(registry._collector_to_names):
        if isinstance(collector, CollectorRegistry):
            names |= declared_names(collector)
            continue
        describe = getattr(collector, "describe", None) or collector.collect
        for metric in describe():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            names[name] = metric.type
    return names


def _metric(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name, family.help, labels=family.labels)
