# SPDX-License-Identifier: Apache-2.0
"""Makes a release's container images, of its own packages, in one archive of the OCI layout.

Used by release.py. The base is made of a distribution's packages by mmdebstrap, the rest by buildah
(containers/release.Containerfile), so it needs root, both programs and a mirror of the
distribution; no registry of images is asked. Layers that images share are in the archive once. It
promises the same bytes for the same packages, date and state of the mirror, which a mirror of a
past day (such as snapshot.debian.org's) keeps: MIRROR names one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from host_site import KUBERNETES_LOCK, download, lay, locked, name_and_version
from package_formats import CHECKOUT
from release_wheel import fresh

SUITE, PYTHON = "bookworm", "3.11"
#: What the host's package needs of the distribution, and what a guest's installation runs.
BASE_PACKAGES = (
    "ca-certificates",
    "python3",
    "libssl3",
    "libzstd1",
    "python3-libvirt",
    "util-linux",
)
IMAGES = ("controller", "server", "kubernetes", "guest")
PROGRAMS = {"mmdebstrap": "mmdebstrap", "buildah": "buildah"}


def refuse_without_tools() -> None:
    """Ends the program where images cannot be made here, and says how to do without."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        why = f"{' and '.join(missing)} not there" if missing else "only root can make them"
        sys.exit(
            f"release: container images: {why}: run it as root behind `dev/install_debian.sh "
            "release`, or leave them out with RELEASE_OPTIONS=--without-images"
        )


def build(
    version: str, deb: Path, bundle: Path, wheels: Path, moment: int, work: Path, target: Path
) -> Path:
    """The archive `target` of all images, tagged sluice-NAME:VERSION.

    `wheels` is a folder for downloads. Ends the program where a tool fails.
    """
    tag = version.replace("+", "_")
    context = fresh(work / "context")
    shutil.copy(deb, context / "sluice-host.deb")
    shutil.copy(bundle, context / "sluice-guest.tar.gz")
    lay(kubernetes_wheels(wheels), context / "kubernetes")
    date(context, moment)
    buildah = Buildah(fresh(work / "storage"), moment)
    base = base_image(buildah, work / "base.tar", moment)
    layout = work / "layout"
    shutil.rmtree(layout, ignore_errors=True)
    for name in IMAGES:
        image = f"localhost/sluice-{name}:{tag}"
        buildah.run(
            *("build", "--isolation", "chroot", "--network", "host", "--quiet", "--target", name),
            *("--build-arg", f"BASE={base}", "--build-arg", f"SOURCE_DATE_EPOCH={moment}"),
            *("--timestamp", str(moment), "-t", image),
            *("-f", str(CHECKOUT / "packaging" / "containers" / "release.Containerfile")),
            str(context),
        )
        buildah.run("push", "--quiet", image, f"oci:{layout}:sluice-{name}:{tag}")
    pack(layout, moment, target)
    for path in (work / "storage", layout, context):
        shutil.rmtree(path)
    (work / "base.tar").unlink()
    return target


def kubernetes_wheels(folder: Path) -> Sequence[Path]:
    """What a cluster's parts need besides what the host's package brings."""
    ours = locked()
    found = download(folder, (PYTHON,), KUBERNETES_LOCK)
    return [path for path in found if name_and_version(path) not in ours]


def base_image(buildah: Buildah, root: Path, moment: int) -> str:
    """The distribution's part."""
    root.unlink(missing_ok=True)
    mirrors = os.environ.get("MIRROR", "").split()
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}"]
    command += ['--customize-hook=rm -rf "$1"/var/cache/ldconfig "$1"/var/log/*.log']
    run([*command, SUITE, str(root), *mirrors], {"SOURCE_DATE_EPOCH": str(moment)})
    container = buildah.run("from", "scratch")
    buildah.run("add", "--quiet", container, str(root), "/")
    image = "localhost/sluice-release-base"
    buildah.run("commit", "--quiet", "--rm", "--timestamp", str(moment), container, image)
    return image


class Buildah:
    """buildah with a storage of its own, which is the release's and goes with it."""

    def __init__(self, storage: Path, moment: int) -> None:
        self._words = [
            "buildah",
            "--root",
            str(storage / "root"),
            "--runroot",
            str(storage / "run"),
            # each driver makes layers of its own
            *("--storage-driver", "overlay"),
        ]
        self._environment = {"SOURCE_DATE_EPOCH": str(moment)}

    def run(self, *words: str) -> str:
        """What it printed."""
        return run([*self._words, *words], self._environment)


def date(tree: Path, moment: int) -> None:
    """Gives every file the same date, which compiled Python files name."""
    for path in tree.rglob("*"):
        os.utime(path, (moment, moment), follow_symlinks=False)


def pack(layout: Path, moment: int, target: Path) -> None:
    """One tar of an OCI layout; its layers are compressed already."""
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(layout.rglob("*")):
            member = archive.gettarinfo(path, str(path.relative_to(layout)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.mode = moment, 0o755 if path.is_dir() else 0o644
            if path.is_dir():
                archive.addfile(member)
            else:
                with path.open("rb") as file:
                    archive.addfile(member, file)
    partial.rename(target)


def run(command: Sequence[str], environment: dict[str, str]) -> str:
    """Runs a tool; ends the program with what it said when it fails."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"release: {' '.join(command[:8])} … failed: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout.strip()
