# SPDX-License-Identifier: Apache-2.0
"""What the rpms ask for is there in RHEL 8 to 10 under the names that they use: no root of these is
at hand everywhere (SLUICE_RHEL_ROOT), and Debian's rpm installs them without looking."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from .conftest import RELEASE, Packages

CHECKOUT = Path(__file__).resolve().parents[2]
#: Packages of RHEL's BaseOS and AppStream; one of several in brackets is enough.
PACKAGES = {"glibc", "python3", "python3.11", "python3.12", "openssl-libs", "python3-libvirt"}
PACKAGES |= {"python39"}  # of RHEL 8
ELSEWHERE = {"python3.13"}  # of kin with newer Pythons; only ever beside others
#: Files by which a dependency may go (repositories' primary lists have those of bin and sbin), and
#: the packages that have them.
FILES = {
    "/bin/sh": "bash",
    "/usr/bin/find": "findutils",
    "/usr/bin/getent": "glibc-common",
    "/usr/bin/grep": "grep",
    "/usr/bin/sed": "sed",
    "/usr/sbin/groupadd": "shadow-utils",
    "/usr/sbin/useradd": "shadow-utils",
}
#: RHEL 8's rpm; RHEL 9 has 4.16.
OLDEST_RPM = (4, 14)


def guest_rpm() -> Path:
    folder = Path(os.environ.get(RELEASE) or CHECKOUT / "dist")
    found = sorted(folder.glob("sluice-guest-*.rpm"))
    if not found:
        pytest.skip("no sluice-guest rpm here (make guest-packages)")
    return found[-1]


@pytest.fixture(params=["host", "guest"])
def rpm(request: pytest.FixtureRequest, packages: Packages) -> Path:
    return packages.rpm if request.param == "host" else guest_rpm()


def ask(rpm: Path, what: str) -> str:
    done = subprocess.run(["rpm", "-qp", what, rpm], capture_output=True, text=True, check=True)
    return done.stdout


def names_in(line: str) -> list[str]:
    """The packages of a requirement, which may be a choice of several in brackets."""
    words = re.split(r"[()\s]+", re.sub(r"[<>=]+\s*[\w.~-]+", "", line))
    return [word for word in words if word and word not in ("or", "and", "with", "if")]


@pytest.mark.parametrize("what", ["--requires", "--recommends"])
def test_everything_has_the_name_that_rhel_gives_it(rpm: Path, what: str) -> None:
    for line in ask(rpm, what).splitlines():
        if line == "rpmlib(PayloadIsXz) <= 5.2-1":
            continue  # the number is xz's; rpm 4.6 had it
        if line.startswith("rpmlib("):
            version = re.search(r"<= (\d+)\.(\d+)", line)
            assert version, line
            assert (int(version[1]), int(version[2])) <= OLDEST_RPM, line
        elif line.startswith("/"):
            assert line in FILES
        else:
            names = names_in(line)
            assert set(names) <= PACKAGES | ELSEWHERE, line
            assert set(names) - ELSEWHERE, f"{line}: RHEL has none of these"


def test_what_the_scripts_run_is_asked_for(rpm: Path) -> None:
    scripts = ask(rpm, "--scripts")
    asked = set(ask(rpm, "--requires").split())
    for path in FILES:
        name = path.rpartition("/")[2]
        if re.search(rf"(?:^|[;&|(]|if|!|\|\|)\s*{name}\s", scripts, re.MULTILINE):
            assert path in asked, f"{name} runs in a script"
    for name in ("systemctl", "udevadm", "ldconfig"):  # not in every image
        if re.search(rf"\b{name}\s", scripts):
            assert f"command -v {name}" in scripts or "[ -d /run/systemd/system ]" in scripts, name
    alone = re.sub(r"^\w+ scriptlet.*$", "", scripts, flags=re.MULTILINE)
    done = subprocess.run(["sh", "-n"], input=alone, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
