# SPDX-License-Identifier: Apache-2.0
"""controller.conf as a model: what an operator may set for sluice-controller.

Called by sluice.controller's main; the object is handed to the controller's parts, never changed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sluice.config.ini import Section, read_config
from sluice.config.oidc import OidcSection
from sluice.config.sections import (
    ANY_PORT,
    HostPorts,
    IpAddress,
    LogSection,
    Port,
    WebAddress,
    pairs,
    split_commas,
)
from sluice.resources.memory_factor import MOST_MEMORY_FACTOR
from sluice.resources.vgpu_request import Sharing

DEFAULT_PATH = Path("/etc/sluice/controller.conf")

Names = Annotated[list[str], BeforeValidator(split_commas)]


def _labels(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = pairs(value, "names a label twice; give each one value")
    for name, content in found.items():
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or not content:
            raise ValueError(f"{name or 'nothing'} with {content or 'nothing'} is no label")
    return found


Labels = Annotated[dict[str, str], BeforeValidator(_labels)]


class ControllerSection(Section):
    """[controller]: listeners and store."""

    bind_addr: IpAddress = Field("127.0.0.1", description="the IP address of REST and gRPC")
    rest_port: Port = Field(9123, description=f"the REST port, {ANY_PORT}")
    grpc_port: Port = Field(9124, description=f"the gRPC port, {ANY_PORT}")
    advertise_addr: str | None = Field(
        None, description="the address that others are told, if it is not bind_addr"
    )
    rest_connections: int = Field(
        4096, ge=16, le=60_000, description="how many connections REST serves at a time"
    )
    rest_connections_of_address: int = Field(
        1024,
        ge=4,
        le=60_000,
        description="how many of them one address may have, such as a proxy's",
    )
    store: Path = Field(
        Path("/var/lib/sluice/controller.db"), description="the path of the SQLite store"
    )
    store_synchronous: Literal["NORMAL", "FULL"] = Field(
        "FULL", description="FULL (a grant survives a power cut) or NORMAL (a crash only)"
    )


class StoreSection(Section):
    """[store]: which store, and where etcd is."""

    kind: Literal["sqlite", "etcd"] = Field(
        "sqlite", description="sqlite (one controller) or etcd (several, one of which leads)"
    )
    endpoints: HostPorts = Field(
        default_factory=lambda: ["127.0.0.1:2379"],
        min_length=1,
        description="etcd's client addresses as host:port, with commas",
    )
    prefix: str = Field(
        "/sluice/", pattern=r"^/.+/$", description="what every key begins with, such as /sluice/"
    )
    lease_seconds: int = Field(
        3, ge=2, le=60, description="after how many seconds a vanished leader is replaced, {bounds}"
    )
    user: str = Field("", description="etcd's user (empty: none)")
    password_file: Path | None = Field(None, description="the file that holds the user's password")
    ca_file: Path | None = Field(
        None, description="the CA that etcd's certificates are checked with (empty: no TLS)"
    )
    cert_file: Path | None = Field(None, description="this controller's certificate for etcd")
    key_file: Path | None = Field(None, description="that certificate's key")
    tls_name: str | None = Field(
        None, description="the name in etcd's certificates, if it is not the endpoint's address"
    )

    @model_validator(mode="after")
    def _whole(self) -> StoreSection:
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file go together; give both or none")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file go together; give both or none")
        if self.cert_file and not self.ca_file:
            raise ValueError("cert_file needs ca_file; give the CA of etcd's certificates")
        return self


class PoolSection(Section):
    """[pool]: how the pool is shared out."""

    vgpu_count: int = Field(
        0, ge=0, le=64, description="the default slice is 1/vgpu_count (0: as each server says)"
    )
    policy: Literal["bin-pack", "spread", "locality"] = Field(
        "bin-pack",
        description="where vGPUs go: bin-pack (the fullest GPU), spread (the emptiest node) or "
        "locality (near the node that asks, by its labels rack and rdma)",
    )
    sharing: Sharing = Field(
        Sharing.AUTO,
        description="auto (as each request and server says), turns, capped or concurrent: how "
        "shares of a GPU are kept where a request says nothing; turns are capped wherever request, "
        "pool or server says it",
    )
    heartbeat_seconds: int = Field(
        5, ge=1, le=300, description="how often servers report, in seconds"
    )
    node_timeout_seconds: float = Field(
        30.0, ge=2, le=3600, description="after how many silent seconds a node is lost"
    )
    key_seconds: int = Field(
        60, ge=1, le=600, description="how many seconds a one-time key is good for"
    )
    waiting_line_seconds: float = Field(
        30.0,
        gt=0,
        le=600,
        description="how often a waiting client hears its position, in seconds",
    )
    ended_grants_kept: int = Field(
        1000, ge=0, description="how many ended grants and sessions the store keeps"
    )
    job_sessions: int = Field(
        64,
        ge=1,
        le=256,
        description="how many sessions one job may have at a time on a node, {bounds}",
    )
    job_linger_seconds: float = Field(
        5.0, ge=1, le=3600, description="how long a job without process and launcher is kept"
    )
    ageing_seconds: float = Field(
        600.0,
        ge=0,
        description="seconds of waiting that are worth a step of priority (0: priority rules)",
    )
    over_quota: Literal["wait", "refuse"] = Field(
        "wait", description="what a request does whose project holds its quota: wait or refuse"
    )
    opening_seconds: float = Field(
        300.0, ge=10, le=86400, description="after how long a session without client is ended"
    )
    on_preempt: Literal["suspend", "end"] = Field(
        "suspend",
        description="suspend or end: what becomes of work that gives way to a request; what cannot "
        "be suspended ends",
    )
    max_suspended_seconds: float = Field(
        86400.0,
        ge=0,
        description="after how many seconds what is suspended is ended (0: never)",
    )
    memory_oversubscription: float = Field(
        1.0,
        ge=1.0,
        le=MOST_MEMORY_FACTOR,
        description="how often the memory of each GPU may be promised whose server.conf does not "
        "say, where its node has [suspend] swap_mib for it (1.0: once)",
    )
    events_kept: int = Field(100_000, ge=100, description="how many events the store keeps")


class AuthSection(Section):
    """[auth]: who may call."""

    required: Literal["auto", "yes", "no"] = Field(
        "auto",
        description="auto (yes, unless bind_addr is a loopback address), yes or no: callers show a "
        "token or certificate",
    )
    local: Literal["operator", "user", "nothing"] = Field(
        "user",
        description="operator, user (look, and open sessions) or nothing: what callers without a "
        "token may do where none is required",
    )
    requests_per_second: float = Field(
        200.0, ge=0, description="REST requests of one token or address a second (0: no limit)"
    )
    first_tokens_file: Path | None = Field(
        None,
        description="the file with the hashes of a new pool's first tokens, as `sluice init` "
        "writes it (empty: one admin token is made and printed)",
    )


class ConsoleSection(Section):
    """[console]: the pages for browsers."""

    enabled: bool = Field(
        True, description="true or false: the web console is at the address of REST, /console"
    )
    session_hours: float = Field(
        12.0, gt=0, le=720, description="after how many hours people sign in again, {bounds}"
    )
    history: bool = Field(
        True, description="true or false: keep figures over time, for the console's charts"
    )
    history_file: Path | None = Field(
        None, description="the file with them (empty: history.db beside [controller] store)"
    )
    prometheus_url: WebAddress = Field(
        "",
        description="the Prometheus that scrapes this pool, such as http://prometheus:9090: charts "
        "are of its figures (empty: of history_file's)",
    )
    prometheus_token_file: Path | None = Field(
        None, description="the file with the bearer token for it (empty: none)"
    )
    prometheus_ca_file: Path | None = Field(
        None, description="the CA of its certificate (empty: the machine's)"
    )
    prometheus_labels: Labels = Field(
        default_factory=dict,
        description="label=value, with commas, which its figures of this pool have and others not: "
        "pool=berlin (empty: it scrapes one pool)",
    )
    prometheus_scrape_seconds: float = Field(
        60.0, ge=1, le=600, description="how often it scrapes this pool, in seconds, {bounds}"
    )


AlertName = Literal["node-lost", "store-down", "gpu-faulty", "queue-stuck", "project-at-quota"]


class AlertsSection(Section):
    """[alerts]: what somebody is told of."""

    enabled: bool = Field(True, description="true or false: rules are looked at every 15 seconds")
    off: Annotated[list[AlertName], BeforeValidator(split_commas)] = Field(
        default_factory=list,
        description="the rules that are not looked at, with commas: node-lost, store-down, "
        "gpu-faulty, queue-stuck, project-at-quota",
    )
    rules_file: Path | None = Field(
        None, description="the file with rules of one's own beside them (empty: none)"
    )
    node_seconds: float = Field(
        30.0, ge=0, description="for how many seconds a node has been lost before that fires"
    )
    store_seconds: float = Field(
        30.0, ge=0, description="for how many seconds the store has taken nothing"
    )
    queue_seconds: float = Field(
        3600.0, gt=0, description="for how many seconds a request has waited"
    )
    quota_seconds: float = Field(
        900.0, ge=0, description="for how many seconds a project has held all that it may"
    )
    webhook: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        max_length=2000,
        description="the address that alerts are sent to, http:// or https:// (empty: none)",
    )
    webhook_token_file: Path | None = Field(
        None, description="the file with the bearer token for it (empty: none)"
    )
    webhook_ca_file: Path | None = Field(
        None, description="the CA of its certificate (empty: the machine's)"
    )


class TlsSection(Section):
    """[tls]: certificates of the listeners."""

    cert_file: Path | None = Field(
        None, description="the certificate of REST and gRPC, PEM (empty: no TLS)"
    )
    key_file: Path | None = Field(None, description="that certificate's key, PEM")
    node_ca_file: Path | None = Field(
        None, description="the CA of the servers' certificates: gRPC then wants one of each server"
    )


class OpenStackSection(Section):
    """[openstack]: what instances of an OpenStack are told by dynamic vendordata."""

    vendordata: bool = Field(
        False, description="true or false: Nova may ask at /v1/vendordata, with a Keystone token"
    )
    cloud: str = Field(
        "", description="the cloud's name in clouds.yaml, to ask Keystone (empty: OS_* variables)"
    )
    users: Names = Field(
        default_factory=lambda: ["nova"],
        min_length=1,
        description="the Keystone users that may ask, with commas: NAME, or NAME@DOMAIN-ID",
    )
    guest_address: str = Field(
        "",
        description="the controllers' REST addresses as instances reach them, host:port with "
        "commas or https://host:port (empty: the address that others are told)",
    )
    enrolment_seconds: int = Field(
        600, ge=120, le=86400, description="how long an instance's one-time secret is good for"
    )
    token_seconds: int | None = Field(
        None, ge=60, description="how long its token is (empty: until it is revoked)"
    )
    reservation_wait_seconds: float = Field(
        1.0,
        ge=0,
        le=10,
        description="how long an instance's first question waits for its reservation, {bounds}",
    )


class ControllerConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    controller: ControllerSection = ControllerSection()
    store: StoreSection = Field(default_factory=StoreSection)
    pool: PoolSection = PoolSection()
    auth: AuthSection = AuthSection()
    console: ConsoleSection = ConsoleSection()
    oidc: OidcSection = Field(default_factory=OidcSection)
    alerts: AlertsSection = Field(default_factory=AlertsSection)
    openstack: OpenStackSection = Field(default_factory=OpenStackSection)
    tls: TlsSection = TlsSection()

    @model_validator(mode="after")
    def _whole_tls(self) -> ControllerConfig:
        if (self.tls.cert_file is None) != (self.tls.key_file is None):
            raise ValueError("[tls] has one of cert_file and key_file; give both or none")
        if self.tls.node_ca_file and not self.tls.cert_file:
            raise ValueError("[tls] node_ca_file needs cert_file and key_file")
        return self


def read_controller_config(path: Path | None) -> ControllerConfig:
    """Reads controller.conf; None takes the default path if it is there, else the defaults."""
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return read_config(path, ControllerConfig)
