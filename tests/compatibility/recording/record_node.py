# SPDX-License-Identifier: Apache-2.0
"""Packs what a node runs of this tree: all of the Python package, and the native part, stripped.

Called by record.py. It is for the test that upgrades a node while a program of it goes on. The
package is that of the checkout, python/sluice, which tests/ci/test_package.py holds to be the
wheel's: what the server and the controller import today or tomorrow is there.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import tarfile
import tempfile
from pathlib import Path

from sluice.config.native_files import SOFTGPU, find_native

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / "python" / "sluice"
PROGRAMS = ("sluice-worker", "sluice-relay", "sluice-doorbell")
LIBRARIES = (SOFTGPU, "sluice_meter.so")


def python_files() -> dict[str, Path]:
    """Every file of the package by its name below `sluice/`, the generated ones included."""
    files = {}
    for entry in sorted(PYTHON.iterdir()):
        folder = entry.resolve()
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".pyi"):
                files[f"{entry.name}/{path.relative_to(folder)}"] = path
    return files


def record_node(out: Path) -> None:
    """Writes node.tar.xz into a folder."""
    files: dict[str, tuple[int, bytes]] = {}
    for name, path in python_files().items():
        files[f"node/python/sluice/{name}"] = (0o644, path.read_bytes())
    with tempfile.TemporaryDirectory() as scratch:
        stripped = Path(scratch) / "stripped"
        for name in (*PROGRAMS, *LIBRARIES):
            source = find_native(name).resolve()
            subprocess.run(["strip", "-s", "-o", stripped, source], check=True)
            place = "bin" if name in PROGRAMS else "lib"
            files[f"node/native/{place}/{name}"] = (0o755, stripped.read_bytes())
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (mode, content) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mode, member.size = mode, len(content)
            archive.addfile(member, io.BytesIO(content))
    packed = lzma.compress(tar.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    (out / "node.tar.xz").write_bytes(packed)
