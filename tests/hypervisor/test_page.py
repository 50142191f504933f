# SPDX-License-Identifier: Apache-2.0
"""docs/libvirt.md and docs/guest.md can be followed from nothing to a CUDA program in a VM.

Their commands run as they stand there, in their order, on a machine without Sluice and in a guest.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from control_plane import native_worker, wait_for
from cuda_compiler import compiler_environment
from fresh_machine import FreshMachine
from walkthrough import Instead, Walkthrough

from .conftest import CHECKOUT, Guest, Rig

pytestmark = [pytest.mark.vm, pytest.mark.slow]

BUNDLE = Path("dist/sluice-guest-x86_64.tar.gz")
PACKAGES = "build-essential cmake ninja-build pkg-config python3-dev python3-venv libvirt-dev"
SECONDS = 120


@pytest.fixture(scope="module")
def guest(rig: Rig) -> Iterator[Guest]:
    made = rig.define_guest("page", mem_mib=512, vcpus=1)
    made.start()
    made.wait_ready()
    yield made
    made.undefine()
    Path(f"/dev/shm/sluice-{made.uuid}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def host(rig: Rig) -> Iterator[FreshMachine]:
    """The guest's host: this machine with the rig's libvirt as its own, and nothing of Sluice."""
    if native_worker() is None or not (CHECKOUT / BUNDLE).exists():
        pytest.skip("the native part or the guest bundle is not built (make native guest-bundle)")
    made = FreshMachine(
        alone=True,
        folders={"/run/libvirt": rig.root / "run"},
        environment=compiler_environment(),
    )
    try:
        yield made
    finally:
        made.close()


def run_in(guest: Guest, command: str, variables: Mapping[str, str]) -> str:
    return guest.check(f"cd /root && {command}", SECONDS, dict(variables))


def start_pool(host: FreshMachine) -> str:
    """What the units say; the page's reader takes the seconds that they need to find each other."""
    host.start_units("sluice-controller", "sluice-server")

    def has_gpu() -> bool:
        try:
            return bool(json.loads(host.run("sluice gpu list -o json", {}))["gpus"])
        except RuntimeError:
            return False

    wait_for(has_gpu, message="a GPU in the pool")
    return ""


def copy(host: FreshMachine, guest: Guest) -> str:
    guest.put(host.home / "vector_add", "/root/vector_add")
    guest.put(CHECKOUT / BUNDLE, f"/root/{BUNDLE.name}")
    return ""


def test_libvirts_page(host: FreshMachine, guest: Guest) -> None:
    commands = shlex.quote(str(CHECKOUT / "build/bin"))
    instead = {
        f"apt-get install -y {PACKAGES}": Instead(
            "a CI machine's packages are not the test's to change; that there are such is checked",
            f"apt-get install -y --simulate {PACKAGES}",
        ),
        "python3 -m venv /opt/sluice-venv": Instead(
            "pip is not used here (the next line), and takes seconds",
            "python3 -m venv --without-pip /opt/sluice-venv",
        ),
        '/opt/sluice-venv/bin/pip install "$SOURCE[libvirt]"': Instead(
            "compiling the wheel takes ten minutes; the checkout has the same commands",
            f"ln -s {commands}/* /opt/sluice-venv/bin/",
        ),
        "systemctl daemon-reload": Instead(
            "there is no systemd; what it would read is there",
            "cd /etc/systemd/system && test -s sluice-controller.service && "
            "test -s sluice-server.service",
        ),
        "systemctl enable --now sluice-controller sluice-server": Instead(
            "there is no systemd; the units' commands run", lambda: start_pool(host)
        ),
        'make -C "$SOURCE" guest-bundle': Instead(
            "`make test-rigs` has just made it", f'test -s "$SOURCE/{BUNDLE}"'
        ),
        f'scp vector_add "$SOURCE/{BUNDLE}" "$LOGIN":': Instead(
            "the rig's guest has no network; its agent copies", lambda: copy(host, guest)
        ),
    }
    page = Walkthrough(CHECKOUT / "docs/libvirt.md", "From nothing to a CUDA program in a VM")
    page.follow(
        {"host": host.run, "guest": lambda *words: run_in(guest, *words)},
        {"SOURCE": str(CHECKOUT), "GUEST": guest.name, "LOGIN": "not used: see scp"},
        instead,
    )
    sessions = json.loads(host.run("sluice session list --all -o json", {}))["sessions"]
    assert [each["domain_uuid"] for each in sessions] == [guest.uuid]


def test_the_guests_page(host: FreshMachine, guest: Guest) -> None:
    """In the same VM after a restart, which leaves it its channel and nothing else."""
    guest.restart()
    guest.check("useradd -m alice")
    guest.put(host.home / "vector_add", "/home/alice/vector_add")
    guest.put(CHECKOUT / BUNDLE, f"/root/{BUNDLE.name}")
    page = Walkthrough(CHECKOUT / "docs/guest.md", "From nothing to a CUDA program")

    def by_user(command: str, variables: Mapping[str, str]) -> str:
        line = f"cd /home/alice && exec su alice -c {shlex.quote(command)}"
        return guest.check(line, SECONDS, dict(variables))

    page.follow({"guest": lambda *words: run_in(guest, *words), "user": by_user}, {"NAME": "alice"})
    assert guest.run("ls /opt/sluice")[0] != 0
