# SPDX-License-Identifier: Apache-2.0
"""The host's deb where systemd runs: `sluice init` starts the services, they are started again when
they fail and when the host is, an upgrade restarts them under a session, a purge leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import wait_for

from tests.guest_images.program import SAYS
from tests.guest_images.root import fresh_roots

from .conftest import ROOTS, Packages
from .host_root import ADMIN, BY_TCP, INIT, install_deb
from .systemd_root import SystemdRoot

UNITS = ("sluice-controller", "sluice-server")


@pytest.fixture
def host(tmp_path: Path, program: Path) -> Iterator[SystemdRoot]:
    with fresh_roots(SystemdRoot, tmp_path, ROOTS, program, {}) as make:
        root = make("bookworm-systemd")
        root.boot()
        yield root


def is_active(host: SystemdRoot, unit: str) -> bool:
    return host.run(f"systemctl is-active --quiet {unit}").returncode == 0


def kill(host: SystemdRoot, unit: str) -> None:
    """Ends a service's process as a crash does, and waits for the next one."""
    before = host.main_pid(unit)
    host.check(f"kill -KILL {before}")
    wait_for(
        lambda: is_active(host, unit) and host.main_pid(unit) not in (0, before),
        message=host.said,
    )


def test_systemd_keeps_the_services(host: SystemdRoot, packages: Packages, next_deb: Path) -> None:
    install_deb(host, packages.deb)
    assert not any(is_active(host, unit) for unit in UNITS), "a package starts nothing"
    said = host.check(INIT)
    for unit in UNITS:
        assert is_active(host, unit), said + host.said()
        assert host.check(f"systemctl is-enabled {unit}").strip() == "enabled"
    host.wait_until_up()
    for start in ("SLUICE_CHANNEL=shm", BY_TCP):
        done = host.run(f"{start} SLUICE_GMEM=64 sluice run /add")
        assert done.stdout.strip() == SAYS, done.stderr + host.said()

    program = host.holder()
    assert program.work() == 0
    workers = host.check("systemctl list-units --plain --no-legend --type=scope 'sluice-*'")
    assert ".scope" in workers, "a worker is in a scope of its own, which no service's end ends"
    for unit in UNITS:
        kill(host, unit)
        host.wait_until_up()
        assert program.work() == 0, f"after {unit} was killed\n{host.said()}"
    journal = host.check("journalctl --no-pager -o cat -u sluice-server")
    assert "adopted 1 session" in journal
    assert "Main process exited, code=killed" in journal

    before = {unit: host.main_pid(unit) for unit in UNITS}
    install_deb(host, next_deb)
    assert "99.0.0" in host.check("dpkg-query -W sluice-host")
    for unit in UNITS:
        assert is_active(host, unit), host.said()
        assert host.main_pid(unit) != before[unit], "an upgrade restarts what runs"
    host.wait_until_up()
    assert program.work() == 0, f"after the upgrade\n{host.said()}"
    program.process.kill()

    host.power_off()
    host.boot()
    host.wait_until_up()
    assert host.check("SLUICE_GMEM=64 sluice run /add").strip() == SAYS
    assert "no grants" in host.check(f"sluice {ADMIN} grant list").lower()

    host.check("apt-get purge -y sluice-host")
    assert not any(host.main_pid(unit) for unit in UNITS)
    for what in ("list-unit-files", "list-units --all --plain"):
        assert host.run(f"systemctl {what} --no-legend 'sluice*'").stdout == ""
    own = ("/var/lib/dpkg/*", "/var/cache/*", "/tmp/sluice-host_*", "/root/.sluice")  # root's logs
    without = " ".join(f"-not -path '{path}'" for path in own)
    found = host.check(f"find / /run /dev/shm -xdev -iname '*sluice*' {without}")
    assert found == ""
