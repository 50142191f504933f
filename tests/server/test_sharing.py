# SPDX-License-Identifier: Apache-2.0
"""Who gets what sessions share, and that every descriptor goes back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest
from open_files import open_descriptors

from sluice.server.sessions.sharing import MOST_PER_SESSION, Sharing
from sluice.server.workers.packets import Message

KEY = "0123456789abcdef0123456789abcdef"


class ToldWorker:
    """Keeps what a worker would be told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Message, int]] = []

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self.heard.append((message, len(descriptors)))

    def last(self) -> tuple[str, int]:
        message, count = self.heard[-1]
        return message.verb, count


@pytest.fixture
def sharing() -> Iterator[Sharing]:
    made, before = Sharing(), open_descriptors()
    yield made
    for session in ("a", "b", "c"):
        made.leave(session)
    assert len(made) == 0
    assert open_descriptors() <= before, "descriptors stay open"


def join(sharing: Sharing, session: str, *domains: str) -> ToldWorker:
    worker = ToldWorker()
    sharing.join(session, frozenset(domains), worker)
    return worker


def share(sharing: Sharing, session: str, key: str = KEY, kind: str = "memory") -> None:
    fields = {"key": key, "kind": kind, "gpu": "GPU-1", "bytes": "4096", "request": "7"}
    sharing.take(session, Message("share", fields, (os.open("/dev/null", os.O_RDONLY),)))


def fetch(sharing: Sharing, session: str, key: str = KEY, kind: str = "memory") -> None:
    sharing.take(session, Message("fetch", {"key": key, "kind": kind, "request": "8"}))


def test_only_the_same_domain_gets_it(sharing: Sharing) -> None:
    owner = join(sharing, "a", "grant 1", "user 1000")
    friend = join(sharing, "b", "grant 2", "user 1000")
    stranger = join(sharing, "c", "grant 3", "user 1001")
    share(sharing, "a")
    assert owner.last() == ("shared", 0)
    assert owner.heard[-1][0].get("request") == "7"
    fetch(sharing, "b")
    assert friend.last() == ("fetched", 1)
    assert friend.heard[-1][0].get("gpu") == "GPU-1"
    fetch(sharing, "c")
    assert stranger.last() == ("refused", 0)
    said = stranger.heard[-1][0].get("message")
    fetch(sharing, "c", key=KEY[::-1])
    assert stranger.heard[-1][0].get("message") == said, "it must not tell that there is one"


def test_a_kind_is_not_taken_for_another(sharing: Sharing) -> None:
    join(sharing, "a", "user 1")
    reader = join(sharing, "b", "user 1")
    share(sharing, "a", kind="events")
    fetch(sharing, "b", kind="memory")
    assert reader.last() == ("refused", 0)


def test_the_end_of_the_session_takes_it_back_and_readers_hear_of_events(sharing: Sharing) -> None:
    join(sharing, "a", "user 1")
    reader = join(sharing, "b", "user 1")
    share(sharing, "a", kind="events")
    fetch(sharing, "b", kind="events")
    sharing.leave("a")
    assert reader.last() == ("gone", 0)
    fetch(sharing, "b", kind="events")
    assert reader.last() == ("refused", 0)


def test_what_another_session_shares_cannot_be_replaced_or_withdrawn(sharing: Sharing) -> None:
    join(sharing, "a", "user 1")
    thief = join(sharing, "c", "user 1")
    share(sharing, "a")
    share(sharing, "c")
    assert thief.last() == ("refused", 0)
    sharing.take("c", Message("unshare", {"key": KEY}))
    fetch(sharing, "c")
    assert thief.last() == ("fetched", 1)
    sharing.take("a", Message("unshare", {"key": KEY}))
    fetch(sharing, "c")
    assert thief.last() == ("refused", 0)


@pytest.mark.parametrize(
    "fields", [{"kind": "gold"}, {"bytes": "0"}, {"bytes": "many"}, {"key": "short"}]
)
def test_nonsense_is_refused(sharing: Sharing, fields: dict[str, str]) -> None:
    owner = join(sharing, "a", "user 1")
    good = {"key": KEY, "kind": "memory", "gpu": "GPU-1", "bytes": "4096"}
    sharing.take("a", Message("share", {**good, **fields}, (os.open("/dev/null", os.O_RDONLY),)))
    assert owner.last() == ("refused", 0)
    sharing.take("a", Message("share", good))
    assert owner.last() == ("refused", 0)
    sharing.take("nobody", Message("share", good, (os.open("/dev/null", os.O_RDONLY),)))


def test_a_session_cannot_take_all_descriptors(sharing: Sharing) -> None:
    owner = join(sharing, "a", "user 1")
    for index in range(MOST_PER_SESSION + 1):
        share(sharing, "a", key=f"{index:032x}")
    assert owner.last() == ("refused", 0)
    assert len(sharing) == MOST_PER_SESSION


def test_memory_of_one_whose_context_has_left_its_gpu_is_opened_when_it_runs(
    sharing: Sharing,
) -> None:
    away = {"a"}
    sharing.is_away = away.__contains__
    join(sharing, "a", "user 1")
    reader = join(sharing, "b", "user 1")
    share(sharing, "a")
    share(sharing, "a", key=KEY[::-1], kind="events")
    fetch(sharing, "b")
    assert reader.last() == ("refused", 0)
    assert "open it when it runs" in reader.heard[-1][0].get("message")
    fetch(sharing, "b", key=KEY[::-1], kind="events")
    assert reader.last() == ("fetched", 1), "which are the host's memory"
    away.clear()
    fetch(sharing, "b")
    assert reader.last() == ("fetched", 1)
