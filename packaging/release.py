# SPDX-License-Identifier: Apache-2.0
"""Makes a release: everything that is handed out, in dist/release/VERSION, from a clean tree.

Called by `make release`. It builds from an export of the last commit, with the tools and libraries
of packaging/release, so that nothing that lies about in the checkout gets in. It promises that the
same commit gives the same bytes: every part is dated by the commit (SOURCE_DATE_EPOCH), and nothing
of the machine is in it; `--against DIR` builds and says which files differ from an earlier run's.
The static runtime in the guest bundle is compiled by the system's compiler, so two machines have to
have the same one.

Container images need root and buildah and are as the distribution's mirror is (release_images.py);
`--without-images` leaves them out.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent))

import offline
import release_images
import release_wheel
from host_site import download
from package_formats import CHECKOUT

Made = TypeVar("Made")

SDIST_CODE = """
import os, sys
from scikit_build_core.build import build_sdist
os.chdir(sys.argv[1])
build_sdist(sys.argv[2])
"""


@dataclass(frozen=True)
class Release:
    """What is built, from what, where."""

    version: str
    commit: str
    moment: int
    source: Path  # an export of the commit
    work: Path
    dist: Path
    tools: Path
    jobs: int
    images: bool

    def run(self, *words: str | Path) -> None:
        """Runs a script of the export with the release's tools."""
        environment = release_wheel.at(self.moment, self.tools, self.source)
        release_wheel.run([str(self.tools), *map(str, words)], environment)

    def keep(self, path: Path) -> Path:
        """Puts a file among those that are handed out."""
        return Path(shutil.copy(path, self.dist / path.name))


def refuse_dirty() -> None:
    """Ends the program where the checkout differs from its last commit."""
    said = git("status", "--porcelain", "--untracked-files=normal")
    if said:
        sys.exit(f"release: the tree differs from its last commit; commit or stash:\n{said}")


