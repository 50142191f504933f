# SPDX-License-Identifier: Apache-2.0
"""Builds dist/sluice-guest_*.deb and dist/sluice-guest-*.rpm out of the guest bundle.

Called by `make guest-packages`. It unpacks dist/sluice-guest-x86_64.tar.gz and lays its files where
packages put them, so that the three hold the same bytes; packaging/guest/packages has what only
packages have. /etc/sluice/client.conf is no file of theirs: the scripts put a first one there where
none is, so that neither an upgrade nor a file that was there before asks anybody anything, although
`sluice enrol` writes to it. It promises that the same bundle and the same date give the same deb,
and that both packages have the same files, modes and scripts. Needs dpkg-deb and rpmbuild (Debian:
rpm).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PARTS = CHECKOUT / "packaging" / "guest" / "packages"
BUNDLE = CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz"
PREFIX = "/opt/sluice"
RELEASE = "1"
UNITS = ("sluice-enrol.service", "sluice-enrol.timer")
#: Where the deb keeps what the policy wants of it.
DOCUMENTS = "usr/share/doc/sluice-guest"
LICENSES = "usr/share/licenses/sluice-guest"
OVERRIDES = """\
# A third party's package: the libraries have NVIDIA's names and must not be where the loader looks
# by itself (libexec/sluice-loader decides that), so everything is below /opt.
sluice-guest: dir-or-file-in-opt
# They stand in for libraries of NVIDIA's; both packages and the bundle have the same modes, and rpm
# wants libraries to be executable. Some only say that they are not available, and need nothing.
sluice-guest: shared-library-is-executable
sluice-guest: library-not-linked-against-libc
# From a file of /sys, not from the terminal.
sluice-guest: read-in-maintainer-script
# The same scripts serve the rpm, and machines without systemd.
sluice-guest: maintainer-script-calls-systemctl
sluice-guest: maintscript-calls-ldconfig
# The project has no address and files no bugs with Debian.
sluice-guest: bogus-mail-host
sluice-guest: bogus-mail-host-in-debian-changelog
sluice-guest: initial-upload-closes-no-bugs
sluice-guest: no-manual-page
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: sluice

Files: *
Copyright: the authors of Sluice
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
"""


def lay_tree(bundle: Path, tree: Path, kind: str) -> str:
    """Lays the bundle's files as a package has them; returns the version."""
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(bundle) as archive:
            archive.extractall(unpacked, filter="tar")
        source = Path(unpacked) / "sluice-guest"
        home = tree / PREFIX[1:]
        home.mkdir(parents=True)
        for name in ("lib", "bin", "libexec", "python"):
            shutil.copytree(source / name, home / name, symlinks=True)
        for name in ("VERSION", "README"):
            shutil.copy(source / name, home / name)
        (home / "packaged").write_text(f"{kind}\n")
        link(tree / "usr/bin/sluice", f"{PREFIX}/bin/sluice")
        (tree / "etc/sluice").mkdir(parents=True)
        for name in UNITS:
            write(tree / "usr/lib/systemd/system" / name, placed(source / "etc" / name))
        write(tree / "usr/lib/udev/rules.d/70-sluice.rules", placed(source / "etc/70-sluice.rules"))
        write(home / "client.conf.example", (source / "etc/client.conf").read_text())
        if kind == "deb":
            write(tree / DOCUMENTS / "copyright", COPYRIGHT)
        else:
            write(tree / LICENSES / "LICENSE", (source / "LICENSE").read_text())
        for path in tree.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        return package_version((source / "VERSION").read_text().strip())


def package_version(version: str) -> str:
    """A version as dpkg and rpm order it: 0.2.0.dev0 is 0.2.0~dev0, which is before 0.2.0."""
    return re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"~\1\2", version)


def placed(path: Path) -> str:
    """A file of the bundle with the place of this installation in it."""
    return path.read_text().replace("@PREFIX@", PREFIX)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """A file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def link(path: Path, target: str) -> None:
    """A link and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def summary_and_description() -> tuple[str, str]:
    """The first line of the text that both packages have, and the rest of it."""
    first, _, rest = (PARTS / "description").read_text().strip().partition("\n")
    return first, rest


def build_deb(tree: Path, version: str, moment: int, dist: Path) -> Path:
    """The deb of the tree."""
    summary, description = summary_and_description()
    size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024 + 1
    control = (PARTS / "control.in").read_text()
    for name, text in {
        "VERSION": f"{version}-{RELEASE}",
        "SIZE": str(size),
        "SUMMARY": summary,
        "DESCRIPTION": textwrap.fill(description, 78, initial_indent=" ", subsequent_indent=" "),
    }.items():
        control = control.replace(f"@{name}@", text)
    write(tree / "usr/share/lintian/overrides/sluice-guest", OVERRIDES)
    write_changelog(tree, version, moment)
    meta = tree / "DEBIAN"
    write(meta / "control", control)
    write(meta / "md5sums", md5sums(tree))
    post = (PARTS / "post_install.sh").read_text()
    write(
        meta / "postinst",
        '#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n'
        f'FIRST=no; [ -n "$2" ] || FIRST=yes\n{post}',
        0o755,
    )
    remove = (PARTS / "pre_remove.sh").read_text()
    write(meta / "prerm", f'#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n{remove}', 0o755)
    write(meta / "postrm", (PARTS / "deb_postrm.sh").read_text(), 0o755)
    target = dist / f"sluice-guest_{version}-{RELEASE}_amd64.deb"
    for path in sorted(tree.rglob("*")):
        os.utime(path, (moment, moment), follow_symlinks=False)
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(target), at=moment)
    shutil.rmtree(meta)
    return target


