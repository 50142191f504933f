# SPDX-License-Identifier: Apache-2.0
"""The deb and the rpm in real roots: installed, upgraded, removed, beside NVIDIA's driver; and a
CUDA program prints what it must, over TCP and over shared memory."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from control_plane import ControlPlane

from .conftest import MakeRoot, Packages
from .program import SAYS
from .root import Root

LIBRARY = "/opt/sluice/lib/libcuda.so.1"
RPM = "rpm --force-debian --nodeps --root"


def install_deb(root: Root, deb: Path) -> str:
    root.put(deb, f"/tmp/{deb.name}")
    return root.check(f"apt-get install -y /tmp/{deb.name} 2>&1")


def by_tcp(plane: ControlPlane) -> dict[str, str]:
    return {"SLUICE_CONTROLLER": f"127.0.0.1:{plane.rest_port}", "SLUICE_GMEM": "64"}


def rpm(root: Root, words: str) -> str:
    """Runs this machine's rpm on the root: its scripts run there."""
    command = [*RPM.split(), str(root.folder), *words.split()]
    done = subprocess.run(
        ["unshare", "--mount", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


EVERY_START = ("/add", "/opt/sluice/bin/sluice-run /add", "sluice run /add")


def assert_programs_run(
    root: Root, plane: ControlPlane, starts: Sequence[str] = EVERY_START
) -> None:
    """Over TCP, and over shared memory."""
    for start in starts:
        assert root.check(start, **by_tcp(plane)).strip() == SAYS
    root.mounts["/run/sluice"] = plane.socket_path.parent
    for start in starts:
        said = root.check(start, SLUICE_CHANNEL="shm", SLUICE_GMEM="64", SLUICE_CONTROLLER="x:1")
        assert said.strip() == SAYS
    del root.mounts["/run/sluice"]


def test_the_deb_in_debian_12(debian: Root, packages: Packages, plane: ControlPlane) -> None:
    before = debian.files()
    install_deb(debian, packages.deb)
    assert f"=> {LIBRARY}" in debian.check("ldconfig -p | grep 'libcuda.so.1 '")
    assert debian.check("getent group sluice")
    assert debian.check("sluice version").startswith("sluice ")
    wants = debian.path("/etc/systemd/system")
    assert (wants / "multi-user.target.wants/sluice-enrol.service").is_symlink()
    assert (wants / "timers.target.wants/sluice-enrol.timer").is_symlink()
    assert debian.check("dpkg --verify sluice-guest") == ""
    assert_programs_run(debian, plane)
    said = debian.check("sluice check /add", **by_tcp(plane))
    assert said.splitlines()[-1] == "it would work", said
    enrolled = debian.run("/opt/sluice/bin/sluice enrol --group sluice")
    assert enrolled.returncode in (1, 3), enrolled.stderr  # this machine may be somebody's VM
    # and away again
    debian.check("apt-get remove -y sluice-guest")
    left = changed(before, debian)
    assert left == {"etc/sluice", "etc/sluice/client.conf"}, left
    debian.check("apt-get purge -y sluice-guest")
    assert changed(before, debian) == set()
    assert "sluice" not in debian.check("ldconfig -p")


def changed(before: dict[str, str], root: Root) -> set[str]:
    """What is there more, less or otherwise than before; accounts and caches aside."""
    after = root.files()
    # and the logs of the programs that were run
    accounts = ("etc/group", "etc/gshadow", "etc/ld.so.cache", "etc/subgid", "root/.sluice")
    return {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
        and not name.startswith(accounts)
        and "__pycache__" not in name.removeprefix("opt/sluice")
    } - {"opt"}  # dpkg takes an empty folder away


def test_an_upgrade_keeps_what_was_chosen(
    debian: Root, packages: Packages, next_packages: Packages, plane: ControlPlane
) -> None:
    install_deb(debian, packages.deb)
    debian.check("/opt/sluice/libexec/sluice-loader off")
    debian.check("systemctl disable sluice-enrol.timer")
    settings = "; mine\n[client]\ngmem = 64\n"
    debian.path("/etc/sluice/client.conf").write_text(settings)
    said = install_deb(debian, next_packages.deb)
    assert "99.0.0" in debian.check("dpkg-query -W sluice-guest"), said
    assert debian.path("/etc/sluice/client.conf").read_text() == settings
    assert "sluice" not in debian.check("ldconfig -p")
    assert debian.run("systemctl is-enabled sluice-enrol.timer").returncode != 0
    controller = by_tcp(plane)["SLUICE_CONTROLLER"]
    assert debian.check("sluice run /add", SLUICE_CONTROLLER=controller).strip() == SAYS


def test_beside_nvidias_driver_programs_go_on_using_that(
    debian: Root, packages: Packages, plane: ControlPlane, tmp_path: Path
) -> None:
    # FakeNvidiaDriver: a library with its name where it lies
    fake = tmp_path / "libcuda.so.1"
    options = ["-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null"]
    subprocess.run(["cc", *options, "-o", fake], check=True)
    theirs = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    debian.put(fake, theirs)
    debian.check("ldconfig")
    said = install_deb(debian, packages.deb)
    assert "NVIDIA's driver is here too" in said
    assert "sluice-loader on" in said
    cached = debian.check("ldconfig -p | grep 'libcuda.so.1 '")
    assert LIBRARY not in cached
    assert debian.check("sluice run /add", **by_tcp(plane)).strip() == SAYS
    debian.check("/opt/sluice/libexec/sluice-loader on")
    assert LIBRARY in debian.check("ldconfig -p | grep 'libcuda.so.1 ' | head -n 1")
    assert debian.check("/add", **by_tcp(plane)).strip() == SAYS
    said = debian.check("sluice check", **by_tcp(plane))
    assert f"note  libraries: {theirs.replace('/usr', '')} is here too" in said or (
        f"note  libraries: {theirs} is here too" in said
    ), said


def test_the_bundles_installer_leaves_a_package_alone(debian: Root, packages: Packages) -> None:
    debian.put(packages.bundle, "/root/bundle.tar.gz")
    install = "cd /root && tar xzf bundle.tar.gz && sluice-guest/install.sh"
    debian.check(install)
    debian.path("/etc/sluice/client.conf").write_text("; mine\n")
    assert debian.path("/etc/udev/rules.d/70-sluice.rules").exists()
    install_deb(debian, packages.deb)  # takes it over
    assert not debian.path("/etc/udev/rules.d/70-sluice.rules").exists()
    assert not debian.path("/usr/local/bin/sluice").is_symlink()
    assert debian.path("/etc/sluice/client.conf").read_text() == "; mine\n"
    refused = debian.run(install)
    assert refused.returncode == 1
    assert "the package sluice-guest (deb) is installed" in refused.stderr


def test_both_packages_have_the_same_files(packages: Packages, tmp_path: Path) -> None:
    deb = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", packages.deb], capture_output=True, check=True
    ).stdout
    (tmp_path / "deb").mkdir()
    subprocess.run(["tar", "x", "-C", tmp_path / "deb"], input=deb, check=True)
    (tmp_path / "rpm").mkdir()
    rpm_of = subprocess.run(["rpm2cpio", packages.rpm], capture_output=True, check=True).stdout
    subprocess.run(
        ["cpio", "-id", "--quiet", "--no-absolute-filenames"],
        input=rpm_of,
        cwd=tmp_path / "rpm",
        check=True,
    )
    of_one = ("usr/share/lintian", "usr/share/licenses", "usr/share/doc")
    of_one = (*of_one, "opt/sluice/packaged")
    trees = []
    for kind in ("deb", "rpm"):
        top = tmp_path / kind
        trees.append(
            {
                str(path.relative_to(top)): path.read_bytes()
                for path in top.rglob("*")
                if path.is_file()
                and not path.is_symlink()
                and not str(path.relative_to(top)).startswith(of_one)
            }
        )
    assert trees[0] == trees[1]
    assert "opt/sluice/lib/libcuda.so.1" in trees[0]


def test_the_rpm_provides_nothing_of_nvidias(packages: Packages) -> None:
    def ask(what: str) -> str:
        command = ["rpm", "-qp", what, packages.rpm]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert all(line.startswith("sluice-guest") for line in ask("--provides").splitlines())
    assert "glibc >= 2.28" in ask("--requires")
    assert "libcuda" not in ask("--requires")


@pytest.mark.parametrize("suite", ["bullseye", "oldest"])
def test_the_rpm_and_the_bundle_with_an_old_glibc(
    make_root: MakeRoot,
    packages: Packages,
    next_packages: Packages,
    plane: ControlPlane,
    suite: str,
) -> None:
    root = make_root(suite)
    rpm(root, f"-i {packages.rpm}")
    assert_programs_run(root, plane, ["/add"])
    root.check("/opt/sluice/libexec/sluice-loader off")
    root.path("/etc/sluice/client.conf").write_text("[client]\ngmem = 64\n")
    rpm(root, f"-U {next_packages.rpm}")
    assert "99.0.0" in root.path("/opt/sluice/VERSION").read_text()
    assert "gmem" in root.path("/etc/sluice/client.conf").read_text()
    assert not root.path("/etc/ld.so.conf.d/00-sluice.conf").exists()
    rpm(root, "-e sluice-guest")
    assert not root.path("/opt/sluice").exists()
    # the bundle in the same root
    root.put(packages.bundle, "/root/bundle.tar.gz")
    root.check("cd /root && tar xzf bundle.tar.gz && sluice-guest/install.sh")
    assert_programs_run(root, plane, ["/add"])


@pytest.mark.parametrize("suite", ["bullseye", "oldest"])
def test_sluice_run_with_an_old_glibc(
    make_root: MakeRoot, packages: Packages, plane: ControlPlane, suite: str
) -> None:
    root = make_root(suite)
    rpm(root, f"-i {packages.rpm}")
    starts = ["/opt/sluice/bin/sluice-run /add"]
    # the oldest root need not have Python: programs do not need it
    if root.run("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'").returncode == 0:
        starts.append("sluice run /add")
    assert_programs_run(root, plane, starts)
