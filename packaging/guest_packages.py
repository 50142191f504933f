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
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from package_formats import (
    CHECKOUT,
    COPYRIGHT,
    Made,
    build_deb,
    build_rpm,
    date_of_sources,
    link,
    open_folders,
    package_version,
    write,
)

NAME = "sluice-guest"
PARTS = CHECKOUT / "packaging" / "guest" / "packages"
BUNDLE = CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz"
PREFIX = "/opt/sluice"
UNITS = ("sluice-enrol.service", "sluice-enrol.timer")
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
            write(tree / f"usr/share/doc/{NAME}/copyright", COPYRIGHT)
        else:
            write(tree / f"usr/share/licenses/{NAME}/LICENSE", (source / "LICENSE").read_text())
        open_folders(tree)
        return package_version((source / "VERSION").read_text().strip())


def placed(path: Path) -> str:
    """A file of the bundle with the place of this installation in it."""
    return path.read_text().replace("@PREFIX@", PREFIX)


def made_of(version: str, moment: int) -> Made:
    """What the packages are besides the tree."""
    post = (PARTS / "post_install.sh").read_text()
    remove = (PARTS / "pre_remove.sh").read_text()
    return Made(
        NAME,
        PARTS,
        version,
        moment,
        OVERRIDES,
        own_folders=(PREFIX, "/etc/sluice"),
        scripts={
            "postinst": '#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n'
            f'FIRST=no; [ -n "$2" ] || FIRST=yes\n{post}',
            "prerm": f'#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n{remove}',
            "postrm": (PARTS / "deb_postrm.sh").read_text(),
        },
        spec={"POST": post, "PREUN": remove},
    )


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
            of = made_of(version, moment)
            if kind == "deb":
                made = build_deb(of, tree, arguments.dist)
            else:
                top = Path(folder) / "rpmbuild"
                top.mkdir()
                made = build_rpm(of, tree, arguments.dist, top)
            print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
