# SPDX-License-Identifier: Apache-2.0
"""Finds the client libraries that `sluice run` would use.

Used by run.py, check.py and what check.py asks. In the bundle they lie in `lib` beside this
package's folder; in a checkout in build/native; `SLUICE_LIBRARIES` overrules both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

AUDIT = "libsluice-audit.so"
DRIVER = "libcuda.so.1"
RUNTIME = "libcudart.so.13"
STATIC_RUNTIME = "libcudart_static.a"
WATCHER = "sluice-watch"


class Installation(NamedTuple):
    """Where the native parts are; a part that is missing is None."""

    folder: Path | None
    audit: Path | None
    driver: Path | None
    runtime: Path | None
    watcher: Path | None


def candidate_folders() -> list[Path]:
    """Where the libraries are looked for, the first with a libcuda.so.1 wins."""
    here = Path(__file__).resolve().parent
    given = os.environ.get("SLUICE_LIBRARIES")
    # Absolute, links kept: a program may change its folder before it starts another.
    folders = [Path(os.path.abspath(given))] if given else []
    if here.parent.name == "python":  # an unpacked or installed bundle
        folders.append(here.parent.parent / "lib")
    # The installed package, whose native folder is flat; a checkout.
    folders += [here.parent / "native", here.parent / "build" / "native" / "lib"]
    folders.append(Path("/opt/sluice/lib"))
    return folders


def find_installation() -> Installation:
    """Looks for the libraries."""
    for folder in candidate_folders():
        if (folder / DRIVER).exists():
            return _at(folder)
    return Installation(None, None, None, None, None)


def _at(folder: Path) -> Installation:
    def first(*paths: Path) -> Path | None:
        return next((path for path in paths if path.exists()), None)

    return Installation(
        folder=folder,
        audit=first(folder / AUDIT),
        driver=first(folder / DRIVER),
        runtime=first(folder / RUNTIME),
        watcher=first(folder / WATCHER, folder.parent / "bin" / WATCHER),
    )
