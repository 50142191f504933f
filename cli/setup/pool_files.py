# SPDX-License-Identifier: Apache-2.0
"""What the configuration files of a host have to say, given what `sluice init` was told.

Used by steps.py. Pure: answers and paths in, keys out; nothing is read or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.cli.setup.accounts import FIRST_TOKENS, NODE_TOKEN
from sluice.cli.setup.answers import Answers
from sluice.cli.setup.ini_editing import Wanted


@dataclass(frozen=True)
class Places:
    """Where things lie, below the folder of the configuration."""

    folder: Path
    node: str
    rest_port: int = 9123
    grpc_port: int = 9124

    @property
    def controller_conf(self) -> Path:
        """The controller's settings."""
        return self.folder / "controller.conf"

    @property
    def server_conf(self) -> Path:
        """The server's settings, and those of the command `sluice`."""
        return self.folder / "server.conf"

    @property
    def authority(self) -> Path:
        """The folder of the pool's CA, on the host that made it."""
        return self.folder / "ca"

    @property
    def joined_ca(self) -> Path:
        """The CA's certificate on a host that joined."""
        return self.folder / "pool-ca.crt"

    @property
    def controller_pair(self) -> tuple[Path, Path]:
        """The controller's certificate and key."""
        folder = self.folder / "tls" / "controller"
        return folder / f"{self.node}.crt", folder / f"{self.node}.key"

    @property
    def node_pair(self) -> tuple[Path, Path]:
        """The node's certificate and key."""
        folder = self.folder / "tls" / "node"
        return folder / f"{self.node}.crt", folder / f"{self.node}.key"


def controller_keys(answers: Answers, places: Places) -> Wanted:
    """Of controller.conf."""
    certificate, key = places.controller_pair
    return {
        ("controller", "bind_addr"): answers.address,
        ("auth", "first_tokens_file"): str(places.folder / FIRST_TOKENS),
        ("tls", "cert_file"): str(certificate) if answers.tls else None,
        ("tls", "key_file"): str(key) if answers.tls else None,
    }


def controller_addresses(answers: Answers, places: Places) -> list[str]:
    """Where the pool's controllers answer over REST, as host:port."""
    if answers.controllers:
        return answers.controllers
    host = f"[{answers.address}]" if ":" in answers.address else answers.address
    return [f"{host}:{places.rest_port}"]


def server_keys(answers: Answers, places: Places, *, ca: bool, pair: bool) -> Wanted:
    """Of server.conf; `ca` and `pair`: whether the host has the CA and a certificate of its own.

    A host with a controller alone has the keys by which the command `sluice` finds it.
    """
    addresses = controller_addresses(answers, places)
    certificate, key = places.node_pair
    ca_file = places.authority / "ca.crt" if answers.runs_controller else places.joined_ca
    several = len(addresses) > 1
    keys: dict[tuple[str, str], str | None] = {
        ("controller", "controller_addr"): None if several else addresses[0],
        ("controller", "addresses"): ", ".join(addresses) if several else None,
        ("tls", "ca_file"): str(ca_file) if ca else None,
    }
    if answers.runs_controller and places.grpc_port != places.rest_port + 1:
        host = addresses[0].rpartition(":")[0]
        keys["controller", "grpc_addr"] = f"{host}:{places.grpc_port}"
    if not answers.runs_server:
        return keys
    automatic = answers.driver == "auto"
    return {
        **keys,
        ("controller", "token_file"): str(places.folder / NODE_TOKEN),
        ("server", "node_name"): answers.node_name,
        ("server", "bind_addr"): answers.address,
        ("server", "driver"): None if automatic else answers.driver,
        ("tls", "cert_file"): str(certificate) if pair else None,
        ("tls", "key_file"): str(key) if pair else None,
        ("tls", "data_plane"): "true" if pair else None,
    }
