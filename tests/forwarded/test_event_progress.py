# SPDX-License-Identifier: Apache-2.0
"""Many events asked for at a time: what is known is not asked again, and nothing wrong is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from static_pool import StaticPool

PROGRAM = Path(__file__).with_name("event_progress.py")
NOT_READY = 600

Said = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=[False, True], ids=["shared memory", "TCP"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What the program printed, by its parts; `tcp` is said, too."""
    with StaticPool(tmp_path_factory.mktemp("pool"), tcp=request.param) as pool:
        done = pool.run(sys.executable, PROGRAM)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["part"]: line for line in lines} | {"channel": {"tcp": request.param}}


def test_a_streams_events_are_done_in_their_order(said: Said) -> None:
    part = said["in order"]
    assert [part[key] for key in ("none_ready", "done", "rest")] == [True] * 3
    assert part["asked"] == [0, 0, 0], "what a wait has told is not asked again"


def test_one_question_is_of_all_that_fit_into_it(said: Said) -> None:
    one = int(said["channel"]["tcp"])
    # 84 events: of a stream that was asked; then of one that was not, the first 64, and all
    assert said["one question"]["asked"] == [0, one, one]


def test_the_newest_record_counts(said: Said) -> None:
    part = said["recorded anew"]
    assert part["anew"] == NOT_READY, "done before, and recorded behind something since"
    assert part["elsewhere"] == 0, "in a stream that has got there"
    assert part["before"] == [NOT_READY, NOT_READY, 0, NOT_READY]
    assert part["after"] == [0] * 5
    assert part["gone"] == [NOT_READY, 0], "its stream is gone, and its work goes on"


def test_who_knows_better_is_told_so(said: Said) -> None:
    assert said["told otherwise"]["wrong"] == 0


def test_older_records_than_are_listed(said: Said) -> None:
    wanted = {"done": True, "all_done": True, "elapsed": True, "asked": 1}  # the time itself
    assert said["many"] == {"part": "many", **wanted}


def test_threads_that_share_streams(said: Said) -> None:
    assert said["threads"]["wrong"] == []
