# SPDX-License-Identifier: Apache-2.0
"""`sluice support-bundle` on a host: beside what a guest has, services' settings, logs and figures.

Called by commands.py. What the controller knows is asked over REST with the caller's token, so it
is what that token may see; what it refuses is named as left out.
"""

from __future__ import annotations

import contextlib
import ssl
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel

from sluice.cli.rest import CommandError, Controller
from sluice.config import controller as controller_config
from sluice.config import server as server_config
from sluice.config import vsphere
from sluice.config.ini import ConfigError
from sluice.config.sections import LogSection
from sluice.config.version import own_version
from sluice.guest_runtime.bundle_file import BundleFile, read_end
from sluice.guest_runtime.ini_lines import read_lines
from sluice.guest_runtime.secret_removal import secret_name, settings_without_secrets
from sluice.guest_runtime.support_bundle import (
    MOST_FILE_BYTES,
    add_client,
    add_examination,
    add_logs,
    add_machine,
    add_versions,
)
from sluice.nova_driver.configuration import DEFAULT_PATH as OPENSTACK_FILE
from sluice.nova_driver.configuration import OpenStackConfig
from sluice.support.doctor import examined
from sluice.support.parts import Part, log_folder_of

MOST_SESSION_LOGS = 50
MOST_SESSION_LOG_BYTES = 256 << 10
MOST_METRICS_BYTES = 4 << 20
#: What of the pool is asked for: the file's name, the path, the query.
POOL: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("pool", "/pool", {}),
    ("nodes", "/nodes", {}),
    ("gpus", "/gpus", {}),
    ("queue", "/queue", {}),
    ("quotas", "/quotas", {}),
    ("reservations", "/reservations", {"limit": 500}),
    ("grants", "/grants", {"limit": 500}),
    ("sessions", "/sessions", {"limit": 500}),
    ("events", "/events", {"limit": 500}),
    ("usage", "/usage", {}),
)
SERVICES = ("sluice-controller", "sluice-server", "sluice-vsphere")
COMMANDS = {
    "system/services.txt": ("systemctl", "status", "--no-pager", "--full", "sluice-*"),
    "system/nvidia-smi.txt": ("nvidia-smi", "-q"),
    "system/libvirt.txt": ("virsh", "-r", "list", "--all"),
    "system/rdma.txt": ("ibv_devinfo", "-v"),
}
NEVER = {
    "the controller's store": "it holds people's names, the audit trail and tokens' hashes; "
    "where it is wanted: sluice-controller backup",
    "the audit trail": "it says who did what from where; where it is wanted: sluice audit",
    "the code cache": "it is users' code",
}


def keys_of(model: type[BaseModel]) -> frozenset[str]:
    """Every section.key of a configuration file."""
    found = set()
    for section, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= {f"{section.replace('_', '-')}.{key}" for key in kind.model_fields}
    return frozenset(found)


def add_settings(
    bundle: BundleFile, server_file: Path | None, controller_file: Path | None
) -> None:
    """The services' files, key by key."""
    files: list[tuple[str, Path, type[BaseModel]]] = [
        ("server", server_file or server_config.DEFAULT_PATH, server_config.ServerConfig),
        (
            "controller",
            controller_file or controller_config.DEFAULT_PATH,
            controller_config.ControllerConfig,
        ),
        ("vsphere", vsphere.DEFAULT_PATH, vsphere.VsphereConfig),
        ("openstack", OPENSTACK_FILE, OpenStackConfig),
    ]
    for name, path, model in files:
        known = keys_of(model)
        bundle.add_file(
            f"settings/{name}.conf",
            path.resolve(),  # an operator's link
            MOST_FILE_BYTES,
            lambda text, known=known: settings_without_secrets(text, known),  # type: ignore[misc]
        )


def secret_files(paths: Iterable[Path]) -> list[Path]:
    """What the settings of these files name as secrets, and what lies beside them as such."""
    found: set[Path] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            text, _ = read_end(path, MOST_FILE_BYTES)
            found |= set(_named_in(text, path.parent))
        with contextlib.suppress(OSError):
            found |= {each for each in path.parent.iterdir() if _is_secret(each)}
    return sorted(found)


def secret_values(paths: Iterable[Path]) -> list[str]:
    """What stands in these settings behind names of secrets, although it should be in a file."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            for line in read_lines(read_end(path, MOST_FILE_BYTES)[0]):
                if line.value and secret_name(line.key):
                    found.append(line.value)
    return found


def _named_in(text: str, folder: Path) -> Iterable[Path]:
    for line in read_lines(text):
        name = line.key.lower()
        if any(word in name for word in ("token", "password", "secret", "credential", "key")):
            path = Path(line.value)
            if line.value and (path.is_absolute() or name.endswith("_file")):
                yield folder / path


def _is_secret(path: Path) -> bool:
    """A small file that only its owner may read, and that is not settings or certificates."""
    about = path.lstat()
    return (
        stat.S_ISREG(about.st_mode)
        and path.suffix not in (".conf", ".crt", ".db")
        and about.st_size <= 1 << 16
        and about.st_mode & 0o007 == 0
    )


def log_folder(service: str, path: Path) -> Path:
    """Where a service logs, also if the rest of its file is wrong: then it is needed most."""
    with contextlib.suppress(OSError):
        for line in read_lines(read_end(path.resolve(), MOST_FILE_BYTES)[0]):
            if (line.section, line.key) == ("log", "log_dir") and line.value:
                return Path(line.value)
    return log_folder_of(service, LogSection().log_dir)


def add_service_logs(bundle: BundleFile, name: str, folder: Path, most_bytes: int) -> None:
    """A service's own log and the one before it."""
    for suffix in ("", ".1"):
        path = folder / f"{name}.log{suffix}"
        if not bundle.add_file(f"logs/{path.name}", path, most_bytes) and not suffix:
            bundle.leave_out(str(path), "it is not there")


