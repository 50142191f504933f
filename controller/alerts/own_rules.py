# SPDX-License-Identifier: Apache-2.0
"""An operator's own rules: a figure of the controller's /metrics beside a threshold.

Read out of [alerts] rules_file by controller.service, a section for each; looked at by watch as the
default set is. A rule says metric, comparison, threshold, for how long, severity and words, and
nothing else: who wants to reckon with figures has Prometheus' rules. Each series that has the
rule's labels is looked at alone and makes an alert of its own, whose subject is its other labels.

It promises that a wrong file is refused whole, with a line for each thing that is wrong, and that a
look costs one reading of sums that are kept anyway, however many rules there are.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, field_validator

from sluice.config.controller import AlertName, Labels
from sluice.config.ini import ConfigError, Section, read_named_sections
from sluice.config.metric_families import Family, Samples
from sluice.controller.alerts.rules import About, Found, Rule, Severity
from sluice.controller.grant_service import GrantService
from sluice.controller.metrics.collector import FAMILIES, PoolFigures

MOST_RULES = 50
NAME = r"[a-z][a-z0-9-]{0,39}"
#: Projects whose figures rules see, each by itself; of more the rest is one.
MOST_PROJECTS = 10_000
GAUGES: dict[str, Family] = {each.name: each for each in FAMILIES if each.kind == "gauge"}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ABOUT = {"project": About.PROJECT}

Series = tuple[Mapping[str, str], float]


class OwnRule(Section):
    """A section of the file; its name is the rule's."""

    metric: str = Field(
        description="a gauge of the controller's, as docs/observability.md lists them, such as "
        "sluice_pool_free_cards"
    )
    labels: Labels = Field(
        default_factory=dict,
        description="label=value, with commas: the series that it looks at (empty: all of them)",
    )
    comparison: Literal[">", ">=", "<", "<=", "==", "!="] = Field(
        description=">, >=, <, <=, == or !=: how the figure is to the threshold when it fires"
    )
    threshold: float = Field(allow_inf_nan=False, description="a number, in the metric's own unit")
    seconds: float = Field(
        0.0, ge=0, le=604_800, description="for how many seconds it has to be so, {bounds}"
    )
    severity: Severity = Field(Severity.WARNING, description="page, warning or info")
    text: str = Field(
        min_length=1, max_length=200, description="what is wrong, in 1 to 200 characters"
    )

    @field_validator("metric")
    @classmethod
    def _is_gauge(cls, value: str) -> str:
        if value in GAUGES:
            return value
        if any(each.name == value for each in FAMILIES):
            raise ValueError("is a counter, which only grows")
        raise ValueError("is no figure of the controller's about its pool")

    @field_validator("text")
    @classmethod
    def _is_a_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("has characters that cannot be printed")
        return value

    def says(self) -> str:
        """When it fires."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        return (
            f"{self.metric}{f' ({chosen})' if chosen else ''} {self.comparison} {self.threshold:g}"
        )


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A rule and its name."""

    name: str
    rule: OwnRule


def read_own_rules(path: Path | None) -> list[NamedRule]:
    """The rules of a file; raises ConfigError."""
    if path is None:
        return []
    found = read_named_sections(path, OwnRule)
    wrong = [
        f"{path}: [{name}]: {why}" for name, rule in found.items() if (why := _wrong(name, rule))
    ]
    if len(found) > MOST_RULES:
        wrong.append(f"{path}: has {len(found)} rules; give {MOST_RULES} at most")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return [NamedRule(name, rule) for name, rule in found.items()]


def _wrong(name: str, rule: OwnRule) -> str:
    if not re.fullmatch(NAME, name):
        return "is no name; give a-z, 0-9 and -, a letter first, 40 characters at most"
    if name in get_args(AlertName):
        return "is a rule of the default set; give it another name"
    has = GAUGES[rule.metric].labels
    if unknown := sorted(set(rule.labels) - set(has)):
        known = ", ".join(has) or "none"
        return f"labels = {', '.join(unknown)}: {rule.metric} has no such label, it has {known}"
    return ""


class OwnRules:
    """The rules, and the figures that they look at."""

    def __init__(self, rules: Iterable[NamedRule] = ()) -> None:
        self._rules = list(rules)
        self._series: dict[str, list[Series]] = {}
        self._figures: PoolFigures | None = None
        self.rules = [self._rule(each) for each in self._rules]

    def read(self, service: GrantService) -> None:
        """Takes in what the figures are now, for rules to look at."""
        if not self._rules:
            return
        if self._figures is None:
            self._figures = PoolFigures(service, MOST_PROJECTS)
        samples = Samples(FAMILIES)
        self._figures.fill(samples)
        self._series = {
            metric.name: [(each.labels, float(each.value)) for each in metric.samples]
            for metric in samples.found()
            if metric.type == "gauge"
        }

    def series_of(self, name: str) -> int:
        """How many series a rule looks at now."""
        return next(len(self._looked_at(each.rule)) for each in self._rules if each.name == name)

    def _looked_at(self, rule: OwnRule) -> list[Series]:
        wanted = rule.labels.items()
        return [each for each in self._series.get(rule.metric, ()) if wanted <= each[0].items()]

    def _rule(self, named: NamedRule) -> Rule:
        rule, free = named.rule, set(GAUGES[named.rule.metric].labels) - set(named.rule.labels)
        about = _ABOUT.get(next(iter(free)), About.POOL) if len(free) == 1 else About.POOL
        holds = COMPARISONS[rule.comparison]

        def find(_: GrantService) -> Iterator[Found]:
            for labels, value in self._looked_at(rule):
                if not math.isnan(value) and holds(value, rule.threshold):
                    rest = {name: text for name, text in labels.items() if name in free}
                    yield _subject(rest), _words(rule, rest, value)

        return Rule(named.name, rule.severity, rule.seconds, find, about, rule.says(), own=True)


def _subject(labels: Mapping[str, str]) -> str:
    """By which alerts of one rule are told apart: of one label its value, which has a page."""
    if len(labels) == 1:
        return next(iter(labels.values()))
    return ", ".join(f"{name}={text}" for name, text in sorted(labels.items()))


def _words(rule: OwnRule, labels: Mapping[str, str], value: float) -> str:
    whose = "".join(f", {name} {text}" for name, text in sorted(labels.items()))
    return f"{rule.text}{whose}: {value:g}, which is {rule.comparison} {rule.threshold:g}"
