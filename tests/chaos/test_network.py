# SPDX-License-Identifier: Apache-2.0
"""The network of the chaos rig: what it makes it takes away, at once."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from . import network


def test_its_names_are_free_again_while_processes_still_run_in_it() -> None:
    """A namespace lives as long as a process in it, and so does a cable that was left to it."""
    with contextlib.ExitStack() as at_the_end:
        for _ in range(2):
            made = network.make()
            at_the_end.callback(made.close)
            if not made.can_cut:
                pytest.skip("network namespaces: they need root and the right to make them")
            place = made.place("a server")
            process = at_the_end.enter_context(subprocess.Popen([*place.enter, "sleep", "60"]))
            at_the_end.callback(process.kill)
            made.cut("a server")
            made.close()
