#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy with the checks of .clang-tidy: `dev/tidy.py [FILE…]`, or `dev/tidy.py all`.

Called by `make tidy` and by hand. Without a file it takes the C++ files that differ from
origin/main. How each is compiled comes from build/native (`make native`); what CMake compiles
several at a time is taken apart again, and options that only GCC knows are left out. The exit
status is 1 where something is found.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
NATIVE = CHECKOUT / "build" / "native"
DATABASE = CHECKOUT / "build" / "tidy" / "compile_commands.json"
TIDY = Path(sys.executable).with_name("clang-tidy")
_GCC_ONLY = re.compile(r"-Wno-(restrict|stringop-\S+|maybe-uninitialized)|-fno-gnu-unique")
_INCLUDE = re.compile(r'^#include "(/[^"]+)"', re.MULTILINE)


def commands() -> dict[str, dict[str, str]]:
    """Each source file's entry, as if it were compiled by itself."""
    found: dict[str, dict[str, str]] = {}
    for entry in json.loads((NATIVE / "compile_commands.json").read_text()):
        command = _GCC_ONLY.sub("", entry["command"])
        source = Path(entry["file"])
        together = "/Unity/" in entry["file"] and source.exists()
        for file in _INCLUDE.findall(source.read_text()) if together else [entry["file"]]:
            found.setdefault(
                file,
                {
                    "directory": entry["directory"],
                    "command": command.replace(entry["file"], file),
                    "file": file,
                },
            )
    return {
        file: entry
        for file, entry in found.items()
        if Path(file).is_relative_to(CHECKOUT) and not Path(file).is_relative_to(NATIVE)
    }


def changed() -> set[str]:
    """Files that differ from origin/main, committed or not."""
    base = subprocess.run(
        ["git", "merge-base", "HEAD", "origin/main"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    said = subprocess.run(
        ["git", "diff", "--name-only", "--diff-filter=d", base],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {str(CHECKOUT / name) for name in said.split()}


def tidy(file: str) -> str:
    """What is wrong with a file; empty where nothing is."""
    done = subprocess.run(
        [
            str(TIDY),
            "--quiet",
            "-p",
            str(DATABASE.parent),
            "--extra-arg=-Wno-unknown-warning-option",
            # GCC's precompiled header is left, and the header read instead.
            "--extra-arg=-Wno-ignored-gch",
            file,
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    # On standard error it counts warnings of system headers.
    return (done.stdout or done.stderr) if done.returncode else ""


def main(words: list[str]) -> int:
    """Runs it for the files; the exit status."""
    try:
        known = commands()
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: run `make native` first", file=sys.stderr)
        return 2
    DATABASE.parent.mkdir(parents=True, exist_ok=True)
    DATABASE.write_text(json.dumps(list(known.values())))
    wanted = set(known) if words == ["all"] else {str(Path(word).resolve()) for word in words}
    files = sorted((wanted or changed()) & set(known))
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        findings = [text for text in pool.map(tidy, files) if text]
    print("\n".join(findings), end="")
    print(f"clang-tidy: {len(files)} files, {len(findings)} with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
