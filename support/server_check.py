# SPDX-License-Identifier: Apache-2.0
"""What `sluice doctor` says of a host with sluice-server: configuration, folders, workers, GPUs.

Used by doctor. What sessions would run on is `sluice-server --check`'s, whose findings are taken;
libvirt's part is virtualisation_check's.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import pwd
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from sluice.config.ini import ConfigError
from sluice.config.sections import split_address
from sluice.config.server import ServerConfig, ServerSection, read_server_config
from sluice.guest_runtime.channels import check_socket
from sluice.guest_runtime.controller_check import Controllers, check_controllers
from sluice.guest_runtime.examination import Area
from sluice.guest_runtime.findings import Finding, bad, note, ok
from sluice.resources.vgpu_request import Sharing
from sluice.server.check import findings
from sluice.server.gpus.discovery import find_driver
from sluice.server.listeners.addresses import StartError, data_address
from sluice.server.workers.mps import problem_here
from sluice.server.workers.users import WorkerUsers
from sluice.support.certificate_check import check_ca, check_pair, check_secret
from sluice.support.disk_check import check_folder
from sluice.support.port_check import check_taken
from sluice.support.virtualisation_check import check_guests

_ROOT = Path("/")
SESSION_FILES = 5  # descriptors that a session costs the server, roughly
LEAST_FILES = 4096


def read_config(path: Path | None) -> tuple[ServerConfig | None, list[Finding]]:
    """server.conf as the server would read it; None where it would not start."""
    try:
        config = read_server_config(path)
    except ConfigError as error:
        return None, [
            bad("server.conf", line, "change it as the line says")
            for line in str(error).split("\n")
        ]
    return config, [ok("server.conf", f"{path or 'read'}: every key is good")]


def server_areas(config: ServerConfig, version: str) -> list[Area]:
    """A host's areas, from the disk up to the controller."""
    section = config.server
    areas = [
        Area("server's folders", lambda: check_folders(config)),
        Area("workers", lambda: [*check_users(section), *check_cgroups(), *check_files()]),
        Area("GPUs and libraries", lambda: [*findings(config), *check_gpus(config)]),
        Area("server", lambda: check_running(config)),
        Area("server's certificates", lambda: check_tls(config)),
    ]
    if section.enable_kvm:
        areas.insert(3, Area("guests", lambda: check_guests(section)))
    return [*areas, Area("server's controllers", lambda: check_pool(config, version))]


def check_folders(config: ServerConfig) -> list[Finding]:
    """Where the server writes."""
    section = config.server
    found = [
        check_folder("[server] run_dir", section.run_dir),
        check_folder("[server] state_dir", section.state_dir),
        check_folder("[server] region_dir", section.region_dir),
    ]
    if config.log.log_to_file:
        found.append(check_folder("[log] log_dir", config.log.log_dir))
    if section.code_cache_dir:
        found.append(check_folder("[server] code_cache_dir", section.code_cache_dir))
    return found


def check_users(section: ServerSection) -> list[Finding]:
    """Whom workers become."""
    found = []
    try:
        pwd.getpwnam(section.worker_user)
        found.append(ok("worker user", section.worker_user))
    except KeyError:
        found.append(
            bad(
                "worker user",
                f"there is no account {section.worker_user}",
                f"useradd --system --no-create-home --shell /usr/sbin/nologin {section.worker_user}"
                ", or [server] worker_user",
            )
        )
    if os.geteuid() != 0:
        found.append(
            note(
                "worker users",
                "this is not root, so it is not known whether "
                "sluice-server is: only root gives workers users of their own",
            )
        )
    elif section.worker_uids:
        first, last = section.worker_uids
        taken = [each.pw_name for each in pwd.getpwall() if first <= each.pw_uid <= last]
        if taken:
            found.append(
                bad(
                    "worker users",
                    f"{', '.join(taken[:5])} lie in [server] worker_uids "
                    f"{first}-{last}: workers would be their users",
                    "name a range without accounts",
                )
            )
        else:
            found.append(ok("worker users", f"{first}-{last}, which are no accounts'"))
    return found


