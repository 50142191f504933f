# SPDX-License-Identifier: Apache-2.0
"""Records what later versions of Sluice are held against: `make release-data` runs it.

Everything is made by the code of the tree that it lies in, which has to be built (make native
programs guest-bundle) and is that of the release. See ../README.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import yaml

from sluice.guest_runtime import VERSION

from ..rest_document import rest_document
from . import record_domains, record_frames, record_node, record_stores

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
API = ROOT / "native" / "api"
PROTO = ROOT / "controller" / "proto" / "pool.proto"
BUNDLE = ROOT / "dist" / "sluice-guest-x86_64.tar.gz"


def record_ids(out: Path) -> None:
    """The numbers of functions, and of fields between servers and controllers."""
    out.mkdir(parents=True, exist_ok=True)
    for path in (API / "ids.lock", API / "library_ids.lock", PROTO):
        shutil.copy(path, out / path.name)
    said = yaml.safe_load((API / "commands.yaml").read_text())
    lines = [f"{fields['id']} {name}\n" for name, fields in said["commands"].items()]
    (out / "command_ids.lock").write_text("".join(lines))


def record_rest(out: Path) -> None:
    """The description of REST."""
    (out / "openapi.json").write_text(json.dumps(rest_document(), indent=1, sort_keys=True) + "\n")


def record_bundle(out: Path) -> None:
    """The guest bundle, packed tighter."""
    with gzip.open(BUNDLE) as bundle:
        packed = lzma.compress(bundle.read(), preset=9 | lzma.PRESET_EXTREME)
    (out / "guest-bundle.tar.xz").write_bytes(packed)


def record_release(out: Path) -> None:
    """Of what and when this was made."""
    said = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(said, capture_output=True, text=True, check=True).stdout.strip()
    made = {"version": VERSION, "commit": commit, "recorded": datetime.now(UTC).date().isoformat()}
    (out / "release.json").write_text(json.dumps(made, indent=1) + "\n")


def main() -> None:
    """Records everything, or one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the release's folder (default: by the version)")
    parser.add_argument("--only", default="", help="one of its parts, such as stores")
    arguments = parser.parse_args()
    out: Path = arguments.out or HERE / VERSION
    if out.exists() and not arguments.only:
        raise SystemExit(f"{out} is there: what was recorded of a release is never changed")
    parts: dict[str, Callable[[], None]] = {
        "ids": lambda: record_ids(out),
        "rest": lambda: record_rest(out),
        "bundle": lambda: record_bundle(out),
        "node": lambda: record_node.record_node(out),
        "domains": lambda: record_domains.record_domains(out / "domains"),
        "stores": lambda: record_stores.record_stores(out / "stores"),
        "frames": lambda: record_frames.record_all(out / "frames"),
        "release": lambda: record_release(out),
    }
    for name, record in parts.items():
        if arguments.only in ("", name):
            print(f"{name} of {VERSION} …", flush=True)
            record()


if __name__ == "__main__":
    main()
