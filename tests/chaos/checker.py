# SPDX-License-Identifier: Apache-2.0
"""Holds what the controllers said against what the servers did; pure, no I/O.

Called by test_chaos.py during and after a run, and by test_checker.py, which plants each violation
and sees it found. The servers' account (account.py) is the truth: what a controller says of a GPU
is only as good as what ran there. Times are monotonic seconds of one machine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .account import Line

#: For which reasons a controller may end work that somebody was given.
MAY_END = re.compile(
    r"preempted: |ended by the operator|ended by project |the operator takes GPU "
    r"|its client did not come within "
)
#: With which words somebody may be sent away who would wait; who was preempted had its grant.
MAY_REFUSE = re.compile(f"sluice-server cannot reach the controller |{MAY_END.pattern}")
NODE_LOST = "node lost"
KEY_SLACK_SECONDS = 1.0  # a request's age in the queue is known no better
LEADER_SECONDS = 5.0  # a change of leaders takes no longer
ANSWER_SLACK_SECONDS = 2.0  # an answer may be on its way


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """A line of the controllers' event log, and when it was first read."""

    number: int
    kind: str
    subject: str
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the leader said is granted, at one moment."""

    at: float
    grants: Mapping[str, Mapping[str, Any]]  # live ones, by id, as REST shows them
    nodes_up: frozenset[str]


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never be."""

    kind: str  # overcommitted, owners, lost, stuck, orphaned, order, unanswered, early, history
    at: float
    text: str


@dataclass(slots=True)
class _Run:
    node: str
    session: str
    grant: str
    request: str
    start: float
    vgpus: list[dict[str, Any]]
    end: float = float("inf")
    staying: list[int] | None = None  # MiB by vGPU, of one that is suspended

    @property
    def takes(self) -> list[dict[str, Any]]:
        """What it has of GPUs now."""
        return suspended_of(self.vgpus, self.staying) if self.staying is not None else self.vgpus


def check_account(lines: Sequence[Line], *, ageing_seconds: float = 600.0) -> list[Violation]:
    """What the servers' account alone shows."""
    return [
        *overcommitted(lines),
        *owners(lines),
        *ended_without_reason(lines),
        *out_of_order(lines, ageing_seconds),
        *early(lines),
    ]


def runs(lines: Iterable[Line]) -> list[_Run]:
    """Every session that ever ran."""
    found: list[_Run] = []
    live: dict[str, _Run] = {}
    for line in lines:
        if line.kind == "start":
            run = _Run(
                line.node, line["session"], line["grant"], line["request"], line.at, line["vgpus"]
            )
            live[run.session] = run
            found.append(run)
        elif line.kind == "resize":
            for run in live.values():
                if run.grant == line["grant"]:
                    run.vgpus = line["vgpus"]
        elif line.kind in ("suspend", "resume"):
            for run in live.values():
                if run.grant == line["grant"]:
                    run.staying = line["staying"] if line.kind == "suspend" else None
        elif line.kind == "end" and (ended := live.pop(line["session"], None)):
            ended.end = line.at
    return found


def suspended_of(
    vgpus: Sequence[Mapping[str, Any]], staying: Sequence[int]
) -> list[dict[str, Any]]:
    """What stays of vGPUs while their worker is suspended."""
    return [
        {**vgpu, "memory_mib": min(vgpu["memory_mib"], stays), "compute_percent": 0}
        for vgpu, stays in zip(vgpus, staying, strict=True)
    ]


def running(lines: Iterable[Line]) -> dict[str, _Run]:
    """What runs at the end of the account, by grant."""
    return {run.grant: run for run in runs(lines) if run.end == float("inf")}


# from the account alone