def add_state(bundle: BundleFile, asked: Controller) -> None:
    """What the controller says of the pool, its metrics too."""
    for name, path, query in POOL:
        try:
            bundle.add_json(f"state/{name}.json", asked.get(path, **query), f"GET /v1{path}")
        except CommandError as error:
            bundle.leave_out(f"GET /v1{path}", str(error))
            if error.status == 4:  # nobody answers, and each question would wait for that
                bundle.leave_out("the rest of the pool's state", "the controller does not answer")
                return
    access = asked.access
    for base in access.bases[:1]:
        url = f"{base.removesuffix('/v1')}/metrics"
        _add_metrics(bundle, "state/controller-metrics.txt", url, access.tls(), access.headers)


def _add_metrics(
    bundle: BundleFile, name: str, url: str, tls: Any, headers: dict[str, str], host: str = ""
) -> None:
    """`host` is the name in its certificate, where that is not the address."""
    extensions = {"sni_hostname": host} if host else {}
    try:
        with (
            httpx.Client(verify=tls, timeout=10, trust_env=False) as client,
            client.stream("GET", url, headers=headers, extensions=extensions) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                bundle.leave_out(url, f"it answered {answer.status_code}")
                return
            data = b""
            for part in answer.iter_bytes():
                data += part
                if len(data) > MOST_METRICS_BYTES:
                    bundle.leave_out(url, f"all but the first {MOST_METRICS_BYTES >> 20} MiB")
                    break
    except (httpx.HTTPError, OSError) as error:
        bundle.leave_out(url, str(error))
        return
    bundle.add_text(name, data[:MOST_METRICS_BYTES].decode("utf-8", "replace"), url)


def add_server_logs(bundle: BundleFile, folder: Path, most_bytes: int) -> None:
    """A server's log, and those of its sessions."""
    add_service_logs(bundle, "server", folder, most_bytes)
    sessions = folder / "session"
    add_logs(bundle, "logs/session", sessions, MOST_SESSION_LOG_BYTES, MOST_SESSION_LOGS)


def add_server(bundle: BundleFile, config: server_config.ServerConfig) -> None:
    """A server's metrics, and what lies in its folder."""
    bundle.add_command("system/run-folder.txt", ("ls", "-laR", str(config.server.run_dir)))
    if config.metrics.listen:
        headers = {}
        with contextlib.suppress(OSError):
            if config.metrics.token_file:
                token = config.metrics.token_file.read_text().strip()
                headers = {"Authorization": f"Bearer {token}"}
        scheme = "https" if config.tls.cert_file else "http"
        url = f"{scheme}://{config.metrics.listen}/metrics"
        name, host = "state/server-metrics.txt", config.server.node_name
        try:
            tls = ssl.create_default_context(cafile=config.tls.ca_file)
        except (OSError, ValueError) as error:
            bundle.leave_out(url, f"{config.tls.ca_file}: {error}")
            return
        _add_metrics(bundle, name, url, tls, headers, host if config.tls.cert_file else "")


def collect(
    bundle: BundleFile,
    parts: Sequence[Part],
    server_file: Path | None,
    controller_file: Path | None,
    most_log_bytes: int,
) -> None:
    """Everything of this host but the pool's state."""
    add_examination(bundle, examined(parts, server_file, controller_file))
    add_versions(bundle, own_version())
    add_settings(bundle, server_file, controller_file)
    server_path = server_file or server_config.DEFAULT_PATH
    if Part.SERVER in parts:
        add_server_logs(bundle, log_folder("server", server_path), most_log_bytes)
        try:
            add_server(bundle, server_config.read_server_config(server_file))
        except ConfigError as error:
            bundle.leave_out("the server's metrics and folder", f"its file is wrong: {error}")
    if Part.CONTROLLER in parts:
        path = controller_file or controller_config.DEFAULT_PATH
        folder = log_folder("controller", path)
        add_service_logs(bundle, "controller", folder, most_log_bytes)
    for service in SERVICES:
        journal = ("journalctl", "--no-pager", "-n", "5000", "-u", service)
        bundle.add_command(f"logs/journal-{service}.txt", journal)
    add_client(bundle, most_log_bytes)
    add_machine(bundle)
    for name, words in COMMANDS.items():
        bundle.add_command(name, words)
    for what, why in NEVER.items():
        bundle.leave_out(what, why)


def settings_of(server_file: Path | None, controller_file: Path | None) -> list[Path]:
    """The services' files of this host, there or not."""
    return [
        server_file or server_config.DEFAULT_PATH,
        controller_file or controller_config.DEFAULT_PATH,
        vsphere.DEFAULT_PATH,
        OPENSTACK_FILE,
    ]
