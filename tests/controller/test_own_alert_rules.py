# SPDX-License-Identifier: Apache-2.0
"""Alert rules of one's own: what they look at, what is wrong with a file, history and webhook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, wait_for
from webhook_receiver import Receiver, receiving

from sluice.config.controller import AlertsSection
from sluice.config.ini import ConfigError
from sluice.controller.alerts.own_rules import GAUGES, MOST_RULES, OwnRules, read_own_rules
from sluice.controller.alerts.rules import found_by
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.metrics import collector
from sluice.controller.pool.model import Quota
from sluice.resources.ends import End, EndCause
from tests.console.place import Place

RULES = """
[projects-hold-much]
    metric = sluice_project_vgpus
    comparison = >=
    threshold = 2
    severity = page
    text = a project holds two vGPUs or more

[speech-is-idle]
    metric = sluice_project_vgpus
    labels = project=speech
    comparison = ==
    threshold = 0
    seconds = 300
    text = speech holds nothing

[few-nodes]
    metric = sluice_pool_nodes
    labels = state=up
    comparison = <
    threshold = 2
    severity = info
    text = "fewer than two nodes are up; see the rack"
"""
ONE = """
[r]
    metric = sluice_pool_grants
    comparison = >
    threshold = 1
    text = x
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def quota() -> Quota:
    return Quota("speech", vgpus=4, memory_mib=0, compute_percent=0)


def written(folder: Path, text: str) -> Path:
    path = folder / "alerts.conf"
    path.write_text(text)
    return path


async def test_each_series_that_has_the_labels_is_looked_at_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node()
    own = OwnRules(read_own_rules(written(tmp_path, RULES)))
    watch = AlertWatch(place.grants, AlertsSection(), own=own)
    rules = {rule.name: rule for rule in watch.rules}

    def found(name: str) -> dict[str, str]:
        own.read(place.grants)
        return found_by(rules[name], place.grants)

    assert not found("projects-hold-much")
    for project in ("vision", "vision", "speech"):
        await place.granted(project)
    assert found("projects-hold-much") == {
        "vision": "a project holds two vGPUs or more, project vision: 2, which is >= 2"
    }
    assert found("few-nodes") == {"": "fewer than two nodes are up; see the rack: 1, which is < 2"}
    assert not found("speech-is-idle")
    assert watch.series_of(rules["projects-hold-much"]) == 2
    assert watch.series_of(rules["node-lost"]) is None
    place.node("node-b")
    await place.grants.step(place.pool.expire)
    assert not found("few-nodes")
    await place.store.close()


