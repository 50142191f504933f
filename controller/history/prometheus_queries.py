# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus is asked for a series of history: one PromQL expression with all its values.

Used by prometheus. Figures of the pool and of projects are the controller's, those of nodes and
GPUs the servers' (docs/observability.md has both); a GPU is found by its node and UUID through
`sluice_gpu_info`. Longer steps are means over the step, of sums at several moments in it, so that a
vGPU that was there for a minute counts for a minute. Every name is quoted as PromQL quotes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from sluice.controller.history.series import POOL, Span

#: Seconds of a step, and how many make the span: as many as a chart has points.
STEPS: dict[Span, tuple[int, int]] = {
    Span.HOUR: (15, 240),
    Span.DAY: (300, 288),
    Span.MONTH: (10_800, 240),
}
#: By which an answer tells values apart.
FIELD_LABEL = "figure"
#: A rate needs two samples, and one may be missing.
SCRAPES_OF_RATE = 4
MOMENTS_OF_STEP = 20
MIB = 1 << 20


class Expressions(NamedTuple):
    """One for each of series.Values, and named as they are."""

    used: str
    compute: str
    memory_mib: str
    vgpus: str


class Queries:
    """The expressions, for one pool."""

    def __init__(self, labels: Mapping[str, str], scrape_seconds: float) -> None:
        """`labels` are those that the pool's series have and another's have not."""
        self._labels = dict(labels)
        self._scrape = math.ceil(scrape_seconds)

    def of(self, name: str, span: Span) -> str:
        """All values of a series (series.py has their names), told apart by FIELD_LABEL."""
        step, _ = STEPS[span]
        apart = max(self._scrape, step // MOMENTS_OF_STEP)
        window = max(SCRAPES_OF_RATE * self._scrape, apart)
        kind, _, rest = name.partition(":")
        if name == POOL:
            values = self._of_pool(window)
        elif kind == "project":
            values = self._of_project(rest, window)
        elif kind == "node":
            values = self._of_gpus({"node": rest}, window)
        else:
            node, _, uuid = rest.rpartition(":")
            values = self._of_gpus({"node": node, "gpu": uuid}, window)
        return " or ".join(
            f'label_replace({_mean(value, step, apart)}, "{FIELD_LABEL}", "{field}", "", "")'
            for field, value in values._asdict().items()
        )

    def _selector(self, **more: str) -> str:
        found = {**self._labels, **more}
        return "{" + ", ".join(f"{name}={quoted(text)}" for name, text in found.items()) + "}"

    def _of_pool(self, window: int) -> Expressions:
        own = self._selector()
        used = f"rate(sluice_project_busy_seconds_total{own}[{window}s])"
        return Expressions(
            # of two controllers that both led for a moment, one counts
            f"sum(max by (project) ({used})) or 0 * max(sluice_pool_vgpus{own})",
            f"max(sluice_pool_compute_granted_gpus{own})",
            f"max(sluice_pool_memory_granted_bytes{own}) / {MIB}",
            f"max(sluice_pool_vgpus{own})",
        )

    def _of_project(self, project: str, window: int) -> Expressions:
        own = self._selector(project=project)
        used = f"rate(sluice_project_busy_seconds_total{own}[{window}s])"
        return Expressions(
            f"max({used}) or 0 * max(sluice_project_vgpus{own})",
            f"max(sluice_project_compute_gpus{own})",
            f"max(sluice_project_memory_bytes{own}) / {MIB}",
            f"max(sluice_project_vgpus{own})",
        )

    def _of_gpus(self, which: Mapping[str, str], window: int) -> Expressions:
        info = f"max by (gpu, instance, job) (sluice_gpu_info{self._selector(**which)})"
        own = self._selector(**{k: v for k, v in which.items() if k == "gpu"})

        def summed(expression: str) -> str:
            theirs = f"({expression}) * on (gpu, instance, job) group_left () {info}"
            return f"sum({theirs}) or 0 * max({info})"

        return Expressions(
            summed(f"rate(sluice_vgpu_busy_seconds_total{own}[{window}s])"),
            summed(f"sluice_vgpu_compute_limit_ratio{own}"),
            summed(f"sluice_vgpu_memory_limit_bytes{own} / {MIB}"),
            summed(f"0 * sluice_vgpu_memory_limit_bytes{own} + 1"),
        )


def _mean(expression: str, step: int, apart: int) -> str:
    """Its mean over a step; of a step that is no longer than a scrape, what it is at its end."""
    if step <= apart:
        return f"({expression})"
    return f"avg_over_time(({expression})[{step}s:{apart}s])"


def quoted(text: str) -> str:
    """A string of PromQL, whatever is in it."""
    escaped = "".join(_ESCAPED.get(c) or (c if c >= " " and c != "\x7f" else f"\\x{ord(c):02x}")
                      for c in text)  # fmt: skip
    return f'"{escaped}"'


_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
