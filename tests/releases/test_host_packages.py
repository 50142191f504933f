# SPDX-License-Identifier: Apache-2.0
"""The host's deb and rpm in real roots: installed, `sluice init`, a pool that runs a CUDA program;
upgraded under a session, removed, purged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from control_plane import wait_for

from tests.guest_images.program import SAYS

from .conftest import MakeRoot, Packages
from .host_root import ADMIN, BY_TCP, INIT, HostRoot, install_deb, python_of


def rpm(root: HostRoot, words: str) -> str:
    """This machine's rpm on the root, whose scripts run there; on Debian's by force."""
    force = [] if root.path("/etc/redhat-release").exists() else ["--force-debian", "--nodeps"]
    command = ["rpm", *force, "--root", str(root.folder), *words.split()]
    done = subprocess.run(
        ["unshare", "--mount", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def assert_a_pool_comes_of_it(root: HostRoot) -> None:
    """One command, the services, a program over shared memory and over TCP; and again."""
    said = root.check(INIT)
    assert "sluice-controller --config /etc/sluice/controller.conf" in said
    root.serve()
    nodes = root.check(f"sluice {ADMIN} gpu list")
    assert "host-1" in nodes
    for start in ("SLUICE_CHANNEL=shm", BY_TCP):
        done = root.run(f"{start} SLUICE_GMEM=64 sluice run /add")
        assert done.stdout.strip() == SAYS, done.stderr + root.said()
    assert "nothing was changed" in root.check("sluice init")
    assert "nothing was changed" in root.check(INIT)
    wait_for(lambda: "no grants" in root.check(f"sluice {ADMIN} grant list").lower())


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_deb_makes_a_host_of_a_pool(
    make_root: MakeRoot, packages: Packages, suite: str
) -> None:
    root = make_root(suite)
    said = install_deb(root, packages.deb)
    assert "`sluice init` makes this host" in said
    assert root.check("dpkg --verify sluice-host") == ""
    for account in ("sluice-worker", "sluice-controller"):
        assert root.check(f"getent passwd {account}")
    launched = root.check("sh -x /usr/bin/sluice --help 2>&1 | grep exec")
    assert f"/opt/sluice-host/bin/python{python_of(root)}" in launched
    for service in ("controller", "server", "vsphere"):
        unit = root.path(f"/usr/lib/systemd/system/sluice-{service}.service").read_text()
        assert f"ExecStart=/opt/sluice-host/bin/sluice-{service} --config" in unit
    assert_a_pool_comes_of_it(root)
    # nothing was written beside what dpkg knows
    changed = root.run("dpkg --verify sluice-host").stdout.splitlines()
    assert [line.split()[1:] for line in changed] == [
        ["c", f"/etc/sluice/{name}.conf"] for name in ("controller", "server")
    ]
    for service in ("server", "controller"):
        root.stop_service(service)
    root.check("apt-get remove -y sluice-host")
    assert not root.path("/opt/sluice-host").exists()
    assert root.path("/var/lib/sluice/controller.db").exists()
    assert root.path("/etc/sluice/server.conf").exists()
    root.check("apt-get purge -y sluice-host")
    for path in ("/etc/sluice", "/var/lib/sluice", "/var/lib/sluice-server", "/var/log/sluice"):
        assert not root.path(path).exists(), path


@pytest.mark.parametrize("suite", ["bookworm", "rhel"])
def test_the_rpm_makes_a_host_of_a_pool(
    make_root: MakeRoot, packages: Packages, suite: str
) -> None:
    root = make_root(suite)
    rpm(root, f"-i {packages.rpm}")
    assert_a_pool_comes_of_it(root)
    for service in ("server", "controller"):
        root.stop_service(service)
    rpm(root, "-e sluice-host")
    assert not root.path("/opt/sluice-host").exists()
    assert root.path("/var/lib/sluice/controller.db").exists()
    assert "token_file" in root.path("/etc/sluice/server.conf.rpmsave").read_text()


def test_an_upgrade_keeps_settings_and_running_sessions(
    make_root: MakeRoot, packages: Packages, next_deb: Path
) -> None:
    root = make_root("bookworm")
    install_deb(root, packages.deb)
    root.check(INIT)
    conf = root.path("/etc/sluice/server.conf")
    conf.write_text(conf.read_text().replace("[server]\n", "[server]\nvgpu_count = 8 ; mine\n"))
    settings = conf.read_text()
    root.serve()
    program = root.holder()
    assert program.work() == 0
    said = install_deb(root, next_deb)  # which nobody answers
    assert "99.0.0" in root.check("dpkg-query -W sluice-host"), said
    assert conf.read_text() == settings
    assert program.work() == 0, "while the new files are there and the old services run"
    for service in ("controller", "server"):
        root.stop_service(service)
        root.start_service(service)
    root.wait_until_up()
    assert "adopted 1 session" in root.output("server").read_text()
    assert program.work() == 0, "after the services were restarted"
    assert "nothing was changed" in root.check(INIT)
    assert root.check("SLUICE_GMEM=64 sluice run /add").strip() == SAYS
    program.process.kill()


def test_both_packages_have_the_same_files(packages: Packages, tmp_path: Path) -> None:
    trees = []
    unpack = {"deb": ["dpkg-deb", "--fsys-tarfile"], "rpm": ["rpm2cpio"]}
    into = {"deb": ["tar", "x"], "rpm": ["cpio", "-id", "--quiet", "--no-absolute-filenames"]}
    of_one = (
        "usr/share/lintian",
        "usr/share/licenses",
        "usr/share/doc",
        "opt/sluice-host/packaged",
    )
    for kind, path in (("deb", packages.deb), ("rpm", packages.rpm)):
        top = tmp_path / kind
        top.mkdir()
        out = subprocess.run([*unpack[kind], path], capture_output=True, check=True).stdout
        subprocess.run(into[kind], input=out, cwd=top, check=True)
        trees.append(
            {
                name: path.readlink() if path.is_symlink() else (mode(path), path.read_bytes())
                for path in top.rglob("*")
                if not (name := str(path.relative_to(top))).startswith(of_one)
                and (path.is_symlink() or path.is_file())
            }
        )
    assert trees[0].keys() == trees[1].keys()
    assert trees[0] == trees[1]
    assert any(name.endswith("sluice/native/sluice-worker") for name in trees[0])


def mode(path: Path) -> int:
    return path.stat().st_mode


def test_what_the_packages_ask_for(packages: Packages) -> None:
    def of_deb(field: str) -> str:
        command = ["dpkg-deb", "--field", packages.deb, field]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def of_rpm(what: str) -> list[str]:
        command = ["rpm", "-qp", what, packages.rpm]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert "python3.11 | python3.12 | python3.13" in of_deb("Depends")
    assert of_deb("Conflicts") == "sluice-guest"
    assert "glibc >= 2.28" in of_rpm("--requires")
    assert not [line for line in of_rpm("--requires") if "libcuda" in line]
    assert all(line.startswith(("sluice-host", "config(")) for line in of_rpm("--provides"))
    assert of_rpm("--conflicts") == ["sluice-guest"]
    assert of_rpm("--configfiles") == ["/etc/sluice/controller.conf", "/etc/sluice/server.conf"]
