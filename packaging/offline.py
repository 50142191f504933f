# SPDX-License-Identifier: Apache-2.0
"""Packs the offline bundle: one tar with what hosts and guests without a network install.

Used by release.py. The same files give the same tar, whoever packs it and when.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def contents(
    version: str, packages: list[Path], bundle: Path, wheels: list[Path], sbom: Path
) -> dict[str, bytes]:
    """Every file of the bundle: name → content; SHA256SUMS is of all others."""
    files = {f"packages/{path.name}": path.read_bytes() for path in packages}
    files[f"bundle/{bundle.name}"] = bundle.read_bytes()
    files |= {f"wheels/{path.name}": path.read_bytes() for path in wheels}
    files["sbom.json"] = sbom.read_bytes()
    release = CHECKOUT / "packaging" / "release"
    files["host.txt"] = (release / "host.txt").read_bytes()
    text = (release / "README.offline").read_text().replace("@VERSION@", version)
    files["README"] = text.encode()
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        files[f"documents/{name}"] = (CHECKOUT / name).read_bytes()
    for path in sorted((CHECKOUT / "docs").rglob("*.md")):
        files[f"documents/docs/{path.relative_to(CHECKOUT / 'docs')}"] = path.read_bytes()
    files["SHA256SUMS"] = checksums(files).encode()
    return files


def checksums(files: Mapping[str, bytes]) -> str:
    """As `sha256sum -c` reads them."""
    return "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(files.items())
    )


def pack(top: str, files: Mapping[str, bytes], moment: int, target: Path) -> None:
    """Writes the tar; packages and wheels are packed already, so it is not compressed."""
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mtime, member.mode = len(content), moment, 0o644
            archive.addfile(member, io.BytesIO(content))
    partial.rename(target)
