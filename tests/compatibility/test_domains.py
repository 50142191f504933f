# SPDX-License-Identifier: Apache-2.0
"""Domains that a release has attached or Nova has defined are read as they were then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .domains import ask_door, contains, read_domain
from .releases import files_of_each

DOMAINS = files_of_each("domains/*.xml")
ASKED = [
    (f"{name} {kind}", asked)
    for name, path in files_of_each("domains/nova.requests.json")
    for kind, asked in json.loads(path.read_text()).items()
]


@pytest.mark.parametrize("path", [p for _, p in DOMAINS], ids=[name for name, _ in DOMAINS])
def test_a_domain_means_what_it_meant(path: Path) -> None:
    understood = json.loads(path.with_suffix(".json").read_text())
    assert list(contains(read_domain(path.read_text()), understood)) == []


@pytest.mark.parametrize("asked", [a for _, a in ASKED], ids=[name for name, _ in ASKED])
def test_a_releases_nova_driver_is_answered_as_it_was(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    found = ask_door(tmp_path, asked["asked"])
    assert list(contains(found["requests"], asked["requests"])) == []
    assert found["answer"].keys() >= asked["answer"].keys()
    # what it puts into a definition is read by the server later
    if "metadata" in asked["answer"]:
        texts = [domain_with(each["answer"]) for each in (asked, found)]
        before, now = map(read_domain, texts)
        assert list(contains(now, before)) == []


def domain_with(answer: dict[str, Any]) -> str:
    return (
        "<domain><name>instance</name><uuid>606ef660-97e7-4293-92c4-c8b7480e0c99</uuid>"
        f"<metadata>{answer['metadata']}</metadata>"
        f"<devices>{''.join(answer['devices'])}</devices></domain>"
    )


def test_what_is_gone_or_otherwise_is_seen() -> None:
    recorded = {"a": [{"b": 1}], "c": None}
    assert list(contains({"a": [{"b": 1, "new": 2}], "c": None, "new": 3}, recorded)) == []
    assert list(contains({"a": [{"b": 2}], "c": None}, recorded)) == [".a[0].b: 2 instead of 1"]
    assert list(contains({"a": [{"b": 1}]}, recorded)) == [".c is not there"]
    assert list(contains({"a": [], "c": None}, recorded)) == [".a: [] instead of [{'b': 1}]"]