def overcommitted(lines: Iterable[Line]) -> list[Violation]:
    """No GPU ever ran more than it has."""
    found: list[Violation] = []
    memory: dict[tuple[str, str], int] = {}
    overhead: dict[str, int] = {}
    live: dict[str, tuple[str, str, list[dict[str, Any]]]] = {}
    whole: dict[str, list[dict[str, Any]]] = {}  # of those that are suspended
    on_gpu: dict[tuple[str, str], set[str]] = defaultdict(set)

    def look(node: str, vgpus: Sequence[Mapping[str, Any]], at: float, what: str) -> None:
        for uuid in {vgpu["gpu_uuid"] for vgpu in vgpus}:
            there = [
                vgpu
                for session in on_gpu[node, uuid]
                for vgpu in live[session][2]
                if vgpu["gpu_uuid"] == uuid
            ]
            mib = sum(vgpu["memory_mib"] + overhead.get(node, 0) for vgpu in there)
            percent = sum(vgpu["compute_percent"] for vgpu in there)
            most = memory.get((node, uuid))
            if most is None:
                found.append(Violation("overcommitted", at, f"{what}: {node} has no GPU {uuid}"))
            elif mib > most or percent > 100:
                text = f"{what}: {uuid} runs {mib} of {most} MiB and {percent} % at once"
                found.append(Violation("overcommitted", at, text))

    for line in lines:
        if line.kind == "boot":
            memory.update({(line.node, uuid): mib for uuid, mib in line["gpus"].items()})
            overhead[line.node] = line["overhead_mib"]
        elif line.kind == "start":
            live[line["session"]] = (line.node, line["grant"], line["vgpus"])
            for vgpu in line["vgpus"]:
                on_gpu[line.node, vgpu["gpu_uuid"]].add(line["session"])
            look(line.node, line["vgpus"], line.at, f"start of grant {line['grant']}")
        elif line.kind == "resize":
            for session, (node, grant, _) in list(live.items()):
                if grant == line["grant"]:
                    live[session] = (node, grant, line["vgpus"])
                    look(node, line["vgpus"], line.at, f"resize of grant {grant}")
        elif line.kind in ("suspend", "resume"):
            for session, (node, grant, vgpus) in list(live.items()):
                if grant != line["grant"]:
                    continue
                if line.kind == "suspend":
                    whole[session] = vgpus
                    live[session] = (node, grant, suspended_of(vgpus, line["staying"]))
                else:
                    live[session] = (node, grant, whole.pop(session, vgpus))
                    look(node, live[session][2], line.at, f"resume of grant {grant}")
        elif line.kind == "end" and line["session"] in live:
            node, _, vgpus = live.pop(line["session"])
            for vgpu in vgpus:
                on_gpu[node, vgpu["gpu_uuid"]].discard(line["session"])
    return found


def owners(lines: Iterable[Line]) -> list[Violation]:
    """No grant on two nodes or for two requests, no request with two grants."""
    found: list[Violation] = []
    nodes: dict[str, str] = {}
    requests: dict[str, str] = {}  # by grant
    grants: dict[str, str] = {}  # by request
    started: set[str] = set()
    for line in lines:
        if line.kind != "start":
            continue
        grant, request, session = line["grant"], line["request"], line["session"]
        for kept, key, value, text in (
            (nodes, grant, line.node, "grant {} runs on {} and on {}"),
            (requests, grant, request, "grant {} is of request {} and of {}"),
            (grants, request, grant, "request {} has grant {} and {}"),
        ):
            if key and kept.setdefault(key, value) != value:
                found.append(
                    Violation("owners", line.at, text.format(key, kept[key], value or "none"))
                )
        if session in started:
            found.append(Violation("owners", line.at, f"session {session} was started twice"))
        started.add(session)
    return found


def ended_without_reason(lines: Iterable[Line]) -> list[Violation]:
    """What a controller ordered to end, it ended for a reason that it may have."""
    return [
        Violation(
            "lost", line.at, f"grant {line['grant']} of {line.node} was ended: {line['text']}"
        )
        for line in lines
        if line.kind == "end" and line["cause"] == "ordered" and not MAY_END.match(line["text"])
    ]


