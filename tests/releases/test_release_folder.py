# SPDX-License-Identifier: Apache-2.0
"""What `make release` left in its folder (SLUICE_RELEASE) is whole: sums, one version, the oldest
glibc, images that say what they are."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from .conftest import RELEASE

pytestmark = pytest.mark.skipif(not os.environ.get(RELEASE), reason=f"{RELEASE} names no release")
OLDEST_GLIBC = (2, 28)


@pytest.fixture
def folder() -> Path:
    return Path(os.environ[RELEASE]).resolve()


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def test_every_file_is_there_once_with_its_sum_and_version(folder: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=False
    )
    assert done.returncode == 0
    listed = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    version = folder.name
    packaged = re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"~\1\2", version)
    expected = {
        f"sluice_gpu-{version}-py3-none-manylinux_2_28_x86_64.whl",
        f"sluice_gpu-{version}.tar.gz",
        "sluice-guest-x86_64.tar.gz",
        f"sluice-offline-{version}.tar",
        f"sluice-{version}.cdx.json",
        *(f"sluice-{part}_{packaged}-1_amd64.deb" for part in ("host", "guest")),
        *(f"sluice-{part}-{packaged}-1.x86_64.rpm" for part in ("host", "guest")),
    }
    assert listed - {f"sluice-images-{version}.oci.tar"} == expected


def test_nothing_in_the_wheel_needs_a_newer_glibc(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(only(folder, "*.whl")) as archive:
        for name in archive.namelist():
            if name.startswith("sluice/native/"):
                archive.extract(name, tmp_path)
    looked_at = 0
    for path in (tmp_path / "sluice/native").iterdir():
        if path.read_bytes()[:4] != b"\x7fELF":
            continue
        looked_at += 1
        said = subprocess.run(
            ["readelf", "--version-info", "--wide", path],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        wanted = [(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", said)]
        assert max(wanted, default=OLDEST_GLIBC) <= OLDEST_GLIBC, path.name
    assert looked_at > 20


def test_the_offline_bundle_has_the_same_packages(folder: Path) -> None:
    sums = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    with tarfile.open(only(folder, "sluice-offline-*.tar")) as archive:
        found = {
            member.name.rpartition("/")[2]: hashlib.sha256(file.read()).hexdigest()
            for member in archive
            if member.name.endswith((".deb", ".rpm", "sluice-guest-x86_64.tar.gz"))
            and (file := archive.extractfile(member))
        }
    assert len(found) == 5
    assert found == {name: sums[name] for name in found}


def images_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Name and tag → the image's configuration; every blob has the sum that is its name."""
    found = sorted(folder.glob("sluice-images-*.oci.tar"))
    if not found:
        pytest.skip("the release was made without images")
    with tarfile.open(found[0]) as archive:
        blobs = {
            member.name: file.read() for member in archive if (file := archive.extractfile(member))
        }
    for name, content in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(content).hexdigest() == name.rpartition("/")[2]

    def blob(digest: str) -> Any:
        return json.loads(blobs[f"blobs/{digest.replace(':', '/')}"])

    configurations = {}
    for entry in json.loads(blobs["index.json"])["manifests"]:
        manifest = blob(entry["digest"])
        name = entry["annotations"]["org.opencontainers.image.ref.name"]
        configurations[name] = blob(manifest["config"]["digest"])
    return configurations


def test_the_images_start_what_they_are_named_for(folder: Path) -> None:
    found = images_of(folder)
    version = folder.name
    assert set(found) == {
        f"sluice-{part}:{version}" for part in ("controller", "server", "kubernetes", "guest")
    }
    assert len({each["created"] for each in found.values()}) == 1, "all are of the commit's day"
    for part, user, begins in (
        ("controller", "64200", "/usr/bin/sluice-controller"),
        ("server", "", "/usr/bin/sluice-server"),
        ("kubernetes", "65532", "sluice-kubernetes"),
        ("guest", "", "/bin/sh"),
    ):
        config = found[f"sluice-{part}:{version}"]["config"]
        assert config.get("User", "") == user, part
        assert (config.get("Entrypoint") or config["Cmd"])[0] == begins, part
