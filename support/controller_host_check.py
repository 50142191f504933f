# SPDX-License-Identifier: Apache-2.0
"""What `sluice doctor` says of a host with sluice-controller: configuration, store, listeners.

Used by doctor. The store is read by `sluice-controller check`'s own code, which works while a
controller runs.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

from sluice.config.controller import ControllerConfig, read_controller_config
from sluice.config.ini import ConfigError
from sluice.config.sections import split_address
from sluice.controller.store import maintenance
from sluice.controller.store.store import StoreError
from sluice.guest_runtime.controller_check import Controllers, check_controllers
from sluice.guest_runtime.examination import Area
from sluice.guest_runtime.findings import Finding, bad, note, ok
from sluice.support.certificate_check import check_ca, check_pair, check_secret
from sluice.support.disk_check import check_folder
from sluice.support.parts import log_folder_of
from sluice.support.port_check import check_taken


def read_config(path: Path | None) -> tuple[ControllerConfig | None, list[Finding]]:
    """controller.conf as the controller would read it; None where it would not start."""
    try:
        config = read_controller_config(path)
    except ConfigError as error:
        return None, [
            bad("controller.conf", line, "change it as the line says")
            for line in str(error).split("\n")
        ]
    return config, [ok("controller.conf", f"{path or 'read'}: every key is good")]


def controller_areas(config: ControllerConfig, version: str) -> list[Area]:
    """A controller's areas."""
    return [
        Area("controller's store", lambda: check_store(config)),
        Area("controller's certificates", lambda: check_tls(config)),
        Area("controller", lambda: check_listeners(config, version)),
    ]


def check_store(config: ControllerConfig) -> list[Finding]:
    """The pool's state: is there room for it, and is it sound."""
    found = []
    if config.log.log_to_file:
        folder = log_folder_of("controller", config.log.log_dir)
        found.append(check_folder("[log] log_dir", folder))
    if config.store.kind == "etcd":
        return [*found, *(_etcd(each) for each in config.store.endpoints)]
    path = config.controller.store
    found.append(check_folder("[controller] store", path.parent))
    if not path.exists():
        return [*found, note("store", f"no {path} yet: a controller that starts makes it")]
    if not os.access(path, os.R_OK | os.W_OK):
        return [*found, note("store", f"{path} is not yours to read", "run this as root")]
    try:
        found.append(ok("store", maintenance.check(path)))
    except StoreError as error:
        found.append(
            bad(
                "store", str(error), "sluice-controller restore BACKUP; see docs/troubleshooting.md"
            )
        )
    return found


def _etcd(endpoint: str) -> Finding:
    host, port = split_address(endpoint)
    try:
        with socket.create_connection((host, port), timeout=3):
            return ok("etcd", f"{endpoint} is listened on")
    except OSError as error:
        return bad(
            "etcd",
            f"{endpoint}: {error}",
            "start etcd there, or see [store] endpoints; `etcdctl endpoint health`",
        )


def check_tls(config: ControllerConfig) -> list[Finding]:
    """Certificates and secrets that the configuration names."""
    tls, store = config.tls, config.store
    found = []
    if tls.cert_file and tls.key_file:
        names = [each for each in (config.controller.advertise_addr,) if each]
        found += check_pair(
            "[tls] cert_file", tls.cert_file, tls.key_file, names=names, kind="controller"
        )
    if tls.node_ca_file:
        found.append(check_ca("[tls] node_ca_file", tls.node_ca_file))
    if store.ca_file:
        found.append(check_ca("[store] ca_file", store.ca_file))
    if store.cert_file and store.key_file:
        found += check_pair(
            "[store] cert_file", store.cert_file, store.key_file, ca_file=store.ca_file
        )
    if store.password_file:
        found.append(check_secret("[store] password_file", store.password_file))
    if not tls.cert_file:
        loopback = ipaddress.ip_address(config.controller.bind_addr).is_loopback
        text = "REST, gRPC and the console have none"
        found.append(
            ok("TLS", f"{text}, on a loopback address")
            if loopback
            else note(
                "TLS",
                f"{text}: tokens cross the network in the clear",
                "sluice ca init, sluice ca issue; docs/deployment.md",
            )
        )
    return found


def check_listeners(config: ControllerConfig, version: str) -> list[Finding]:
    """Whether it answers, at the address that it listens on."""
    section = config.controller
    address = ipaddress.ip_address(section.bind_addr)
    host = "127.0.0.1" if address.is_unspecified else section.bind_addr
    if not section.rest_port:
        return [note("controller", "[controller] rest_port = 0: it is not known where it listens")]
    brackets = f"[{host}]" if ":" in host else host
    scheme = "https" if config.tls.cert_file else "http"
    # its certificate need not be for a loopback address: only whether it answers is asked there
    found = check_taken("REST", section.rest_port, "[controller] rest_port")
    if found:
        pass  # whoever answers there is nobody to ask
    elif scheme == "https":
        found = [_listens("REST", host, section.rest_port)]
    else:
        found = check_controllers(
            Controllers(f"{scheme}://{brackets}:{section.rest_port}"), version
        )
    if section.grpc_port:
        taken = check_taken("gRPC", section.grpc_port, "[controller] grpc_port")
        found += taken or [_listens("gRPC", host, section.grpc_port)]
    if address.is_loopback:
        found.append(
            note(
                "controller",
                f"{section.bind_addr} is this host's alone: no server or "
                "client of another machine gets here",
                "set [controller] bind_addr where the pool has several hosts",
            )
        )
    return found


def _listens(what: str, host: str, port: int) -> Finding:
    try:
        with socket.create_connection((host, port), timeout=3):
            return ok(what, f"{host}:{port} is listened on")
    except OSError as error:
        return bad(
            what,
            f"{host}:{port}: {error}",
            "systemctl start sluice-controller; journalctl -u sluice-controller says why it ended",
        )
