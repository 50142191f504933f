# SPDX-License-Identifier: Apache-2.0
"""What `sluice init` needs to know of this host and does to it: addresses, systemd, files.

Used by steps.py and init_command.py. Nothing here decides anything.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluice.cli.rest import CommandError

#: The controller's account: systemd's DynamicUser takes it where it is there.
CONTROLLER_USER = "sluice-controller"
WORKER_USER = "sluice-worker"
UNIT_FOLDERS = (
    Path("/etc/systemd/system"),
    Path("/usr/lib/systemd/system"),
    Path("/lib/systemd/system"),
)


def check_address(address: str) -> None:
    """Raises CommandError where the address is not this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            own = own_address()
            advice = f"such as {own}" if own else "see `ip address`"
            raise CommandError(
                f"--address {address}: is no address of this host ({error.strerror}); give one of "
                f"its own, {advice}",
                2,
            ) from None


def own_address() -> str:
    """The address from which this host reaches others; "" where it has no network.

    Nothing is sent: connecting a datagram socket only looks at the routes.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def has_systemd() -> bool:
    """Whether systemd runs this host."""
    return Path("/run/systemd/system").is_dir()


def has_unit(name: str) -> bool:
    """Whether a package or an earlier run brought the unit."""
    return any((folder / name).exists() for folder in UNIT_FOLDERS)


def systemctl(*words: str) -> None:
    """Runs systemctl; raises CommandError with what it said."""
    run("systemctl", *words)


def run(*words: str) -> None:
    """Runs a program of this host; raises CommandError with what it said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{' '.join(words)}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise CommandError(f"{' '.join(words)}: {said or f'status {done.returncode}'}")


def missing_accounts() -> list[str]:
    """Which of the services' accounts this host lacks."""
    missing = []
    for name in (CONTROLLER_USER, WORKER_USER):
        try:
            pwd.getpwnam(name)
        except KeyError:
            missing.append(name)
    return missing


def add_account(name: str) -> None:
    """A system account without home and shell. Raises CommandError."""
    if shutil.which("useradd") is None:
        raise CommandError(f"the account {name} is missing, and so is useradd: make it by hand")
    shell = "/usr/sbin/nologin" if Path("/usr/sbin/nologin").exists() else "/sbin/nologin"
    run("useradd", "--system", "--user-group", "--no-create-home", "--shell", shell, name)


def write(path: Path, content: str, mode: int) -> None:
    """Puts a file in its place at once, whole, with its mode. Raises CommandError."""
    partial = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise CommandError(
            f"{path}: cannot be written ({error.strerror}); run it as root"
        ) from None


def give_to_controller(paths: Sequence[Path]) -> None:
    """Lets the controller's account read files that are root's."""
    try:
        group = pwd.getpwnam(CONTROLLER_USER).pw_gid
    except KeyError:
        return  # a test's folder, or somebody's own: the controller runs as who wrote them
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, 0, group)
            path.chmod(0o640)
