# SPDX-License-Identifier: Apache-2.0
"""Alerts: what fires and when, what is over, who is told, and what a next leader knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from webhook_receiver import Receiver, receiving

from sluice.config.controller import AlertsSection
from sluice.config.ini import ConfigError, read_config
from sluice.controller.alerts import rules as rules_module
from sluice.controller.alerts.book import QUIET_SECONDS, Alert, AlertBook
from sluice.controller.alerts.rules import Rule, Severity, found_by, rules
from sluice.controller.alerts.watch import AlertWatch
from sluice.controller.alerts.webhook import PAUSES, Webhook, sending
from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import GpuKey, NodeState, Quota
from tests.console.place import Place

LATE = Rule("late", Severity.WARNING, 30.0, lambda _: iter(()))
NOW = Rule("now", Severity.PAGE, 0.0, lambda _: iter(()))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


# the book


def test_what_is_so_for_long_enough_fires_once_and_is_over_once() -> None:
    book, found = AlertBook(), {("late", "x"): "x is wrong"}
    assert not book.update([LATE], found, 0.0)
    assert not book.update([LATE], found, 29.0)
    [fired] = book.update([LATE], found, 30.0)
    assert fired == Alert("late", "x", Severity.WARNING, "x is wrong", 0.0)
    assert not book.update([LATE], {("late", "x"): "x is worse"}, 45.0)
    assert book.active["late", "x"].text == "x is worse"
    assert not book.update([LATE], {}, 60.0)
    [over] = book.update([LATE], {}, 45.0 + QUIET_SECONDS)
    assert (over.until, over.since) == (105.0, 0.0)
    assert not book.active
    assert not book.update([LATE], {}, 500.0)


def test_what_comes_and_goes_is_one_alert_and_what_breaks_off_none() -> None:
    book, found = AlertBook(), {("late", "x"): "wrong"}
    book.update([LATE], found, 0.0)
    book.update([LATE], {}, 15.0)
    assert not book.update([LATE], found, 35.0), "it was not so for 30 seconds on end"
    [fired] = book.update([LATE], found, 65.0)
    assert fired.since == 35.0
    for now in range(80, 400, 45):
        assert not book.update([LATE], found if now % 2 else {}, float(now))
    assert book.active


def test_things_of_one_rule_are_told_apart() -> None:
    book = AlertBook()
    changed = book.update([NOW, LATE], {("now", "a"): "1", ("now", "b"): "2"}, 0.0)
    assert {alert.subject for alert in changed} == {"a", "b"}
    book.update([NOW], {("now", "a"): "1"}, 10.0)
    [over] = book.update([NOW], {("now", "a"): "1"}, QUIET_SECONDS)
    assert over.subject == "b"


def test_what_an_earlier_leader_saw_has_time_to_be_seen_again() -> None:
    book = AlertBook([Alert("now", "a", Severity.PAGE, "old", 5.0)])
    assert not book.update([NOW], {}, 1000.0)
    assert not book.update([NOW], {("now", "a"): "again"}, 1030.0), "no second alarm"
    [over] = book.update([NOW], {}, 1030.0 + QUIET_SECONDS)
    assert over.since == 5.0


# the rules


async def test_each_rule_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node("node-a", gpus=1)
    place.node("node-b", gpus=1)
    await place.grants.step(lambda: place.pool.expire())
    every = {rule.name: rule for rule in rules(AlertsSection(queue_seconds=0.05))}

    def found() -> dict[str, dict[str, str]]:
        return {name: f for name, rule in every.items() if (f := found_by(rule, place.grants))}

    assert not found()
    key = GpuKey("node-a", "node-a-gpu0")
    await place.grants.step(lambda: place.pool.membership.gpu_condition(key, "XID 79", "", ""))
    assert found()["gpu-faulty"] == {str(key): f"GPU {key} is at fault: XID 79"}
    await place.granted("vision", memory_mib=1000, compute_percent=100)
    place.pool.quotas.limits["vision"] = Quota("vision", vgpus=1, memory_mib=0, compute_percent=0)
    assert "vGPUs" in found()["project-at-quota"]["vision"]
    place.pool.requests.submit(
        GrantRequest("r", memory_mib=8000, compute_percent=100, wait_seconds=-1)
    )
    await asyncio.sleep(0.06)
    assert "1 request waits in all" in found()["queue-stuck"][""]
    node = place.pool.nodes["node-b"]
    node.state = NodeState.LOST
    place.grants.tallies.take([node])
    assert list(found()["node-lost"]) == ["node-b"]
    assert set(found()) == {"gpu-faulty", "project-at-quota", "queue-stuck", "node-lost"}
    await place.store.close()


async def test_a_rule_names_so_many_and_says_that_there_are_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules_module, "MOST_OF_RULE", 3)
    many = Rule("x", Severity.INFO, 0.0, lambda _: ((str(n), "wrong") for n in range(10**9)))
    found = found_by(many, None)  # type: ignore[arg-type]
    assert len(found) == 3
    assert "more than 3" in found["2"]


def test_rules_can_be_switched_off_and_wrong_settings_are_named(tmp_path: Path) -> None:
    from sluice.config.controller import ControllerConfig

    path = tmp_path / "controller.conf"
    path.write_text("[alerts]\noff = node-lost, queue-stuck\n")
    section = read_config(path, ControllerConfig).alerts
    assert {rule.name for rule in rules(section)} == {
        "store-down", "gpu-faulty", "project-at-quota"}  # fmt: skip
    for wrong in (
        "off = node-lots",
        "webhook = ftp://x",
        "webhook = http://a b",
        "queue_seconds = 0",
    ):
        path.write_text(f"[alerts]\n{wrong}\n")
        with pytest.raises(ConfigError, match=wrong.split(" ")[0]):
            read_config(path, ControllerConfig)


# the watch


async def test_what_fires_is_an_event_and_the_next_leader_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node("node-a", gpus=1)
    key = GpuKey("node-a", "node-a-gpu0")
    await place.grants.step(lambda: place.pool.membership.gpu_condition(key, "XID 79", "", ""))
    now = 1000.0
    first = AlertWatch(place.grants, AlertsSection(), lambda: now)
    await first.look()
    assert [alert.rule for alert in first.active] == ["gpu-faulty"]
    second = AlertWatch(place.grants, AlertsSection(), lambda: now)
    await second.remember()
    await second.look()
    assert [alert.rule for alert in second.active] == ["gpu-faulty"]
    fired = [line for line in await place.audit() if line.startswith("alert.")]
    assert fired == [f"alert.firing gpu-faulty {key} GPU {key} is at fault: XID 79"]
    await place.grants.step(lambda: place.pool.membership.gpu_condition(key, "", "", ""))
    now += QUIET_SECONDS + 1
    await second.look()
    assert not second.active
    third = AlertWatch(place.grants, AlertsSection(), lambda: now)
    await third.remember()
    assert not third.active
    fired = [line.split()[0] for line in await place.audit() if line.startswith("alert.")]
    assert sorted(fired) == ["alert.firing", "alert.resolved"]
    await place.store.close()


async def test_a_rule_that_fails_does_not_end_the_watch(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    looks = 0

    def fails(_: Any) -> Any:
        nonlocal looks
        looks += 1
        raise RuntimeError("a rule's own fault")

    async def pause(_: float) -> None:
        await asyncio.sleep(0)

    watch = AlertWatch(place.grants, AlertsSection(), pause=pause)
    watch.rules = [Rule("x", Severity.INFO, 0.0, fails)]
    task = asyncio.create_task(watch.run())
    while looks < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await place.store.close()


# the webhook


async def told(receiver: Receiver, count: int) -> None:
    until = time.monotonic() + 30
    while len(receiver.told) < count:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_the_webhook_is_told_in_alertmanagers_form(
    receiver: Receiver, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("hook-secret\n")
    webhook = Webhook(AlertsSection(webhook=receiver.url, webhook_token_file=token))
    alert = Alert("node-lost", "gpu-1", Severity.PAGE, "node gpu-1 is lost", 1_767_225_600.0)
    async with sending(webhook):
        webhook.tell([alert])
        await told(receiver, 1)
        webhook.tell([replace(alert, until=1_767_225_660.0)])
        await told(receiver, 2)
    assert receiver.tokens == ["Bearer hook-secret"] * 2
    first, second = receiver.bodies
    assert (first["version"], first["status"], second["status"]) == ("4", "firing", "resolved")
    [sent] = first["alerts"]
    assert sent["labels"] == {"alertname": "node-lost", "severity": "page", "subject": "gpu-1"}
    assert sent["annotations"] == {"summary": "node gpu-1 is lost"}
    assert sent["startsAt"] == "2026-01-01T00:00:00Z"
    assert second["alerts"][0]["endsAt"] == "2026-01-01T00:01:00Z"


async def test_what_is_not_taken_is_tried_again_and_then_given_up(receiver: Receiver) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    webhook = Webhook(AlertsSection(webhook=receiver.url), pause)
    receiver.statuses = [500, 302]  # and no redirection is followed
    async with sending(webhook):
        webhook.tell([Alert("a", "x", Severity.INFO, "t", 0.0)])
        await told(receiver, 1)
        assert pauses == list(PAUSES[:2])
        while webhook.trouble:  # until the answer has come
            await asyncio.sleep(0.01)
        receiver.statuses = [503] * (len(PAUSES) + 1)
        webhook.tell([Alert("b", "x", Severity.INFO, "t", 0.0)])
        while receiver.statuses:
            await asyncio.sleep(0.01)
        webhook.tell([Alert("c", "x", Severity.INFO, "t", 0.0)])
        await told(receiver, 2)
    assert [rule for _, rule, _ in receiver.told] == ["a", "c"]
    assert pauses[2:] == list(PAUSES)


async def test_an_address_that_nobody_answers_is_trouble_and_nothing_worse(tmp_path: Path) -> None:
    async def pause(_: float) -> None:
        await asyncio.sleep(0)

    webhook = Webhook(AlertsSection(webhook="http://127.0.0.1:1/"), pause)
    async with sending(webhook):
        for number in range(2000):
            webhook.tell([Alert(f"a{number}", "x", Severity.INFO, "t", 0.0)])
        while not webhook.trouble:
            await asyncio.sleep(0.01)
    assert "Connect" in webhook.trouble
    missing = Webhook(
        AlertsSection(webhook="http://127.0.0.1:1/", webhook_token_file=tmp_path / "none")
    )
    assert "token or CA" in await missing._send([])


# whole


def test_a_node_that_goes_is_told_by_a_real_controller(tmp_path: Path) -> None:
    with receiving() as receiver:
        plane = ControlPlane(
            tmp_path,
            fake=True,
            pool={"node_timeout_seconds": 2},
            alerts={"webhook": receiver.url, "node_seconds": 0},
        )
        try:
            plane.start_controller()
            plane.start_server()
            assert plane.rest.get("/alerts").json()["alerts"] == []
            plane.stop("server")
            wait_for(lambda: ("firing", "node-lost", plane.node) in receiver.told, seconds=120)
            [alert] = plane.rest.get("/alerts").json()["alerts"]
            assert (alert["rule"], alert["severity"]) == ("node-lost", "page")

            def written() -> list[str]:  # after it was told: a store that is down is told too
                events = plane.rest.get("/events", params={"limit": 100, "kind": "alert."}).json()
                return [each["kind"] for each in events["events"]]

            wait_for(lambda: written() == ["alert.firing"])
        finally:
            plane.close()
