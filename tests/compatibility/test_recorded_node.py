# SPDX-License-Identifier: Apache-2.0
"""What the next release's node.tar.xz packs is enough to run its server and its controller.

A module that is missing there would be found in today's checkout, where test_upgrade.py runs it,
and the release's server would run with parts of another.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .recording.record_node import python_files

STARTED = """
import sys
from pathlib import Path

import sluice

packed = Path(sys.argv[1])
assert str(packed / "sluice") in sluice.__path__, list(sluice.__path__)
sluice.__path__ = [str(packed / "sluice")]
import sluice.controller.__main__
import sluice.server.__main__

ours = {n: m.__file__ for n, m in sys.modules.items() if n.startswith("sluice.")}
elsewhere = {n: f for n, f in ours.items() if f and not Path(f).is_relative_to(packed)}
assert not elsewhere, elsewhere
assert len(ours) > 100, sorted(ours)
"""


def imported(source: str) -> Iterator[str]:
    """The modules of the package that a file names, also those that it imports late."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("sluice."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sluice."):
            yield str(node.module)


def test_every_module_that_is_imported_is_packed() -> None:
    files = python_files()
    for name, path in files.items():
        if path.suffix != ".py":
            continue
        for module in imported(path.read_text()):
            place = "/".join(module.split(".")[1:])
            found = {f"{place}.py", f"{place}/__init__.py"} & files.keys()
            found |= {other for other in files if other.startswith(f"{place}/")}
            assert found, f"{name} imports {module}"


def test_server_and_controller_start_from_what_is_packed_alone(tmp_path: Path) -> None:
    for name, path in python_files().items():
        place = tmp_path / "sluice" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    subprocess.run(
        [sys.executable, "-c", STARTED, str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        check=True,
    )
