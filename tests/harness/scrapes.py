# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus would see: /metrics fetched and parsed by Prometheus' own parser."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The series of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self._series: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self._take(text_string_to_metric_families(text))

    def _take(self, families: Iterable[Metric]) -> None:
        for family in families:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.types[name] = family.type
            for sample in family.samples:
                self._series[sample.name, frozenset(sample.labels.items())] = sample.value

    def value(self, name: str, **labels: str) -> float | None:
        """A series' value; None if there is no such series."""
        return self._series.get((name, frozenset(labels.items())))

    def series(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """Every series of a name, by its labels."""
        return {labels: value for (n, labels), value in self._series.items() if n == name}

    def total(self, name: str) -> float:
        """The sum over them."""
        return sum(self.series(name).values())


def scrape(url: str, token: str = "", ca: Path | None = None) -> Scrape:
    """Fetches URL/metrics."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    verify = ssl.create_default_context(cafile=ca) if ca else True
    answer = httpx.get(f"{url}/metrics", headers=headers, verify=verify, timeout=15)
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)


def read_registry(registry: CollectorRegistry) -> Scrape:
    """The same of a registry in this process."""
    from sluice.config.metric_families import exposition

    return Scrape(exposition(registry, "")[0].decode())
