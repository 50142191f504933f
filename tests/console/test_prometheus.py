# SPDX-License-Identifier: Apache-2.0
"""Charts from Prometheus: a real one that scrapes a real pool, and what is no Prometheus at all."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, native_worker, wait_for
from free_ports import free_port
from prometheus_server import PROMETHEUS, Answers, answering, prometheus

from sluice.config.controller import ConsoleSection, ControllerConfig
from sluice.config.ini import ConfigError, read_config
from sluice.controller.history import prometheus as asking
from sluice.controller.history.history_file import HistoryError, HistoryFile
from sluice.controller.history.prometheus import MOST_BYTES, PrometheusHistory, points_of
from sluice.controller.history.prometheus_queries import STEPS, Queries, quoted
from sluice.controller.history.series import Span, Values
from tests.console.place import Place, fields_of

VECTOR_ADD = Path(__file__).resolve().parents[2] / "build" / "programs" / "vector_add"
HOSTILE = 'a"} or vector(1) #\\\n<b>'


@pytest.fixture
def answers() -> Iterator[Answers]:
    with answering() as made:
        yield made


@pytest.fixture
async def asked(tmp_path: Path, answers: Answers) -> AsyncIterator[Place]:
    """A console that asks `answers`, with some history of its own."""
    made = Place(tmp_path, console=ConsoleSection(prometheus_url=answers.url))
    await made.open()
    made.node()
    file, now = HistoryFile(tmp_path / "history.db"), int(time.time() // 15) * 15
    for began in range(now - 150, now, 15):
        file.write(began, {"pool": Values(0.25, 0.5, 2048.0, 2.0)})
    file.close()
    yield made
    await made.store.close()


def matrix(figure: str, pairs: list[tuple[float, str]]) -> bytes:
    series = [{"metric": {"figure": figure}, "values": pairs}]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    return json.dumps(answer).encode()


# a real Prometheus


def cells(client: httpx.Client, of: str, span: str = "hour") -> list[list[str]]:
    """The rows of a series' table: used, compute, memory in GiB, vGPUs."""
    html = client.get("/console/history", params={"of": of, "span": span}).text
    assert "These are the controller" not in html, html
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", html)
    return [re.findall(r"<td[^>]*>([^<]*)", row) for row in rows]


@pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus (dev/prometheus.sh)")
@pytest.mark.skipif(
    native_worker() is None or not VECTOR_ADD.exists(), reason="the native part is not built"
)
def test_charts_show_what_a_real_prometheus_has_of_a_real_pool(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "pool").mkdir()
    plane = ControlPlane(
        tmp_path / "pool",
        metrics={},
        console={
            "history": "false",
            "prometheus_url": f"http://127.0.0.1:{port}",
            "prometheus_labels": "pool=berlin",
            "prometheus_scrape_seconds": 1,
        },
    )
    targets = {
        "sluice-controller": plane.url.partition("//")[2],
        "sluice-server": plane.metrics_url.partition("//")[2],
    }
    with prometheus(tmp_path / "prometheus", port, targets, {"pool": "berlin"}):
        try:
            plane.start_controller()
            plane.start_server()
            held = plane.client(gmem_mib=1024, ratio_percent=25)
            assert held.first["status"] == 0
            [gpu, *_] = plane.rest.get("/gpus").json()["gpus"]
            with httpx.Client(base_url=plane.url, headers={"origin": plane.url}) as client:
                form = fields_of(client.get("/console/sign-in").text)
                signed = client.post(
                    "/console/sign-in", data={**form, "token": plane.first_token()}
                )
                assert signed.status_code == 303, signed.text

                def work() -> bool:
                    environment = plane.program_environment(SLUICE_GMEM="512")
                    subprocess.run([VECTOR_ADD], env=environment, check=True, capture_output=True)
                    return any(float(row[0] or 0) > 0 for row in known("project:default"))

                def known(of: str) -> list[list[str]]:
                    return [row for row in cells(client, of) if "–" not in row[1:]]

                wait_for(work, seconds=120, message="Prometheus to have used GPU time")
                plane_node = f"node:{plane.node}"
                for of, held_of_gpu in (
                    ("pool", "0.25"),
                    ("project:default", "0.25"),
                    (plane_node, "0.25"),
                    (f"gpu:{gpu['id']}", "25.0"),
                ):
                    # once no other program is beside it for a whole step
                    wait_for(
                        lambda of=of, held=held_of_gpu: (
                            [held, "1.0", "1.0"] in [row[1:] for row in known(of)]
                        ),
                        message=lambda of=of: f"{of}: {cells(client, of)}",
                    )
                # expressions of longer spans are others
                for of in ("pool", "project:default", plane_node, f"gpu:{gpu['id']}"):
                    for span in ("day", "month"):
                        html = client.get("/console/history", params={"of": of, "span": span})
                        assert html.status_code == 200
                        assert "answered 4" not in html.text, html.text
        finally:
            plane.close()


