# SPDX-License-Identifier: Apache-2.0
"""A network that swallows everything: nobody closes a connection, and nothing is acknowledged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("silence.py")
SAID = {"tcp": "could not be reached again in time", "relay": "in time"}
LONG = bool(os.environ.get("SLUICE_LONG"))

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root"),
]


def test_programs_get_an_error_and_nothing_stays(tmp_path: Path) -> None:
    """Over TCP and over a relay, in mid-call; SLUICE_LONG: until the workers give up, too."""
    command = ["unshare", "--net", sys.executable, str(SCRIPT), str(tmp_path)]
    more = ["--until-workers-end"] if LONG else []
    done = subprocess.run(command + more, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    if LONG:
        assert any("no other connection in time" in line for line in found["logs"]), found
    for way in ("tcp", "relay"):
        assert found[way]["result"], found
        assert found[way]["later"], "the error stays"
        assert SAID[way] in found[way]["said"], found
