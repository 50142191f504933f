# SPDX-License-Identifier: Apache-2.0
"""Looks at the native parts of the packages that a Python command imports.

Used by program_check.py for `sluice check python train.py` and the like. The command's own code is
parsed, not run; the interpreter is asked where the packages lie, which imports none of them. What
those packages import in turn is not followed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .findings import Finding, note
from .modules import look_at, mixes
from .substitution import Served

_MOST_FILES = 1000
#: Options of the interpreter that take the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: Of a namespace package, such as `nvidia`, what is imported of it: what lies beside it is others'.
_FIND = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
        while rest and spec and not spec.has_location and spec.submodule_search_locations:
            first += "." + rest.pop(0)
            spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        continue
    if spec is not None:
        found[first] = [*(spec.submodule_search_locations or ())] or [spec.origin]
print(json.dumps(found))
"""


def is_python(path: Path) -> bool:
    """Whether a program is a Python interpreter, by its name."""
    return re.fullmatch(r"python[0-9.]*", path.name) is not None


def check_python(interpreter: Path, arguments: Sequence[str], served: Served) -> list[Finding]:
    """Findings about each package with something of CUDA in it, in order of their names."""
    names, problem = imported(arguments)
    if problem:
        return [note("packages", problem)]
    results = []
    versions: dict[str, Path] = {}
    for name, places in sorted(_locations(interpreter, names).items()):
        files = (f for f in _native_files(places) if served.replacement(f.name) is None)
        seen = look_at(files, served)
        results += seen.findings("packages", name, package=True)
        if len(seen.versions) == 1:  # else it is said of the package
            versions = {**seen.versions, **versions}
    if len(versions) > 1:
        results.append(mixes("packages", "the program", versions))
    return results


def imported(arguments: Sequence[str]) -> tuple[list[str], str]:
    """(dotted names that a command's own code imports, why they cannot be known)."""
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "-c":
            return _names(words[0] if words else "", "the command's text")
        if word.startswith("-c"):
            return _names(word[2:], "the command's text")
        if word == "-m":
            return words[:1], ""
        if word in _WITH_VALUE and words:
            words.pop(0)
        elif not word.startswith("-"):
            try:
                text = Path(word).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                return [], f"{word} cannot be read: {error.strerror}"
            return _names(text, word)
    return [], ""


def _names(text: str, what: str) -> tuple[list[str], str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return [], f"{what} cannot be parsed by this Python: what it imports was not looked at"
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return sorted(found), ""


def _locations(interpreter: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Where the interpreter finds each package; one that it does not find is missing."""
    if not names:
        return {}
    try:
        done = subprocess.run(
            [str(interpreter), "-c", _FIND, *names],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return {name: [p for p in places if p] for name, places in found.items()}


def _native_files(places: Sequence[str]) -> Iterator[Path]:
    """The shared libraries of a package."""
    count = 0
    for place in places:
        if os.path.isfile(place):  # noqa: PTH113 - a module that is one file
            files: Iterator[Path] = iter([Path(place)])
        else:
            files = (
                Path(folder, name) for folder, _, names in os.walk(place) for name in sorted(names)
            )
        for path in files:
            if re.search(r"\.so(\.[0-9.]+)?$", path.name) and not path.is_symlink():
                yield path
                count += 1
                if count == _MOST_FILES:
                    return