# what is not one


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"", "wants another token ([console] prometheus_token_file)"),
        (302, b"", "is at another address"),
        (404, b"", "there is no /api/v1/query_range"),
        (422, b'{"status": "error", "error": "<b>"}', "Prometheus answered 422"),
        (200, b"<html>", "what answers is no Prometheus"),
        (200, b"[" * 100_000, "what answers is no Prometheus"),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": []}}', "is no"),
        (200, matrix("other", [(0, "1")]), "what answers is no Prometheus"),
        (200, matrix("used", [("x", "1")]), "what answers is no Prometheus"),  # type: ignore[list-item]
        (200, b"x" * (MOST_BYTES + 1), "more than 1,048,576 bytes"),
        (200, matrix("used", []), "Prometheus has no figures of this in this time"),
    ],
)
async def test_what_is_wrong_with_it_is_said_and_the_controllers_own_are_shown(
    asked: Place, answers: Answers, status: int, body: bytes, said: str
) -> None:
    answers.status, answers.body = status, body
    answers.headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
    page = (await (await asked.signed_in("viewer")).get("/history")).text
    assert said in page
    assert "These are the controller" in page
    assert '<figure class="chart"' in page
    assert answers.url.partition("//")[2] not in page, "members of projects read this, too"


async def test_one_that_is_slow_or_gone_holds_nobody_up(
    asked: Place, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 0.2)
    answers.seconds = 1.0
    viewer = await asked.signed_in("viewer")
    assert "does not answer within 0.2 seconds" in (await viewer.get("/history")).text
    section = ConsoleSection(prometheus_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(HistoryError, match=r"cannot be reached \(ConnectError\)"):
        await PrometheusHistory(section).read("pool", Span.HOUR)


async def test_values_come_to_their_steps_and_gaps_stay(asked: Place, answers: Answers) -> None:
    end = int(time.time() // 15) * 15
    pairs = [(end - 60, "0.5"), (end - 30, "NaN"), (end - 15, "1"), (end - 7.5, "9"), (1, "9")]
    answers.body = matrix("compute", pairs)  # type: ignore[arg-type]
    page = (await (await asked.signed_in("viewer")).get("/history")).text
    rows = re.findall(r"data-time=\"(\d+)\".*?</tr>", page)
    assert int(rows[0]) == end - 75, "a step is named by when it began"
    found = [re.findall(r"<td[^>]*>([^<]*)", row)[1] for row in re.findall(r"<tr><th.*?</tr>", page)
             if "data-time" in row]  # fmt: skip
    assert found == ["0.50", "–", "–", "1.00"]
    assert "These are the controller" not in page
    assert "as a table, of Prometheus" in page


async def test_those_who_look_at_the_same_share_one_question(
    answers: Answers, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("abc\n")
    section = ConsoleSection(
        prometheus_url=answers.url + "/prom/", prometheus_token_file=tmp_path / "token"
    )
    history = PrometheusHistory(section)
    answers.body, answers.seconds = matrix("used", [(0, "1")]), 0.2
    await asyncio.gather(*(history.read("pool", Span.HOUR) for _ in range(50)))
    assert len(answers.asked) == 1
    assert answers.asked[0].startswith("/prom/api/v1/query_range?query=label_replace")
    assert answers.tokens == ["Bearer abc"]
    several = [history.read(f"project:p{n}", Span.DAY) for n in range(asking.MOST_AT_ONCE + 3)]
    found = await asyncio.gather(*several, return_exceptions=True)
    assert sum(isinstance(each, HistoryError) for each in found) == 3
    assert await history.read("project:p-later", Span.DAY) == []


async def test_who_leaves_takes_the_answer_from_nobody(answers: Answers) -> None:
    history = PrometheusHistory(ConsoleSection(prometheus_url=answers.url))
    answers.body, answers.seconds = matrix("used", [(0, "1")]), 0.2
    first = asyncio.create_task(history.read("pool", Span.HOUR))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(history.read("pool", Span.HOUR))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == []


async def test_what_is_kept_of_answers_is_bounded(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MOST_KEPT", 5)
    history = PrometheusHistory(ConsoleSection(prometheus_url=answers.url))
    answers.body = matrix("used", [])
    for number in range(20):
        await history.read(f"project:p{number}", Span.HOUR)
    assert len(history._asked) == 5


def test_points_outside_of_the_span_and_hostile_numbers_are_dropped() -> None:
    body = matrix("used", [(100, "1e999"), (115, "2"), (-1e308, "1"), (1e308, "1"), (130, "-inf")])
    [point] = points_of(body, 100, 15, 240)
    assert (point.time, point.values.used) == (100, 2.0)
    assert math.isnan(point.values.vgpus)
    for none in (matrix("used", [(math.nan, "1")]), matrix("used", [(math.inf, "1")])):
        assert points_of(none, 100, 15, 240) == []


# expressions


@pytest.mark.parametrize("span", list(Span))
def test_names_are_quoted_and_stay_names(span: Span) -> None:
    for of in ("project", "node", "gpu:node"):
        expression = Queries({"pool": HOSTILE}, 15).of(f"{of}:{HOSTILE}", span)
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"', "S", expression)
        assert "vector(" not in text
        assert "#" not in text
        assert "\n" not in expression
    assert quoted('a\\"\n\x00') == '"a\\\\\\"\\n\\x00"'


@pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus (dev/prometheus.sh)")
def test_a_real_prometheus_reads_every_expression_whatever_is_in_names(tmp_path: Path) -> None:
    port = free_port()
    with prometheus(tmp_path / "prometheus", port, {}, {}) as url:
        for span, (step, count) in STEPS.items():
            for of in ("pool", f"project:{HOSTILE}\x00\x7f€", f"node:{HOSTILE}", "gpu:n:GPU-1"):
                query: dict[str, Any] = {
                    "query": Queries({"pool": HOSTILE}, 60).of(of, span),
                    "start": 1e9,
                    "end": 1e9 + (count - 1) * step,
                    "step": step,
                }
                answer = httpx.get(f"{url}/api/v1/query_range", params=query, timeout=30)
                assert answer.status_code == 200, answer.text
                assert answer.json()["data"]["result"] == []


# settings


@pytest.mark.parametrize(
    "wrong",
    [
        "prometheus_url = ftp://x",
        "prometheus_url = http://user:word@x",
        "prometheus_url = http://x?y",
        "prometheus_url = http://x:99999",
        "prometheus_url = http://x:y",
        "prometheus_url = http://[::1",
        "prometheus_url = //x",
        "prometheus_labels = 1x=y",
        "prometheus_labels = pool=",
        "prometheus_labels = a=1, a=2",
        "prometheus_scrape_seconds = 0",
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "controller.conf"
    path.write_text(f"[console]\n{wrong}\n")
    with pytest.raises(ConfigError, match=rf"\[console\] {wrong.split(' ')[0]}"):
        read_config(path, ControllerConfig)
