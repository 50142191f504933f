# SPDX-License-Identifier: Apache-2.0
"""What one caller can keep of the answers under idempotency keys: its own part."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from sluice.controller.api import idempotency
from sluice.controller.api.idempotency import LEAST_SECONDS, Answer, Idempotency
from sluice.controller.auth.access import Caller
from sluice.controller.pool.model import Document

from .rest_callers import FakeStore


class Keys:
    """The middleware over an application that creates and counts, with a clock of the test's."""

    def __init__(self, documents: Sequence[Document] = (), store: FakeStore | None = None) -> None:
        self.now = 1e9
        self.created = 0
        self.store = store or FakeStore()
        self.middleware = Idempotency(
            self._create,
            self.store,
            documents,
            lambda: self.now,  # type: ignore[arg-type]
        )

    async def _create(self, scope: Any, receive: Any, send: Any) -> None:
        self.created += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b'{"it": "is made"}'})

    async def post(self, project: str, key: str) -> int:
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        caller = Caller(f"t of {project}", frozenset({"tenant"}), project=project)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/x",
            "query_string": b"",
            "headers": [(b"idempotency-key", key.encode())],
            "state": {"caller": caller},
        }
        await self.middleware(scope, receive, send)
        return status


@pytest.fixture
def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST_KEYS", 100)
    monkeypatch.setattr(idempotency, "MOST_OF_CALLER", 20)


async def test_one_projects_keys_are_no_others(few_keys: None) -> None:
    keys = Keys()
    answers = [await keys.post("p1", f"k{n}") for n in range(30)]
    assert answers == [201] * 20 + [429] * 10
    assert await keys.post("p2", "k1") == 201
    assert await keys.post("p1", "k19") == 201
    assert keys.created == 21, "a key that is known is still answered from memory"


async def test_a_caller_with_many_keys_loses_its_own_oldest_after_ten_minutes(
    few_keys: None,
) -> None:
    keys = Keys()
    await keys.post("p2", "theirs")
    for number in range(60):
        keys.now += LEAST_SECONDS / 19
        assert await keys.post("p1", f"k{number}") == 201
    made = keys.created
    assert await keys.post("p1", "k59") == 201
    assert await keys.post("p2", "theirs") == 201
    assert keys.created == made, "the youngest and other callers' are kept"
    assert len(keys.store.documents) <= 21, "what is forgotten is removed from the store"


async def test_answers_that_are_kept_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST_BYTES_OF_CALLER", 100)
    keys = Keys()
    answers = [await keys.post("p1", f"k{n}") for n in range(10)]
    assert answers == [201] * 6 + [429] * 4
    assert await keys.post("p2", "k") == 201


async def test_whose_a_key_is_outlives_the_controller_and_is_no_field_of_0_1(
    few_keys: None,
) -> None:
    keys = Keys()
    for number in range(20):
        await keys.post("p1", f"k{number}")
    documents = [Document("idempotency", *each) for each in keys.store.documents.items()]
    of_0_1 = {"request", "began", "status", "headers", "body", "runs"}
    for document in documents:
        assert set(json.loads(document.value)) <= of_0_1, "it would not start with another field"
        assert "p1" not in document.value
    assert of_0_1 <= {each.name for each in dataclasses.fields(Answer)}
    after = Keys(documents, keys.store)
    assert await after.post("p1", "k3") == 201
    assert after.created == 0
    assert await after.post("p1", "another") == 429
    assert await after.post("p2", "another") == 201


async def test_keys_of_a_release_that_did_not_say_whose_they_are_make_room(
    few_keys: None,
) -> None:
    value = {"request": "r", "began": 1e9 - LEAST_SECONDS, "status": 201, "headers": {}, "body": ""}
    documents = [Document("idempotency", f"n{n}", json.dumps(value)) for n in range(100)]
    keys = Keys(documents)
    assert await keys.post("p1", "k") == 201
