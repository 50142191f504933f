# SPDX-License-Identifier: Apache-2.0
"""Packs what a node runs of this tree: the server, and its worker, relay and doorbell, stripped.

Called by record.py. It is for the test that upgrades a node while a program of it goes on.
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
PACKAGES = ("config", "hypervisor", "rpc", "server", "templates")
PROGRAMS = ("sluice-worker", "sluice-relay", "sluice-doorbell")
LIBRARIES = (SOFTGPU, "sluice_meter.so")


def record_node(out: Path) -> None:
    """Writes node.tar.xz into a folder."""
    files: dict[str, tuple[int, bytes]] = {}
    for package in PACKAGES:
        folder = PYTHON / package
        for path in sorted(folder.resolve().rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".pyi"):
                name = f"node/python/sluice/{package}/{path.relative_to(folder.resolve())}"
                files[name] = (0o644, path.read_bytes())
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
