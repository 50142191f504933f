# SPDX-License-Identifier: Apache-2.0
"""Makes a deb and an rpm of a tree of files that is ready.

Used by guest_packages.py and host_packages.py, which lay the trees and say what only their package
has (Made). It promises that the same tree and the same date give the same deb and the same rpm, and
that nothing of the build machine is in them. Needs dpkg-deb and rpmbuild (Debian: rpm).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RELEASE = "1"
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: sluice

Files: *
Copyright: the authors of Sluice
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
"""


@dataclass(frozen=True)
class Made:
    """What one package is; `parts` has control.in, NAME.spec.in and description."""

    name: str
    parts: Path
    version: str  # as dpkg and rpm order it
    moment: int  # seconds since the epoch: the date of all files
    overrides: str  # of lintian's
    own_folders: Sequence[str]  # absolute; the rpm owns them
    scripts: Mapping[str, str] = field(default_factory=dict)  # the deb's: name → text
    spec: Mapping[str, str] = field(default_factory=dict)  # for @NAME@ in the spec
    config_files: Sequence[str] = ()  # absolute; an upgrade keeps what was changed in them
    compression: str = "xz"  # or none

    @property
    def documents(self) -> str:
        """Where the deb keeps what the policy wants of it."""
        return f"usr/share/doc/{self.name}"

    @property
    def licenses(self) -> str:
        """Where the rpm has its licence."""
        return f"usr/share/licenses/{self.name}"

    def summary_and_description(self) -> tuple[str, str]:
        """The first line of the text that both packages have, and the rest of it."""
        first, _, rest = (self.parts / "description").read_text().strip().partition("\n")
        return first, rest


def package_version(version: str) -> str:
    """A version as dpkg and rpm order it: 0.2.0.dev0 is 0.2.0~dev0, which is before 0.2.0."""
    return re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"~\1\2", version)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """A file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def link(path: Path, target: str) -> None:
    """A link and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def open_folders(tree: Path) -> None:
    """Gives every folder of a tree the mode that packages give it."""
    for path in tree.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def build_deb(made: Made, tree: Path, dist: Path) -> Path:
    """The deb of the tree."""
    summary, description = made.summary_and_description()
    size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024 + 1
    control = (made.parts / "control.in").read_text()
    for name, text in {
        "VERSION": f"{made.version}-{RELEASE}",
        "SIZE": str(size),
        "SUMMARY": summary,
        "DESCRIPTION": textwrap.fill(description, 78, initial_indent=" ", subsequent_indent=" "),
    }.items():
        control = control.replace(f"@{name}@", text)
    write(tree / "usr/share/lintian/overrides" / made.name, made.overrides)
    write_changelog(made, tree)
    meta = tree / "DEBIAN"
    write(meta / "control", control)
    write(meta / "md5sums", md5sums(tree, made.config_files))
    if made.config_files:
        write(meta / "conffiles", "".join(f"{name}\n" for name in made.config_files))
    for name, text in made.scripts.items():
        write(meta / name, text, 0o755)
    target = dist / f"{made.name}_{made.version}-{RELEASE}_amd64.deb"
    date(tree, made.moment)
    pack = f"-Z{made.compression}"
    run("dpkg-deb", "--root-owner-group", pack, "--build", str(tree), str(target), at=made.moment)
    shutil.rmtree(meta)
    return target


def write_changelog(made: Made, tree: Path) -> None:
    """The one that Debian's policy wants; what changed is in the repository's history."""
    when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(made.moment))
    what = "guest runtime" if made.name == "sluice-guest" else "host's part"
    text = (
        f"{made.name} ({made.version}-{RELEASE}) unstable; urgency=medium\n\n"
        f"  * The {what} of Sluice {made.version}.\n\n -- Sluice <sluice@localhost>  {when}\n"
    )
    path = tree / made.documents / "changelog.Debian.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    path.chmod(0o644)


def md5sums(tree: Path, config_files: Sequence[str] = ()) -> str:
    """What `dpkg --verify` compares files with."""
    lines = []
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if not path.is_file() or path.is_symlink() or f"/{name}" in config_files:
            continue
        if name.partition("/")[0] != "DEBIAN":
            lines.append(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {name}\n")
    return "".join(lines)


def build_rpm(made: Made, tree: Path, dist: Path, top: Path) -> Path:
    """The rpm of the tree; `top` is a folder to build in."""
    summary, description = made.summary_and_description()
    spec = (made.parts / f"{made.name}.spec.in").read_text()
    for name, text in {
        "VERSION": made.version,
        "RELEASE": RELEASE,
        "SUMMARY": summary,
        "DESCRIPTION": textwrap.fill(description, 78),
        "TREE": str(tree),
        "FILES": rpm_files(made, tree),
        **{name: text.replace("%", "%%") for name, text in made.spec.items()},
    }.items():
        spec = spec.replace(f"@{name}@", text)
    write(top / f"{made.name}.spec", spec)
    date(tree, made.moment)
    packing = {"xz": "w9.xzdio", "none": "w.ufdio"}
    defines = {
        "_topdir": str(top),
        "_rpmdir": str(top / "out"),
        "_binary_payload": packing[made.compression],  # every rpm since 4.6 reads it
        "_source_filedigest_algorithm": "8",
        "_binary_filedigest_algorithm": "8",
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        "_buildhost": "localhost",
        "_dbpath": str(top / "db"),
    }
    words = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
    run(
        *("rpmbuild", "-bb", "--quiet", "--target", "x86_64-linux", *words),
        str(top / f"{made.name}.spec"),
        at=made.moment,
    )
    [built] = (top / "out").rglob("*.rpm")
    name = f"{made.name}-{made.version}-{RELEASE}.x86_64.rpm"
    return Path(shutil.copy(built, dist / name))


def rpm_files(made: Made, tree: Path) -> str:
    """Every file with its mode and owner; folders that are ours alone."""
    ours = (*made.own_folders, f"/{made.documents}", f"/{made.licenses}")
    lines = ["%defattr(-,root,root,-)"]
    for path in sorted(tree.rglob("*")):
        name = f"/{path.relative_to(tree)}"
        quoted = f'"{name}"' if " " in name else name
        if path.is_dir() and not path.is_symlink():
            if name.startswith(ours):
                lines.append(f"%dir {quoted}")
        elif name in made.config_files:
            lines.append(f"%config(noreplace) {quoted}")
        elif name.startswith(f"/{made.documents}"):
            lines.append(f"%doc {quoted}")
        elif name.startswith(f"/{made.licenses}"):
            lines.append(f"%license {quoted}")
        else:
            lines.append(quoted)
    return "\n".join(lines)


def date(tree: Path, moment: int) -> None:
    """Gives every file of a tree the same date."""
    for path in sorted(tree.rglob("*")):
        os.utime(path, (moment, moment), follow_symlinks=False)


def run(*words: str, at: int) -> None:
    """Runs a tool; ends the program with what it said when it fails."""
    if shutil.which(words[0]) is None:
        sys.exit(f"packages: {words[0]} is missing: apt-get install dpkg-dev rpm")
    environment = dict(os.environ, SOURCE_DATE_EPOCH=str(at))
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"packages: {words[0]} failed: {(done.stdout + done.stderr)[-3000:]}")


def date_of_sources() -> int:
    """SOURCE_DATE_EPOCH, else the last commit's date, else now."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else int(time.time())