@dataclass(slots=True)
class _Asked:
    request: str
    at: float
    fields: Mapping[str, Any]
    queued: float | None = None  # since when it is in the queue without a break, as far as is known
    passed_by: list[tuple[float, str]] = field(default_factory=list)


def out_of_order(lines: Iterable[Line], ageing_seconds: float) -> list[Violation]:
    """Nobody was served before one of its node that certainly waited in front of it.

    A request that waits for room holds every GPU of its node, so what came later and has no higher
    priority (ageing counted) may only be served from elsewhere: from a reservation, or with room
    that was made for it. Where the line broke, the order in which requests were asked anew is
    chance, and nothing is said.
    """
    found: list[Violation] = []
    waiting: dict[str, dict[str, _Asked]] = defaultdict(dict)

    def place(asked: _Asked) -> float:
        return asked.at - float(asked.fields["priority"]) * ageing_seconds

    for line in lines:
        here = waiting[line.node]
        if line.kind == "boot":
            here.clear()
        elif line.kind == "line":  # what it heard while it was down is from before
            for asked in here.values():
                asked.queued = None
        elif line.kind == "ask":
            here[line["request"]] = _Asked(line["request"], line.at, line.fields)
        elif line.kind == "waiting" and (own := here.get(line["request"])):
            own.queued = line.at if own.queued is None else own.queued
        elif line.kind == "answer" and (own := here.pop(line["request"], None)):
            for at, text in own.passed_by:
                if line.at > at + ANSWER_SLACK_SECONDS:
                    found.append(Violation("order", at, text))
            if line["status"] != 0 or own.fields["preempt"] or own.fields["label"]:
                continue
            for other in here.values():
                if (
                    other.queued is not None
                    and other.queued < own.at
                    and not other.fields["preempt"]
                    and place(other) + KEY_SLACK_SECONDS < place(own)
                ):
                    text = (
                        f"request {own.request} of {line.node} (asked {line.at - own.at:.1f} s "
                        f"before) was served before {other.request}, which waited since "
                        f"{line.at - other.at:.1f} s: {dict(own.fields)} / {dict(other.fields)}"
                    )
                    other.passed_by.append((line.at, text))
    for here in waiting.values():
        for asked in here.values():
            found += [Violation("order", at, text) for at, text in asked.passed_by]
    return found


def early(lines: Iterable[Line]) -> list[Violation]:
    """Who was ready to wait was not sent away before its time, but for what cannot be."""
    found: list[Violation] = []
    asked: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.kind == "ask":
            asked[line.node, line["request"]] = line
        elif line.kind == "answer" and line["status"] > 0:
            question = asked.get((line.node, line["request"]))
            if question is None or MAY_REFUSE.match(line["text"]):
                continue
            wait, waited = question["wait"], line.at - question.at
            if wait < 0 or waited < wait - KEY_SLACK_SECONDS:
                text = f"request of {line.node} refused after {waited:.1f} s: {line['text']}"
                found.append(Violation("early", line.at, text))
    return found


def unanswered(lines: Iterable[Line]) -> list[Violation]:
    """Every request had its answer, unless its process was killed; to be asked at the end."""
    asked: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in lines:
        if line.kind == "boot":
            asked[line.node].clear()
        elif line.kind == "ask":
            asked[line.node][line["request"]] = line
        elif line.kind == "answer":
            asked[line.node].pop(line["request"], None)
    return [
        Violation("unanswered", line.at, f"request of {node} had no answer: {line.fields}")
        for node, lines_ in asked.items()
        for line in lines_.values()
    ]


# against what the controller says


