# SPDX-License-Identifier: Apache-2.0
"""Packs files into an OCI image archive that `ctr images import` takes: no registry, no builder.

Used by rig.py. The layout is the OCI image specification's (image-layout.md, manifest.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LOADER = "ld-linux-x86-64.so.2"
#: As every image has them.
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp")


def libraries_of(*programs: Path) -> dict[str, Path]:
    """What programs are linked with on this machine, loader included, by their place.

    The loader is beside libc too, as in Debian: a loader hook looks for it there.
    """
    found: dict[str, Path] = {}
    for program in programs:
        listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True)
        for place in _LIBRARY.findall(listed.stdout):
            found[place.lstrip("/")] = Path(place).resolve()
    for place in list(found):
        if Path(place).name == "libc.so.6":
            found[str(Path(place).with_name(LOADER))] = Path("/lib64", LOADER).resolve()
    return found


def write_image(
    target: Path,
    name: str,
    files: Mapping[str, Path | str],
    *,
    entrypoint: str = "",
) -> None:
    """`files` by place: a Path is copied, a text is where a link leads."""
    layer = _layer(files)
    settings: dict[str, Any] = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
    if entrypoint:
        settings["Entrypoint"] = [entrypoint]
    rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
    config = _json({"architecture": "amd64", "os": "linux", "rootfs": rootfs, "config": settings})
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described(CONFIG, config),
            "layers": [_described(LAYER, layer)],
        }
    )
    named = {
        **_described(MANIFEST, manifest),
        "platform": {"architecture": "amd64", "os": "linux"},
        "annotations": {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
        },
    }
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (layer, config, manifest):
            _add(archive, "blobs/" + _digest(blob).replace(":", "/"), blob)


def _layer(files: Mapping[str, Path | str]) -> bytes:
    packed = io.BytesIO()
    folders: set[str] = set()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for place in (*(f"{folder}/x" for folder in FOLDERS), *files):
            for parent in reversed(Path(place).parents):
                if str(parent) != "." and str(parent) not in folders:
                    folders.add(str(parent))
                    entry = tarfile.TarInfo(str(parent))
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if place == "tmp/x" else 0o755
                    archive.addfile(entry)
        for place, source in files.items():
            entry = tarfile.TarInfo(place)
            if isinstance(source, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, source
                archive.addfile(entry)
                continue
            entry.size, entry.mode = source.stat().st_size, 0o755
            with source.open("rb") as content:
                archive.addfile(entry, content)
    return packed.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _described(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