def write_changelog(tree: Path, version: str, moment: int) -> None:
    """The one that Debian's policy wants; what changed is in the repository's history."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(moment))
    text = (
        f"sluice-guest ({version}-{RELEASE}) unstable; urgency=medium\n\n"
        f"  * The guest runtime of Sluice {version}.\n\n -- Sluice <sluice@localhost>  {date}\n"
    )
    path = tree / DOCUMENTS / "changelog.Debian.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    path.chmod(0o644)


def md5sums(tree: Path) -> str:
    """What `dpkg --verify` compares files with."""
    lines = []
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if path.is_file() and not path.is_symlink() and name.partition("/")[0] != "DEBIAN":
            lines.append(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {name}\n")
    return "".join(lines)


def build_rpm(tree: Path, version: str, moment: int, dist: Path, top: Path) -> Path:
    """The rpm of the tree; `top` is a folder to build in."""
    summary, description = summary_and_description()
    spec = (PARTS / "sluice-guest.spec.in").read_text()
    for name, text in {
        "VERSION": version,
        "RELEASE": RELEASE,
        "SUMMARY": summary,
        "DESCRIPTION": textwrap.fill(description, 78),
        "TREE": str(tree),
        "POST": (PARTS / "post_install.sh").read_text().replace("%", "%%"),
        "PREUN": (PARTS / "pre_remove.sh").read_text().replace("%", "%%"),
        "FILES": rpm_files(tree),
    }.items():
        spec = spec.replace(f"@{name}@", text)
    write(top / "sluice-guest.spec", spec)
    for path in sorted(tree.rglob("*")):
        os.utime(path, (moment, moment), follow_symlinks=False)
    defines = {
        "_topdir": str(top),
        "_rpmdir": str(top / "out"),
        "_binary_payload": "w9.xzdio",  # every rpm since 4.6 reads it
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
        str(top / "sluice-guest.spec"),
        at=moment,
    )
    [made] = (top / "out").rglob("*.rpm")
    return Path(shutil.copy(made, dist / f"sluice-guest-{version}-{RELEASE}.x86_64.rpm"))


def rpm_files(tree: Path) -> str:
    """Every file with its mode and owner; folders that are ours alone."""
    ours = (PREFIX, "/etc/sluice", f"/{DOCUMENTS}", f"/{LICENSES}")
    lines = ["%defattr(-,root,root,-)"]
    for path in sorted(tree.rglob("*")):
        name = f"/{path.relative_to(tree)}"
        if path.is_dir() and not path.is_symlink():
            if name.startswith(ours):
                lines.append(f"%dir {name}")
        elif name.startswith(f"/{DOCUMENTS}"):
            lines.append(f"%doc {name}")
        elif name.startswith(f"/{LICENSES}"):
            lines.append(f"%license {name}")
        else:
            lines.append(name)
    return "\n".join(lines)


def run(*words: str, at: int) -> None:
    """Runs a tool; ends the program with what it said when it fails."""
    if shutil.which(words[0]) is None:
        sys.exit(f"guest packages: {words[0]} is missing: apt-get install dpkg-dev rpm")
    environment = dict(os.environ, SOURCE_DATE_EPOCH=str(at))
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"guest packages: {words[0]} failed: {(done.stdout + done.stderr)[-3000:]}")


def date_of_sources() -> int:
    """SOURCE_DATE_EPOCH, else the last commit's date, else now."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else int(time.time())


def main() -> None:
    """Builds both packages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--bundle", type=Path, default=Path(os.environ.get("SLUICE_GUEST_BUNDLE", BUNDLE))
    )
    parser.add_argument("--dist", type=Path, default=CHECKOUT / "dist")
    arguments = parser.parse_args()
    if not arguments.bundle.exists():
        sys.exit(f"guest packages: {arguments.bundle} is missing: make guest-bundle")
    arguments.dist.mkdir(parents=True, exist_ok=True)
    moment = date_of_sources()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("deb", "rpm"):
            tree = Path(folder) / kind
            version = lay_tree(arguments.bundle, tree, kind)
            if kind == "deb":
                made = build_deb(tree, version, moment, arguments.dist)
            else:
                top = Path(folder) / "rpmbuild"
                top.mkdir()
                made = build_rpm(tree, version, moment, arguments.dist, top)
            print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