async def test_a_project_beyond_those_that_prometheus_sees_is_looked_at_too(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node(gpus=1)
    for number in range(collector.MOST_PROJECTS + 20):
        place.pool.quotas.limits[f"a{number}"] = quota()
    place.pool.quotas.limits["speech"] = quota()
    own = OwnRules(read_own_rules(written(tmp_path, RULES)))
    own.read(place.grants)
    [idle] = [rule for rule in own.rules if rule.name == "speech-is-idle"]
    assert list(found_by(idle, place.grants)) == [""]
    await place.store.close()


async def test_they_fire_and_are_over_as_the_default_set_does(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node()
    now = [1000.0]
    own = OwnRules(read_own_rules(written(tmp_path, RULES)))
    watch = AlertWatch(place.grants, AlertsSection(), own=own, wall=lambda: now[0])
    await watch.look()
    assert [(a.rule, a.severity) for a in watch.active] == [("few-nodes", "info")]
    granted = await place.granted("speech")
    await watch.look()
    await place.grants.step(
        lambda: place.pool.lifecycle.release(granted.grant.id, End(EndCause.UNKNOWN, "done"))
    )
    place.pool.quotas.limits["speech"] = quota()  # else nobody remembers that there is one
    for seconds in (0, 200, 299):
        now[0] = 1100.0 + seconds
        await watch.look()
        assert "speech-is-idle" not in [a.rule for a in watch.active]
    now[0] = 1400.0
    await watch.look()
    assert [a.rule for a in watch.active] == ["speech-is-idle", "few-nodes"]
    after = AlertWatch(place.grants, AlertsSection(), own=own)
    await after.remember()
    assert [a.rule for a in after.active] == ["speech-is-idle", "few-nodes"], "the next leader's"
    place.node("node-b")
    await place.grants.step(place.pool.expire)
    for seconds in (0, 61):
        now[0] = 1500.0 + seconds
        await watch.look()
    lines = [f"{e.kind} {e.subject}" for e in await place.store.events(10)]
    assert "alert.resolved few-nodes" in lines
    await place.store.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ONE.replace("pool_grants", "pool_grantz"), "metric = sluice_pool_grantz: is no figure"),
        (ONE.replace("pool_grants", "preemptions_total"), "is a counter, which only grows"),
        (ONE.replace("= >", "= =>"), "[r] comparison = =>: "),
        (ONE.replace("= 1", "= nan"), "[r] threshold = nan: "),
        (ONE.replace("= 1", "= many"), "give a number, in the metric's own unit"),
        (ONE.replace("    threshold = 1\n", ""), "[r]: the key threshold is missing; give a"),
        (ONE + "    severity = red\n", "severity = red: "),
        (ONE + "    seconds = -1\n", "seconds = -1: "),
        (ONE + "    for = 1\n", "[r] for = 1: there is no such key; "),
        (ONE + "    treshold = 1\n", "did you mean threshold?"),
        (ONE + "    labels = state=up\n", "labels = state: sluice_pool_grants has no such label"),
        (ONE + "    labels = state\n", "labels = state: "),
        (ONE.replace("= x", "= " + "x" * 201), "give what is wrong, in 1 to 200 characters"),
        (ONE.replace("= x", "= a\x07b"), "characters that cannot be printed"),
        (ONE.replace("[r]", "[node-lost]"), "is a rule of the default set; give it another name"),
        (ONE.replace("[r]", "[R r]"), "[R r]: is no name; give a-z"),
        (ONE.replace("[r]", "[]"), "[]: is no name"),
        (ONE + ONE, "the section [r] is there twice"),
        ("metric = x\n", "stands before the first section"),
        ("\n".join(ONE.replace("[r]", f"[r{n}]") for n in range(MOST_RULES + 1)), "has 51 rules"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_the_fix(
    tmp_path: Path, text: str, said: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_own_rules(path)
    assert said in str(error.value)
    assert str(error.value).startswith(str(path))


def test_everything_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    text = ONE.replace("= >", "= ?") + ONE.replace("[r]", "[s]").replace("= 1", "= one")
    with pytest.raises(ConfigError) as error:
        read_own_rules(written(tmp_path, text))
    assert str(error.value).count("\n") == 1


@pytest.mark.parametrize("metric", sorted(GAUGES))
def test_every_gauge_can_be_looked_at(tmp_path: Path, metric: str) -> None:
    [named] = read_own_rules(written(tmp_path, ONE.replace("sluice_pool_grants", metric)))
    assert OwnRules([named]).rules[0].says == f"{metric} > 1"


def test_a_controller_looks_at_them_tells_the_webhook_and_says_what_is_wrong(
    tmp_path: Path, receiver: Receiver
) -> None:
    rules = written(tmp_path, RULES)
    settings = {"rules_file": rules, "webhook": receiver.url}
    plane = ControlPlane(tmp_path, fake=True, alerts=settings)
    try:
        plane.start_controller()
        answer = plane.rest.get("/alerts").json()
        assert [each["name"] for each in answer["definitions"] if each["own"]] == [
            "projects-hold-much", "speech-is-idle", "few-nodes"]  # fmt: skip
        wait_for(lambda: ("firing", "few-nodes", "") in receiver.told)
        [alert] = [
            a for a in plane.rest.get("/alerts").json()["alerts"] if a["rule"] == "few-nodes"
        ]
        assert alert["text"] == "fewer than two nodes are up; see the rack: 0, which is < 2"
        plane.stop("controller")
        rules.write_text(ONE.replace("= 1", "= one"))
        plane.controller = plane._run("controller")
        assert plane.controller.wait(60) == 1
        assert f"[alerts] rules_file: {rules}: [r] threshold = one" in plane.log("controller")
    finally:
        plane.close()


async def test_a_look_at_many_rules_reads_the_figures_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node()
    text = "\n".join(ONE.replace("[r]", f"[r{n}]") for n in range(MOST_RULES))
    own = OwnRules(read_own_rules(written(tmp_path, text)))
    watch = AlertWatch(place.grants, AlertsSection(), own=own)
    reads = 0
    read = collector.PoolFigures.fill

    def counted(self: collector.PoolFigures, samples: object) -> None:
        nonlocal reads
        reads += 1
        read(self, samples)  # type: ignore[arg-type]

    collector.PoolFigures.fill = counted  # type: ignore[method-assign]
    try:
        await watch.look()
    finally:
        collector.PoolFigures.fill = read  # type: ignore[method-assign]
    assert reads == 1
    await place.store.close()
