# SPDX-License-Identifier: Apache-2.0
"""Small native programs and libraries, compiled where a test needs the loader or an ELF file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

Compile = Callable[..., Path]


@pytest.fixture
def compile_c(tmp_path: Path) -> Compile:
    """compile_c(name, source, *options) → the file."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def compile_it(name: str, source: str, *options: str) -> Path:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = tmp_path / (Path(name).name + ".c")
        text.write_text(source)
        subprocess.run([compiler, str(text), "-o", str(target), *options], check=True)
        return target

    return compile_it
