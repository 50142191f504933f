# SPDX-License-Identifier: Apache-2.0
"""server.conf: whom a server talks to and how that is protected.

[controller], [tls] and [metrics]; part of config.server's ServerConfig.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from sluice.config.ini import Section
from sluice.config.sections import HostPort, HostPorts


class ControllerSection(Section):
    """[controller]: where the controller is."""

    controller_addr: HostPort = Field(
        "127.0.0.1:9123", description="the controller's REST address as host:port"
    )
    grpc_addr: HostPort | None = Field(
        None, description="the controller's gRPC address as host:port (REST host, REST port + 1)"
    )
    wait_seconds: float = Field(
        5.0, ge=0, le=300, description="how many seconds a client waits for an absent controller"
    )
    token_file: Path | None = Field(
        None, description="the file with this node's token (empty: none, or a certificate is used)"
    )

    addresses: HostPorts = Field(
        default_factory=list,
        description="the REST addresses of all controllers as host:port, with commas",
    )
    grpc_addresses: HostPorts = Field(
        default_factory=list,
        description="their gRPC addresses, in the same order (REST hosts, REST ports + 1)",
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ControllerSection:
        if self.addresses and "controller_addr" in self.model_fields_set:
            raise ValueError("has both controller_addr and addresses; keep one of them")
        if self.grpc_addresses and len(self.grpc_addresses) != len(self.rest_addresses):
            raise ValueError("grpc_addresses and addresses differ in length; name each controller")
        return self

    @property
    def rest_addresses(self) -> list[str]:
        """Every controller's REST address."""
        return self.addresses or [self.controller_addr]

    @property
    def grpc_targets(self) -> list[str]:
        """Every controller's gRPC address, derived from the REST address unless given."""
        if self.grpc_addresses:
            return self.grpc_addresses
        if self.grpc_addr and not self.addresses:
            return [self.grpc_addr]
        ends = (address.rpartition(":") for address in self.rest_addresses)
        return [f"{host}:{int(port) + 1}" for host, _, port in ends]


class TlsSection(Section):
    """[tls]: this node's certificate, and whose the controller's must be."""

    ca_file: Path | None = Field(
        None, description="the CA that the controller's certificate is checked with (empty: no TLS)"
    )
    cert_file: Path | None = Field(
        None, description="this node's certificate, its common name being node_name, PEM"
    )
    key_file: Path | None = Field(None, description="that certificate's key, PEM")
    data_plane: bool = Field(
        False, description="true or false: clients over TCP speak TLS 1.3, and no others are served"
    )
    data_cert_file: Path | None = Field(
        None, description="another certificate for the data port, with node_name among its names"
    )
    data_key_file: Path | None = Field(None, description="that certificate's key, PEM")
    data_ca_file: Path | None = Field(
        None,
        description="the CA of other nodes' data ports, for relays and links to them (ca_file)",
    )

    @property
    def data_pair(self) -> tuple[Path, Path] | None:
        """Certificate and key of the data port, None where it has no TLS."""
        certificate = self.data_cert_file or self.cert_file
        key = self.data_key_file or self.key_file
        return (certificate, key) if self.data_plane and certificate and key else None


class MetricsSection(Section):
    """[metrics]: what Prometheus may read."""

    listen: HostPort | None = Field(
        None,
        description="the address of /metrics as ip:port, such as 127.0.0.1:9961 (no key: none)",
    )
    token_file: Path | None = Field(
        None, description="the file with the token that a scraper must show (no key: none)"
    )
