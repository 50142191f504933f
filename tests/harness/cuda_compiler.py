# SPDX-License-Identifier: Apache-2.0
"""nvcc as a user has it: on PATH, for programs that the software GPU can run.

Used by tests that follow a page, whose `nvcc …` has no options of ours.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "programs" / "build.py"
#: The PTX readable for the software GPU; the wheels have no device runtime to link with.
FLAGS = ("--no-compress", "-cudadevrt=none")


def compiler_environment() -> dict[str, str]:
    """PATH with nvcc of tests/programs, and what it adds to each command line."""
    spec = importlib.util.spec_from_file_location("build", BUILD)
    assert spec
    assert spec.loader
    build = importlib.util.module_from_spec(spec)
    sys.modules["build"] = build
    spec.loader.exec_module(build)
    toolkit = build.find_toolkit()
    folder = BUILD.parents[2] / "build" / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    link = build.prepare_link_dir(folder, toolkit)
    return {
        "PATH": f"{toolkit.nvcc.parent}:{os.environ['PATH']}",
        "NVCC_APPEND_FLAGS": " ".join((*FLAGS, f"-L{link}")),
    }