def differences(lines: Sequence[Line], snapshot: Snapshot) -> list[Violation]:
    """What is granted is what runs; to be asked when nothing happens any more."""
    found: list[Violation] = []
    live = running(lines)
    for grant, run in live.items():
        booked = snapshot.grants.get(grant)
        if booked is None:
            text = f"grant {grant} runs on {run.node} and the controller does not say so"
            found.append(Violation("lost", snapshot.at, text))
            continue
        ours = sorted((v["gpu_uuid"], v["memory_mib"], v["compute_percent"]) for v in run.takes)
        theirs = sorted(
            (v["gpu"].rpartition(":")[2], v["memory_mib"], v["compute_percent"])
            for v in booked["vgpus"]
        )
        if booked["node"] != run.node or ours != theirs:
            text = f"grant {grant} runs as {ours} on {run.node} and is booked as {theirs}"
            found.append(Violation("lost", snapshot.at, text))
        if booked.get("suspension") or run.staying is not None:
            text = f"grant {grant} of {run.node} does not go on: {booked.get('suspension')}"
            found.append(Violation("stuck", snapshot.at, text))
    for grant in snapshot.grants.keys() - live.keys():
        node = snapshot.grants[grant]["node"]
        text = f"grant {grant} of {node} lives, says the controller, and runs nowhere"
        found.append(Violation("orphaned", snapshot.at, text))
    return found


def orphaned(
    lines: Sequence[Line], samples: Sequence[Snapshot], limit_seconds: float
) -> list[Violation]:
    """No grant was booked for longer than that on a node that was there and did not run it.

    While nobody leads there are no samples and nobody who could end it: of such a gap no more
    counts than a change of leaders may take.
    """
    found: list[Violation] = []
    by_grant: dict[str, list[_Run]] = defaultdict(list)
    for run in runs(lines):
        by_grant[run.grant].append(run)
    waited: dict[str, float] = {}
    last = samples[0].at if samples else 0.0
    for snapshot in samples:
        passed, last = min(snapshot.at - last, LEADER_SECONDS), snapshot.at
        for grant in waited.keys() - snapshot.grants.keys():
            del waited[grant]
        for grant, booked in snapshot.grants.items():
            runs_now = any(run.start <= snapshot.at < run.end for run in by_grant[grant])
            if runs_now or booked["node"] not in snapshot.nodes_up:
                waited.pop(grant, None)
                continue
            waited[grant] = waited[grant] + passed if grant in waited else 0.0
            if waited[grant] > limit_seconds:
                text = f"grant {grant} of {booked['node']} ran nowhere for {waited[grant]:.0f} s"
                found.append(Violation("orphaned", snapshot.at, text))
                waited[grant] = float("-inf")  # said once
    return found


def ended_yet_running(
    lines: Sequence[Line], events: Sequence[SeenEvent], limit_seconds: float
) -> list[Violation]:
    """What the event log says has ended did not run on for longer than that.

    But for what was lost with its node: that is adopted when the node is back.
    """
    by_grant = {run.grant: run for run in runs(lines)}
    adopted: dict[str, float] = {}
    found: list[Violation] = []
    for event in events:
        if event.kind == "grant.adopted":
            adopted[event.subject] = event.at
    for event in events:
        run = by_grant.get(event.subject)
        if event.kind != "grant.ended" or run is None or event.text == NODE_LOST:
            continue
        if run.end > event.at + limit_seconds and adopted.get(event.subject, 0) < event.at:
            text = f"grant {run.grant} of {run.node} ran on after its end: {event.text}"
            found.append(Violation("lost", event.at, text))
    return found


def rewritten(
    seen: Sequence[SeenEvent], now: Iterable[tuple[int, str, str, str]]
) -> list[Violation]:
    """What was once read of the event log stays in it as it was."""
    there = {number: (kind, subject, text) for number, kind, subject, text in now}
    return [
        Violation(
            "history", event.at, f"event {event.number} was {event}, is {there.get(event.number)}"
        )
        for event in seen
        if there.get(event.number) != (event.kind, event.subject, event.text)
    ]
