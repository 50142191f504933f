# SPDX-License-Identifier: Apache-2.0
"""Builds sluice-host_*.deb and sluice-host-*.rpm: what a host of a pool installs.

Called by release.py with the wheel of a release, and by `make host-packages` with --built, which
packs a build for this machine. Everything is below /opt/sluice-host, a Python environment without a
Python: the system's 3.11, 3.12 or 3.13 is started through a link beside its pyvenv.cfg, so that an
upgrade of the distribution to the next of them needs nothing of us, and every file is one that dpkg
and rpm know. The libraries in it are those of packaging/release/host.txt. It promises what
package_formats.py promises, and that both packages have the same files, modes and scripts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import release_wheel
from host_site import PYTHONS, download, lay
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

NAME = "sluice-host"
HOST = CHECKOUT / "packaging" / "host"
PARTS = HOST / "packages"
PREFIX = "/opt/sluice-host"
COMMANDS = {
    "sluice": "sluice.cli",
    "sluice-controller": "sluice.controller",
    "sluice-server": "sluice.server",
    "sluice-vsphere": "sluice.hypervisor.vsphere",
}
CONFIG_FILES = ("/etc/sluice/controller.conf", "/etc/sluice/server.conf")
PYVENV = "home = /usr/bin\ninclude-system-site-packages = false\n"
OVERRIDES = """\
# A third party's package, which brings its Python packages along: everything is below /opt.
sluice-host: dir-or-file-in-opt
sluice-host: dir-or-file-in-etc-opt
sluice-host: shared-library-is-executable
sluice-host: library-not-linked-against-libc
sluice-host: unstripped-binary-or-object
sluice-host: embedded-library
sluice-host: embedded-javascript-library
# The same scripts serve the rpm, and machines without systemd.
sluice-host: maintainer-script-calls-systemctl
# The project has no address and files no bugs with Debian.
sluice-host: bogus-mail-host
sluice-host: bogus-mail-host-in-debian-changelog
sluice-host: initial-upload-closes-no-bugs
sluice-host: no-manual-page
"""
UNITS_CODE = """
import sys
from pathlib import Path
from sluice.cli.units import SERVICES, render_units
texts = render_units({n: f"%s/bin/{n}" for n in SERVICES}, Path("/etc/sluice"), "sluice-worker")
for name, text in texts.items():
    Path(sys.argv[1], name).write_text(text)
"""


def lay_tree(tree: Path, wheel: Path, wheels: Sequence[Path]) -> None:
    """Lays the files as both packages have them."""
    home = tree / PREFIX[1:]
    first, *others = PYTHONS
    site = home / "lib" / f"python{first}" / "site-packages"
    lay([wheel, *wheels], site)
    for python in others:
        link(home / "lib" / f"python{python}", f"python{first}")
    for python in PYTHONS:
        link(home / "bin" / f"python{python}", f"/usr/bin/python{python}")
    write(home / "pyvenv.cfg", PYVENV)
    write(site / "sluice_host_paths.py", (HOST / "sluice_host_paths.py").read_text())
    write(site / "sluice-host.pth", "import sluice_host_paths\n")
    launcher = (HOST / "sluice-launcher").read_text()
    for name, module in COMMANDS.items():
        text = launcher.replace("@PROGRAM@", name).replace("@MODULE@", module)
        names = [f"python{python}" for python in reversed(PYTHONS)]
        text = text.replace("@PYTHONS@", " ".join(names)).replace("@PATTERN@", " | ".join(names))
        write(home / "bin" / name, text, 0o755)
        link(tree / "usr/bin" / name, f"{PREFIX}/bin/{name}")
    units = tree / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    command = [sys.executable, "-B", "-c", UNITS_CODE % PREFIX, str(units)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(site)})
    for name in CONFIG_FILES:
        write(tree / name[1:], (HOST / Path(name).name).read_text())
    documents = tree / f"usr/share/doc/{NAME}"
    for name in ("configuration.md", "deployment.md", "releases.md"):
        write(documents / name, (CHECKOUT / "docs" / name).read_text())
    write(documents / "copyright", COPYRIGHT)
    write(tree / f"usr/share/licenses/{NAME}/LICENSE", (CHECKOUT / "LICENSE").read_text())
    open_folders(tree)


def made_of(version: str, moment: int, compression: str) -> Made:
    """What the packages are besides the tree."""
    before = (PARTS / "pre_install.sh").read_text()
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
            "preinst": f"#!/bin/sh\nset -e\n{before}",
            "postinst": '#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n'
            f'FIRST=no; [ -n "$2" ] || FIRST=yes\n{post}',
            "prerm": f'#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n{remove}',
            "postrm": (PARTS / "deb_postrm.sh").read_text(),
        },
        spec={"PRE": before, "POST": post, "PREUN": remove},
        config_files=CONFIG_FILES,
        compression=compression,
    )


def build(
    wheel: Path,
    wheels: Sequence[Path],
    version: str,
    moment: int,
    dist: Path,
    compression: str = "xz",
    kinds: Sequence[str] = ("deb", "rpm"),
) -> list[Path]:
    """The packages."""
    dist.mkdir(parents=True, exist_ok=True)
    of = made_of(package_version(version), moment, compression)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        both = Path(folder) / "both"
        lay_tree(both, wheel, wheels)
        for kind in kinds:
            tree = Path(folder) / kind
            shutil.copytree(both, tree, symlinks=True, copy_function=os.link)
            write(tree / PREFIX[1:] / "packaged", f"{kind}\n")
            if kind == "deb":
                found.append(build_deb(of, tree, dist))
            else:
                top = Path(folder) / "rpmbuild"
                top.mkdir()
                found.append(build_rpm(of, tree, dist, top))
    return found


def main() -> None:
    """Packs a release's wheel, or a build for this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--built", type=Path, default=CHECKOUT / "build" / "native")
    parser.add_argument("--work", type=Path, default=CHECKOUT / "build" / "release")
    parser.add_argument("--dist", type=Path, default=CHECKOUT / "dist")
    parser.add_argument("--kinds", nargs="+", default=("deb", "rpm"), choices=("deb", "rpm"))
    parser.add_argument("--wheel", type=Path, help="a release's wheel, in the place of --built")
    parser.add_argument("--wheels", type=Path, help="the folder of what it needs")
    parser.add_argument("--version", default="", help="another version, for tests of upgrades")
    arguments = parser.parse_args()
    moment = date_of_sources()
    if arguments.wheel:
        wheels = download(arguments.wheels)
        build(arguments.wheel, wheels, arguments.version, moment, arguments.dist)
        return
    tools = release_wheel.make_tools(arguments.work / "tools")
    work = arguments.work / "built"
    wheel = release_wheel.pack_built(CHECKOUT, tools, work, moment, arguments.built)
    version = arguments.version or wheel.name.split("-")[1]
    wheels = download(arguments.work / "wheels")
    for path in build(wheel, wheels, version, moment, arguments.dist, "none", arguments.kinds):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB), for this machine's system")


if __name__ == "__main__":
    main()
