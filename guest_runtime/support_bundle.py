# SPDX-License-Identifier: Apache-2.0
"""`sluice support-bundle` in a guest: what somebody who helps wants to see, in one file.

Used by main.py, and by support/bundle.py for what a host has too. It changes nothing but the file
that it writes. Exit status 0 when that is written, 1 if it cannot be, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import VERSION
from .bundle_file import BundleFile
from .configuration import SETTINGS, SYSTEM_FILE, read_settings
from .doctor import client_areas, machine_area, package_areas
from .examination import Result, as_document, examine, one_line
from .secret_removal import LEFT_OUT, SecretRemoval, secret_name, settings_without_secrets
from .settings_check import settings_files, token_path

MOST_LOG_BYTES = 4 << 20
MOST_LOGS = 20
MOST_FILE_BYTES = 1 << 20
#: Beginnings of the variables that say how Sluice and CUDA behave.
VARIABLES = ("SLUICE_", "ORION_", "CUDA_", "NVIDIA_", "NCCL_", "LD_", "TRITON_", "PYTORCH_", "TF_")
SYSTEM_FILES = (
    "/proc/version", "/proc/cmdline", "/proc/meminfo", "/proc/mounts", "/proc/modules",
    "/proc/self/limits", "/proc/self/cgroup", "/proc/pressure/memory", "/etc/os-release",
)  # fmt: skip
SYSTEM_COMMANDS = {
    "system/df.txt": ("df", "-h"),
    "system/inodes.txt": ("df", "-i"),
    "system/shared-memory.txt": ("ls", "-la", "/dev/shm"),
    "system/pci.txt": ("lspci", "-nn"),
    "system/addresses.txt": ("ip", "-brief", "address"),
    "system/loader-cache.txt": ("ldconfig", "-p"),
    "system/kernel-log.txt": ("dmesg", "--ctime", "--level", "emerg,alert,crit,err,warn"),
}
#: Folders and files that nobody needs for help, with why they stay here.
NEVER = {
    "tokens, passwords and private keys": "they are secrets; whoever has them is you",
    "certificates": "their end, names and CA are in doctor.json",
    "memory of programs, of guests and of GPUs": "it is users' data",
    "programs, models and data": "they are users' data",
}


def known_secrets(removal: SecretRemoval, files: Iterable[Path] = ()) -> None:
    """Tells the removal what secrets this machine has: variables, the client's token, `files`."""
    removal.know(value for name, value in os.environ.items() if secret_name(name))
    removal.know_file(token_path(read_settings())[0])
    for path in files:
        removal.know_file(path)


def add_examination(bundle: BundleFile, results: Sequence[Result]) -> None:
    """What `sluice doctor` says."""
    bundle.add_json("doctor.json", as_document(results), "sluice doctor --json")
    lines = [f"{area}: {one_line(finding)}" for area, finding in results]
    bundle.add_text("doctor.txt", "\n".join(lines) + "\n", "sluice doctor")


def add_machine(bundle: BundleFile) -> None:
    """The system: kernel, memory, mounts, devices, variables."""
    for path in SYSTEM_FILES:
        name = f"system/{path.strip('/').replace('/', '-')}"
        bundle.add_file(name, Path(path).resolve(), MOST_FILE_BYTES)  # root's links
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        bundle.add_text("system/cpu.txt", f"{first}\n{os.cpu_count()} in all\n", "/proc/cpuinfo")
    except OSError as error:
        bundle.leave_out("/proc/cpuinfo", str(error.strerror))
    for name, words in SYSTEM_COMMANDS.items():
        bundle.add_command(name, words)
    shown = [
        f"{name}={LEFT_OUT if secret_name(name) else value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES)
    ]
    bundle.add_text("settings/environment.txt", "\n".join(shown) + "\n", "variables by name")
    bundle.leave_out("other variables of the environment", "they are not Sluice's or CUDA's")


def add_versions(bundle: BundleFile, release: str) -> None:
    """Which releases of what are here."""
    about = {
        "sluice": release,
        "guest_runtime": VERSION,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    bundle.add_json("versions.json", about, "this program")


def add_client(bundle: BundleFile, most_log_bytes: int) -> None:
    """client.conf and the newest logs of this user's programs."""
    known = {setting.key for setting in SETTINGS}
    for path in settings_files():
        where = "system" if path == SYSTEM_FILE else "user"
        bundle.add_file(
            f"settings/client-{where}.conf",
            path,
            MOST_FILE_BYTES,
            lambda text: settings_without_secrets(text, known),
        )
    add_logs(bundle, "logs/client", Path.home() / ".sluice" / "log", most_log_bytes)


def add_logs(
    bundle: BundleFile, into: str, folder: Path, most_bytes: int, most: int = MOST_LOGS
) -> None:
    """The newest files of a folder."""
    try:
        found = [
            (each.stat(follow_symlinks=False).st_mtime, each.name)
            for each in os.scandir(folder)
            if not each.is_dir(follow_symlinks=False)
        ]
    except OSError as error:
        bundle.leave_out(str(folder), str(error.strerror))
        return
    names = [name for _, name in sorted(found, reverse=True)]
    for name in names[:most]:
        bundle.add_file(f"{into}/{name}", folder / name, most_bytes)
    if len(names) > most:
        bundle.leave_out(
            f"{len(names) - most} older files of {folder}", f"the newest {most} are in"
        )


def target_of(output: str | None) -> Path:
    """The file to write: a name of its own in a folder that is there, or what was named."""
    name = (
        f"sluice-support-{platform.node()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"
    )
    if output is None:
        return Path(name)
    path = Path(output)
    return path / name if path.is_dir() else path


def finish(bundle: BundleFile, target: Path, release: str) -> int:
    """Writes the bundle and says what it is; the exit status."""
    for what, why in NEVER.items():
        bundle.leave_out(what, why)
    try:
        size = bundle.write(target, host=platform.node(), release=release)
    except FileExistsError:
        print(f"sluice: {target} is there already; name another with --output", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"sluice: {target}: {error.strerror}; name another place with --output", file=sys.stderr
        )
        return 1
    manifest = bundle.manifest()
    print(
        f"{target} ({size / 1e6:.2f} MB): {len(manifest['files'])} files, "
        f"{manifest['secrets_taken_out']} places where a secret was taken out"
    )
    print(
        "manifest.json in it says what is there and what was left out; look through it before "
        "you send it"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of a guest."""
    made = argparse.ArgumentParser(
        prog="sluice support-bundle",
        description="Collects logs, settings without secrets, versions and what doctor says.",
    )
    made.add_argument("-o", "--output", help="the file to write, or the folder to write it into")
    made.add_argument(
        "--log-mib", type=int, default=MOST_LOG_BYTES >> 20, metavar="MIB",
        help="how much of the end of each log (default 4)",
    )  # fmt: skip
    return made


def support_bundle(words: Sequence[str]) -> int:
    """The command in a guest."""
    options = parser().parse_args(list(words))
    if not 0 < options.log_mib <= 1024:
        print("sluice support-bundle: --log-mib wants 1 to 1024", file=sys.stderr)
        return 2
    removal = SecretRemoval()
    known_secrets(removal)
    bundle = BundleFile(removal)
    add_examination(bundle, examine([machine_area(), *package_areas(), *client_areas()]))
    add_versions(bundle, VERSION)
    add_client(bundle, options.log_mib << 20)
    add_machine(bundle)
    return finish(bundle, target_of(options.output), VERSION)
