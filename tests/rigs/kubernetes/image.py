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
PLATFORM = {"architecture": "amd64", "os": "linux"}
LOADER = "ld-linux-x86-64.so.2"
#: As every image has them.
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp")


def libraries_of(*programs: Path) -> dict[str, Path]:
    """What programs are linked with on this machine, loader included, by their place.

    The loader is beside libc too, as in Debian: a loader hook looks for it there.
    """
    listed = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True)
    places = _LIBRARY.findall(listed.stdout)
    found = {place.lstrip("/"): Path(place).resolve() for place in places}
    for place in list(found):
        if Path(place).name == "libc.so.6":
            found[str(Path(place).with_name(LOADER))] = Path("/lib64", LOADER).resolve()
    return found


def write_images(
    target: Path,
    entrypoints: Mapping[str, str],
    files: Mapping[str, Path | str],
    stop_signal: str = "",
) -> None:
    """Images of the same files, by their names; an entrypoint that is "" is none.

    `files` by place: a Path is copied, a text is where a link leads. The signal is what asks a
    container to end ("": SIGTERM).
    """
    layer = _layer(files)
    of_layer = _described(LAYER, layer)
    blobs = {of_layer["digest"]: layer}

    def add(kind: str, content: bytes) -> dict[str, Any]:
        found = _described(kind, content)
        blobs[found["digest"]] = content
        return found

    listed = []
    for name, entrypoint in entrypoints.items():
        settings: dict[str, Any] = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
        if entrypoint:
            settings["Entrypoint"] = [entrypoint]
        if stop_signal:
            settings["StopSignal"] = stop_signal
        rootfs = {"type": "layers", "diff_ids": [of_layer["digest"]]}
        config = {**PLATFORM, "rootfs": rootfs, "config": settings}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": add(CONFIG, _json(config)),
            "layers": [of_layer],
        }
        annotations = {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1],
        }
        described = add(MANIFEST, _json(manifest))
        listed.append({**described, "platform": PLATFORM, "annotations": annotations})
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": listed}))
        for digest, blob in blobs.items():
            _add(archive, "blobs/" + digest.replace(":", "/"), blob)


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
            found = source.stat()
            # Python takes what is compiled for what it is of by the time of that
            entry.size, entry.mode, entry.mtime = found.st_size, 0o755, int(found.st_mtime)
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
