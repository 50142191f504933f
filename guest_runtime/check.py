# SPDX-License-Identifier: Apache-2.0
"""`sluice check [PROGRAM [ARGUMENT...]]`: would it use Sluice here, and if not, what is to be done.

Used by main.py and by the host's `sluice`. Changes nothing and opens no session. Exit status 0 only
if it would work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from .channels import check_channels
from .configuration import SYSTEM_FILE, Value, read_settings, visible_vgpus
from .findings import Finding, Verdict, bad, note, ok
from .installation import find_installation
from .installation_check import check_installation, check_loader
from .program_check import check_program

SIGNS = {Verdict.OK: "ok  ", Verdict.NOTE: "note", Verdict.BAD: "BAD "}


def findings(command: Sequence[str] = ()) -> list[Finding]:
    """Everything there is to say, in the order in which a call would meet it."""
    settings = read_settings()
    results = check_program(command[0], command[1:]) if command else []
    installation = find_installation()
    results += check_installation(installation)
    results += check_loader(installation)
    results += check_settings(settings)
    channels = check_channels(settings)
    # With several ways to try, one that is missing matters only if none is left.
    return results + channels


def check(command: Sequence[str] = (), out: TextIO | None = None) -> int:
    """Prints the findings; 0 if a program would work, 1 if not."""
    results = findings(command)
    return report(results, out or sys.stdout)


def report(results: Iterable[Finding], out: TextIO) -> int:
    """Prints findings and a last line that sums them up."""
    bad_ones = 0
    for finding in results:
        print(f"{SIGNS[finding.verdict]}  {finding.subject}: {finding.text}", file=out)
        if finding.remedy:
            print(f"      -> {finding.remedy}", file=out)
        bad_ones += finding.verdict is Verdict.BAD
    print("it would work" if not bad_ones else "it would not work", file=out)
    return 1 if bad_ones else 0


def check_settings(settings: dict[str, Value]) -> list[Finding]:
    """Every setting that is not its default, and those that the native library refuses."""
    results = []
    for key, value in settings.items():
        name = key.partition(".")[2]
        if value.problem:
            results.append(
                bad(
                    "configuration",
                    f"{name} is {value.text!r} ({value.origin})",
                    f"change it: {value.problem}",
                )
            )
        elif value.origin != "default":
            text = f"{name} = {value.text} ({value.origin})"
            if "ORION_" in value.origin:
                results.append(note("configuration", text, "the SLUICE_ spelling works as well"))
            else:
                results.append(ok("configuration", text))
    results += _check_visible(settings)
    if not results:
        results.append(
            ok("configuration", f"defaults (no variables, nothing in {SYSTEM_FILE} or ~/.sluice)")
        )
    return results


def _check_visible(settings: dict[str, Value]) -> list[Finding]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    value = settings["client.vgpu_count"]
    if listed is None or value.problem:
        return []
    asked = int(value.text)
    left = visible_vgpus(listed, asked)
    text = f"CUDA_VISIBLE_DEVICES={listed} leaves {left} of {asked} vGPU, numbered from 0"
    if left:
        return [note("configuration", text + ": so many are asked for")]
    return [bad("configuration", text, "unset it, or set SLUICE_VGPU to how many there are to be")]
