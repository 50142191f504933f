# SPDX-License-Identifier: Apache-2.0
"""What test modules share lies in a helper module or the harness, not in one of them.

An import from a test module runs its marks and its skips, and brings its fixtures along; whoever
moves a test then breaks another file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules that a file imports, and what it imports from packages, dotted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def of_test_modules(text: str) -> list[str]:
    """The test modules among what it imports."""
    names = [name.split(".") for name in imported(ast.parse(text))]
    return [".".join(name) for name in names if any(part.startswith("test_") for part in name)]


def test_an_import_from_a_test_module_is_found() -> None:
    for text in (
        "from tests.hypervisor.test_service import do",
        "from .test_service import do",
        "from . import test_service",
        "import test_service",
        "def f():\n    from .test_service import do",
    ):
        assert of_test_modules(text), text
    assert not of_test_modules("from .conftest import Rig\nimport tests.rigs.kvm.rig")


def test_no_file_imports_from_a_test_module() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    found = {
        str(path.relative_to(TESTS)): names
        for path in files
        if (names := of_test_modules(path.read_text()))
    }
    assert not found, f"{found}: move what they share to tests/harness or a module beside them"