def git(*words: str) -> str:
    """What git says of the checkout."""
    command = ["git", "-C", str(CHECKOUT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: git {' '.join(words)} failed: {done.stderr}")
    return done.stdout.rstrip("\n")


def export(commit: str, folder: Path) -> None:
    """The commit's files in a folder that has nothing else."""
    release_wheel.fresh(folder)
    command = ["git", "-C", str(CHECKOUT), "archive", "--format=tar", commit]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="tar")


def version_of(source: Path) -> str:
    """The one version that all parts say; ends the program where two differ."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    text = (source / "guest_runtime" / "__init__.py").read_text()
    found = re.search(r'^VERSION = "([^"]+)"', text, re.MULTILINE)
    guest = found[1] if found else "none"
    if project != guest:
        sys.exit(
            f"release: pyproject.toml says {project} and guest_runtime/__init__.py {guest}: "
            "give both the same version"
        )
    return str(project)


def refuse_unwritten(source: Path, version: str) -> None:
    """Ends the program where the changelog does not say what is new in this version.

    A version that is not final yet (0.2.0.dev0) has its lines below [Unreleased].
    """
    final = re.fullmatch(r"[0-9.]+", version) is not None
    wanted = version if final else "Unreleased"
    text = (source / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## \[{re.escape(wanted)}\](?P<date>.*)\n(?P<text>(?:(?!## ).*\n)*)", text, re.MULTILINE
    )
    if section is None or "- " not in section["text"]:
        sys.exit(f"release: CHANGELOG.md has nothing below `## [{wanted}]`: say what is new")
    if final and not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", section["date"]):
        sys.exit(f"release: CHANGELOG.md: `## [{wanted}]` wants its day: ` - 2026-01-31`")


def build(of: Release) -> None:
    """Every part, in this order."""
    wheel = of.keep(timed("wheel", lambda: build_wheel(of)))
    timed("source", lambda: of.run("-c", SDIST_CODE, of.source, of.dist))
    bundle = timed("guest bundle", lambda: build_bundle(of))
    packages = timed("packages", lambda: build_packages(of, wheel, bundle))
    wheels = download(of.work.parent / "wheels")
    sbom = timed("bill of materials", lambda: build_sbom(of, wheels))
    whole = offline.contents(of.version, packages, bundle, [wheel, *wheels], sbom)
    name = f"sluice-offline-{of.version}"
    offline.pack(name, whole, of.moment, of.dist / f"{name}.tar")
    if of.images:
        timed("container images", lambda: build_images(of, bundle))
    files = {path.name: path.read_bytes() for path in of.dist.iterdir()}
    (of.dist / "SHA256SUMS").write_text(offline.checksums(files))


def build_wheel(of: Release) -> Path:
    """The wheel, which fits glibc 2.28."""
    wheel = release_wheel.build_wheel(of.source, of.tools, of.work, of.moment, of.jobs)
    release_wheel.check_wheel(wheel, of.tools)
    return wheel


def build_bundle(of: Release) -> Path:
    """The guest bundle."""
    script = of.source / "packaging" / "guest_bundle.py"
    build = of.source / "build" / "guest"
    of.run(script, "--build", build, "--dist", of.dist, "--jobs", str(of.jobs))
    [bundle] = of.dist.glob("sluice-guest-*.tar.gz")
    return bundle


def build_packages(of: Release, wheel: Path, bundle: Path) -> list[Path]:
    """deb and rpm of hosts and of guests."""
    scripts = of.source / "packaging"
    of.run(scripts / "guest_packages.py", "--bundle", bundle, "--dist", of.dist)
    wheels = of.work.parent / "wheels"
    of.run(
        *(scripts / "host_packages.py", "--wheel", wheel, "--wheels", wheels),
        *("--version", of.version, "--dist", of.dist),
    )
    return sorted((*of.dist.glob("*.deb"), *of.dist.glob("*.rpm")))


def build_sbom(of: Release, wheels: Sequence[Path]) -> Path:
    """The bill of materials."""
    target = of.dist / f"sluice-{of.version}.cdx.json"
    command = [str(of.tools), "-m", "ziglang", "version"]
    zig = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    words: list[str | Path] = [of.source / "packaging" / "sbom.py", *wheels]
    words += ["--version", of.version, "--commit", of.commit, "--moment", str(of.moment)]
    of.run(*words, "--zig", zig, "--into", target)
    return target


def build_images(of: Release, bundle: Path) -> Path:
    """The container images, of the packages that are made."""
    [deb] = of.dist.glob("sluice-host_*.deb")
    target = of.dist / f"sluice-images-{of.version}.oci.tar"
    wheels, work = of.work.parent / "kubernetes-wheels", of.work / "images"
    work.mkdir(parents=True, exist_ok=True)
    return release_images.build(of.version, deb, bundle, wheels, of.moment, work, target)


def timed(name: str, make: Callable[[], Made]) -> Made:
    """Does it, and says how long it took."""
    began = time.monotonic()
    made = make()
    print(f"release: {name}: {time.monotonic() - began:.0f} s", flush=True)
    return made


def differences(one: Path, other: Path) -> list[str]:
    """The files that two runs made differently, by their SHA256SUMS."""
    ours, theirs = sums_of(one), sums_of(other)
    return sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))


def sums_of(release: Path) -> dict[str, str]:
    """Name → sum."""
    lines = (release / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def main() -> int:
    """Makes the release; the exit status is 1 where `--against` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, default=CHECKOUT / "dist" / "release")
    parser.add_argument("--work", type=Path, default=CHECKOUT / "build" / "release" / "work")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--without-images", action="store_true", help="no container images, which need root"
    )
    parser.add_argument(
        "--against",
        type=Path,
        help="a release of an earlier run, or the folder of its version's, to compare with",
    )
    arguments = parser.parse_args()
    refuse_dirty()
    if arguments.against:
        # what an earlier run compiled would be the same for sure
        os.environ["CCACHE_DISABLE"] = "1"
    commit = git("rev-parse", "HEAD")
    moment = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    source = arguments.work / "source"
    export(commit, source)
    version = version_of(source)
    refuse_unwritten(source, version)
    if not arguments.without_images:
        release_images.refuse_without_tools()
    dist = release_wheel.fresh(arguments.dist / version)
    tools = release_wheel.make_tools(arguments.work.parent / "tools")
    folders = (source, arguments.work, dist, tools)
    of = Release(version, commit, moment, *folders, arguments.jobs, not arguments.without_images)
    build(of)
    for line in (dist / "SHA256SUMS").read_text().splitlines():
        print(line)
    print(f"release: {version} of {commit[:12]} is in {dist}")
    if arguments.against:
        other = arguments.against
        other = other if (other / "SHA256SUMS").exists() else other / version
        wrong = differences(dist, other)
        print(f"release: differ from {other}: {', '.join(wrong) or 'none'}")
        return 1 if wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
