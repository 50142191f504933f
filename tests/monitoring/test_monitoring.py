# SPDX-License-Identifier: Apache-2.0
"""Dashboard, alert rules and docs name metrics and labels that exist, and promtool accepts them.

Skipped where there is no promtool (dev/prometheus.sh takes it out of Debian's package).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import native_worker, running
from pool_bench import PoolBench
from prometheus_client import CollectorRegistry
from scrapes import scrape

from sluice.config.metric_families import FamilyCollector, declared_names
from sluice.controller.api.metrics_routes import registry_of
from sluice.controller.grant_service import GrantService
from sluice.server import metrics
from sluice.server.gpus import figures as gpu_figures
from sluice.server.rdma import figures as rdma_figures
from sluice.server.sessions import figures as session_figures
from sluice.server.sessions import memory_figures, swap_figures
from sluice.server.sessions.figures import SessionFigures

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "monitoring"
RULES = yaml.safe_load((FOLDER / "sluice-rules.yaml").read_text())
DASHBOARD = json.loads((FOLDER / "sluice-dashboard.json").read_text())
DOCS = (ROOT / "docs" / "observability.md").read_text()
PROMTOOL = shutil.which("promtool") or shutil.which(str(ROOT / "build" / "tools" / "promtool"))
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}
SELECTOR = re.compile(r"\b(sluice_\w+)(?:\{([^}]*)\})?")
promtool = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [
        *(rule["expr"] for rule in alerts()),
        *(target["expr"] for panel in panels() for target in panel["targets"]),
    ]


def registries() -> Iterator[CollectorRegistry]:
    yield registry_of(GrantService(PoolBench().pool, object()))  # type: ignore[arg-type]
    of_server = CollectorRegistry()
    for families in (
        metrics.FAMILIES,
        gpu_figures.FAMILIES,
        rdma_figures.FAMILIES,
        memory_figures.FAMILIES,
        swap_figures.FAMILIES,
    ):
        of_server.register(FamilyCollector(families, lambda _: None))
    of_server.register(SessionFigures().registry)
    yield of_server


def declared() -> dict[str, str]:
    """Every metric of ours by its name, with its type."""
    names = {}
    for registry in registries():
        names |= {n: t for n, t in declared_names(registry).items() if n.startswith("sluice_")}
    return names


def labels_of(name: str) -> set[str]:
    """The labels that a metric is documented to have: its row in the docs."""
    row = re.search(rf"^\| `{name}`(?:\{{([\w, ]+)\}})? \|", DOCS, re.MULTILINE)
    assert row, f"{name} is not in docs/observability.md"
    return {label.strip() for label in (row[1] or "").split(",")} - {""}


def base_of(series: str) -> str:
    """The metric that a series is of."""
    name = re.sub(r"_(bucket|sum|count)$", "", series)
    return name if declared().get(name) == "histogram" else series


@pytest.mark.parametrize("expression", expressions())
def test_what_is_asked_for_exists(expression: str) -> None:
    names = declared()
    asked = SELECTOR.findall(expression)
    assert asked
    known = set(LABELS_OF_PROMETHEUS)
    for series, selector in asked:
        assert base_of(series) in names, series
        assert series not in names or names[series] != "histogram", f"{series} has no value"
        labels = labels_of(base_of(series))
        known |= labels
        wanted = set(re.findall(r"(\w+)\s*[=!]", selector or ""))
        assert wanted <= labels | LABELS_OF_PROMETHEUS, f"{series} has no {wanted - labels}"
    for grouped in re.findall(r"\b(?:by|on)\s*\(([\w, ]+)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= known, expression


def test_the_docs_have_a_row_for_each_metric_and_for_no_other() -> None:
    documented = set(re.findall(r"^\| `(sluice_\w+)`", DOCS, re.MULTILINE))
    assert documented == set(declared())


def test_labels_in_the_docs_are_those_of_the_code() -> None:
    families = (
        *metrics.FAMILIES,
        *gpu_figures.FAMILIES,
        *rdma_figures.FAMILIES,
        *session_figures.FAMILIES,
        *memory_figures.FAMILIES,
        *swap_figures.FAMILIES,
    )
    for family in families:
        assert labels_of(family.name) == set(family.labels), family.name


def test_alerts_say_how_urgent_they_are_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["alert"] in DOCS, f"{rule['alert']} is not in docs/observability.md"


def test_panels_are_told_apart_and_ask_the_chosen_prometheus() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(expressions()))) - {"__rate_interval"}
    assert used <= variables


def run_promtool(*arguments: str | Path, cwd: Path = ROOT) -> None:
    assert PROMTOOL
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    run_promtool("check", "rules", FOLDER / "sluice-rules.yaml")
    run_promtool("test", "rules", "rules_test.yaml", cwd=Path(__file__).parent)


@promtool
def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "5m", expression)}
        for number, expression in enumerate(expressions())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    run_promtool("check", "rules", path)


@promtool
@pytest.mark.skipif(native_worker() is None, reason="the native part is not built")
def test_promtool_finds_nothing_to_say_about_a_real_scrape_of_either_service(
    tmp_path: Path,
) -> None:
    assert PROMTOOL
    with running(tmp_path, metrics={}) as plane:
        client = plane.client(gmem_mib=64)
        assert client.first["status"] == 0
        for url in (plane.url, plane.metrics_url):
            found = scrape(url)
            assert {name for name in found.types if name.startswith("sluice_")} <= set(declared())
            done = subprocess.run(
                [PROMTOOL, "check", "metrics"],
                input=found.text, capture_output=True, text=True, check=False,
            )  # fmt: skip
            complaints = [
                line
                for line in (done.stdout + done.stderr).splitlines()
                if line.startswith("sluice_")
            ]
            assert complaints == []