def check_cgroups(root: Path = _ROOT) -> list[Finding]:
    """Whether a session's memory and threads can be limited."""
    folder = root / "sys/fs/cgroup"
    if (root / "run/systemd/system").is_dir():
        return [ok("cgroups", "by systemd's scopes")]
    if not folder.is_dir():
        return [
            bad(
                "cgroups",
                f"no {folder}: sessions have no limits on memory and threads",
                "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
            )
        ]
    if (folder / "cgroup.controllers").exists():
        has = (folder / "cgroup.controllers").read_text().split()
        places = [folder]
    else:
        has = [each.name for each in folder.iterdir() if each.is_dir()]
        places = [folder / kind for kind in ("memory", "pids")]
    if missing := [kind for kind in ("memory", "pids") if kind not in has]:
        return [
            bad(
                "cgroups",
                f"{folder} has no {' and no '.join(missing)}",
                "delegate them to this container, or boot with cgroup_enable=memory",
            )
        ]
    if not all(os.access(place, os.W_OK) for place in places):
        return [
            bad(
                "cgroups",
                f"{folder} is not writable: sessions have no limits",
                "run sluice-server as root under systemd, or delegate a cgroup to it",
            )
        ]
    return [ok("cgroups", f"{folder}: memory and pids")]


def check_files(limit: int | None = None) -> list[Finding]:
    """How many descriptors a server that is started here could have."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= limit < LEAST_FILES:
        return [
            bad(
                "open files",
                f"at most {limit}: {limit // SESSION_FILES} sessions",
                "LimitNOFILE=65536 in the unit, as `sluice units` writes it",
            )
        ]
    return [ok("open files", "no limit" if limit < 0 else f"at most {limit}")]


def check_gpus(config: ServerConfig, root: Path = _ROOT) -> list[Finding]:
    """The kernel's side of NVIDIA's driver, and whether sessions may run at once."""
    try:
        driver = find_driver(config.server.driver)
    except FileNotFoundError:
        return []  # sluice-server --check has said it
    found = []
    if not driver.software and not driver.is_none:
        found += _nvidia(root)
    throttle = config.throttle
    first, last = config.server.worker_uids or (0, -1)
    users = WorkerUsers(range(first, last + 1))
    problem = problem_here(throttle, driver, users)
    if not problem:
        found.append(ok("MPS", "sessions of a project may run at once"))
    elif throttle.sharing is Sharing.CONCURRENT:
        found.append(
            bad(
                "MPS",
                f"[throttle] sharing = concurrent, and {problem}",
                "what the line says, or sharing = turns",
            )
        )
    return found


def _nvidia(root: Path) -> list[Finding]:
    found = []
    try:
        module = (root / "sys/module/nvidia/version").read_text().strip()
        found.append(ok("NVIDIA's module", module))
    except OSError:
        return [
            bad(
                "NVIDIA's module",
                "the kernel has not loaded it",
                "modprobe nvidia; dmesg says why not; `dkms status` after a new kernel",
            )
        ]
    for name in ("nvidiactl", "nvidia-uvm"):
        if not (root / "dev" / name).exists():
            found.append(
                bad(
                    "NVIDIA's devices",
                    f"no /dev/{name}: workers find no GPU",
                    "nvidia-modprobe -u -c 0, or run nvidia-persistenced at boot",
                )
            )
    for device in sorted((root / "dev").glob("nvidia[0-9]*")):
        if device.stat().st_mode & 0o006 != 0o006:
            found.append(
                bad(
                    "NVIDIA's devices",
                    f"{device} is not open to workers' users",
                    "NVreg_DeviceFileMode=0666 for the module, which is its default",
                )
            )
    return found


def check_running(config: ServerConfig) -> list[Finding]:
    """Whether it runs, and serves this host's processes and its port."""
    section = config.server
    found = []
    if not _held(section.run_dir / "server.lock"):
        return [
            bad(
                "sluice-server",
                f"none runs with {section.run_dir}",
                "systemctl start sluice-server; its log says why it ended: journalctl -u "
                "sluice-server",
            ),
            *check_taken("data port", section.listen_port, "[server] listen_port"),
            *_addresses(section),
        ]
    found.append(ok("sluice-server", f"runs with {section.run_dir}"))
    if section.enable_shm:
        found.append(check_socket(config.client_socket))
    found += _addresses(section)
    found += _port(section)
    return found


