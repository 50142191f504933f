# SPDX-License-Identifier: Apache-2.0
"""A package whose files are gone or changed is named, with what brings them back; what an
administrator changes and what images leave out is no fault."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.guest_runtime.findings import Finding, Verdict
from sluice.guest_runtime.package_check import changed_files, check_package, package_home
from tests.support.findings_of import only_bad

DPKG = """\
??5?????? c /etc/sluice/server.conf
missing     /usr/share/doc/sluice-host/copyright
"""
RPM = """\
S.5....T.  c /etc/sluice/controller.conf
.......T.    /opt/sluice-host/pyvenv.cfg
missing   d /usr/share/doc/sluice-host/releases.md
"""
WORKER = "/opt/sluice-host/lib/python3.11/site-packages/sluice/native/sluice-worker"


def home(folder: Path, name: str, kind: str) -> Path:
    made = folder / name
    made.mkdir()
    (made / "packaged").write_text(f"{kind}\n")
    return made


def test_who_is_of_no_package_is_not_asked(tmp_path: Path) -> None:
    assert package_home() is None
    made = home(tmp_path, "sluice-host", "deb")
    assert package_home(made / "lib/python3.11/site-packages/sluice/x.py") == made
    assert package_home(home(tmp_path, "other", "deb") / "x.py") is None


@pytest.mark.parametrize("said", [DPKG, RPM, ""])
def test_what_may_differ_is_no_fault(said: str) -> None:
    assert changed_files(said) == []


@pytest.mark.parametrize(
    ("name", "kind", "again"),
    [
        ("sluice-host", "deb", "apt-get install --reinstall sluice-host"),
        ("sluice", "rpm", "dnf reinstall sluice-guest"),
    ],
)
def test_what_is_gone_or_changed_is_named(tmp_path: Path, name: str, kind: str, again: str) -> None:
    asked: list[list[str]] = []

    def ask(command: list[str]) -> str:
        asked.append(command)
        return f"{DPKG}{RPM}missing     {WORKER}\n??5??????   /opt/sluice/bin/sluice\n"

    found = check_package(home(tmp_path, name, kind), ask)
    only_bad(found, WORKER, "/opt/sluice/bin/sluice", again)
    assert asked[0][-1] == again.split()[-1]


def test_what_cannot_be_asked_stops_nothing(tmp_path: Path) -> None:
    def ask(command: list[str]) -> str:
        raise FileNotFoundError(2, "No such file or directory", command[0])

    def verdicts(found: list[Finding]) -> list[Verdict]:
        return [each.verdict for each in found]

    assert verdicts(check_package(home(tmp_path, "sluice", "deb"), ask)) == [Verdict.NOTE]
    assert verdicts(check_package(home(tmp_path, "sluice-host", "\x1b[2J"))) == [Verdict.NOTE]


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg here")
def test_dpkg_says_it_so_for_real(tmp_path: Path) -> None:
    """A package of this test, in a database of its own."""
    tree, root = tmp_path / "tree", tmp_path / "root"
    for name in ("opt/x/kept", "opt/x/gone", "opt/x/changed"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("as it came\n")
    (tree / "DEBIAN").mkdir()
    control = "Package: sluice-test\nVersion: 1\nArchitecture: all\nMaintainer: t <t@localhost>\n"
    (tree / "DEBIAN/control").write_text(f"{control}Description: for a test\n")
    sums = subprocess.run(
        ["sh", "-c", "md5sum opt/x/*"], cwd=tree, check=True, capture_output=True, text=True
    ).stdout
    (tree / "DEBIAN/md5sums").write_text(sums)
    deb = tmp_path / "t.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, deb], check=True)
    for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates"):
        (root / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    own = ["dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless"]
    subprocess.run([*own, "--log=/dev/null", "-i", deb], check=True)
    (root / "opt/x/gone").unlink()
    (root / "opt/x/changed").write_text("otherwise\n")
    said = subprocess.run(
        [*own, "--verify", "sluice-test"], capture_output=True, text=True, check=False
    )
    assert {Path(name).name for name in changed_files(said.stdout)} == {"gone", "changed"}