def _held(lock: Path) -> bool:
    """Whether a process holds the run folder."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _addresses(section: ServerSection) -> Iterator[Finding]:
    """Whether this host has the address that it is to listen on."""
    try:
        address = data_address(section.bind_addr, section.bind_net)
    except StartError as error:
        yield bad("data port", str(error), "as the line says")
        return
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            yield bad(
                "data port",
                f"{address}: {error.strerror}",
                "set [server] bind_addr to an address of this host (ip addr)",
            )
            return
    if ipaddress.ip_address(address).is_loopback:
        yield note(
            "data port",
            f"{address} is this host's alone: no client of another machine gets here",
            "set [server] bind_addr where there are such clients",
        )


def _port(section: ServerSection) -> Iterator[Finding]:
    if not section.listen_port:
        return
    try:
        address = data_address(section.bind_addr, section.bind_net)
    except StartError:
        return
    if ipaddress.ip_address(address).is_unspecified:
        address = "127.0.0.1"
    try:
        with socket.create_connection((address, section.listen_port), timeout=3):
            yield ok("data port", f"{address}:{section.listen_port} is listened on")
    except OSError as error:
        yield bad(
            "data port",
            f"{address}:{section.listen_port}: {error}",
            "the server is still starting, or see its log",
        )


def check_tls(config: ServerConfig) -> list[Finding]:
    """Certificates, keys, tokens that the configuration names."""
    tls, name = config.tls, config.server.node_name
    found = []
    if tls.ca_file:
        found.append(check_ca("[tls] ca_file", tls.ca_file))
    if tls.cert_file and tls.key_file:
        found += check_pair(
            "[tls] cert_file", tls.cert_file, tls.key_file, names=[name], ca_file=tls.ca_file
        )
    if tls.data_plane and tls.data_cert_file and tls.data_key_file:
        found += check_pair(
            "[tls] data_cert_file",
            tls.data_cert_file,
            tls.data_key_file,
            names=[name],
            ca_file=tls.data_ca_file or tls.ca_file,
        )
    if config.controller.token_file:
        found.append(check_secret("[controller] token_file", config.controller.token_file))
    if config.metrics.token_file:
        found.append(check_secret("[metrics] token_file", config.metrics.token_file))
    if not found:
        found.append(
            note(
                "TLS",
                "none is configured: tokens and keys cross the network in the clear",
                "fine on one host; else docs/deployment.md",
            )
        )
    return found


def check_pool(config: ServerConfig, version: str) -> list[Finding]:
    """Each controller's REST and gRPC, as this host reaches them."""
    tls = config.tls
    token = ""
    if config.controller.token_file:
        with contextlib.suppress(OSError, UnicodeDecodeError):  # check_tls says so
            token = config.controller.token_file.read_text().strip()
    addresses = ",".join(config.controller.rest_addresses)
    asked = Controllers(addresses, str(tls.ca_file or ""), token)
    found = check_controllers(asked, version)
    for target in config.controller.grpc_targets:
        host, port = split_address(target)
        try:
            with socket.create_connection((host, port), timeout=3):
                found.append(ok("gRPC", f"{target} is listened on"))
        except OSError as error:
            found.append(
                bad(
                    "gRPC",
                    f"{target}: {error}",
                    "start sluice-controller there, let its grpc_port through, or see "
                    "[controller] grpc_addr",
                )
            )
    return found
