# SPDX-License-Identifier: Apache-2.0
"""server.conf as a model: what an operator may set for sluice-server.

Called by sluice.server's main; the object is handed to every part of the server and never changed.
The sections [log] [controller] [server] [server-nccl] [throttle] and their first keys are those of
the systems that Sluice replaces, so that an operator's file can be brought along.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from sluice.config.ini import Section, read_config
from sluice.config.sections import (
    HostPort,
    HostPorts,
    IpAddress,
    LogSection,
    Port,
    split_commas,
)

DEFAULT_PATH = Path("/etc/sluice/server.conf")


def _only_mode(value: bool) -> bool:
    if not value:
        raise ValueError("is not supported")
    return value


OnlyMode = Annotated[bool, AfterValidator(_only_mode)]


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.replace(",", ":").split(":") if part.strip()]


def _absolute(value: list[str]) -> list[str]:
    for folder in value:
        if not folder.startswith("/"):
            raise ValueError(f"{folder} is no absolute path")
        if not Path(folder).is_dir():
            raise ValueError(f"{folder} is no folder")
    return value


Folders = Annotated[list[str], BeforeValidator(_split), AfterValidator(_absolute)]


def _uids(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    words = [word.strip() for word in value.split("-")]
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise ValueError("is no range of user ids")
    return int(words[0]), int(words[1])


def _worker_uids(value: tuple[int, int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    first, last = value
    if first > last or first < 1000 or last > 2**32 - 2:
        raise ValueError("does not go upwards from at least 1000 to at most 4294967294")
    if first <= 65535 and last >= 65534:
        raise ValueError("holds 65534 or 65535, which are nobody's")
    return value


#: The first and the last.
WorkerUids = Annotated[tuple[int, int] | None, BeforeValidator(_uids), AfterValidator(_worker_uids)]


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


def _pairs(text: str, twice: str) -> dict[str, str]:
    """ "a = x, b = y" as a mapping; raises ValueError with `twice` where a name is repeated."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    found = {name.strip(): content.strip() for name, _, content in pairs}
    if len(found) < len(pairs):
        raise ValueError(twice)
    return found


def _labels(value: object) -> object:
    return _pairs(value, "names a label twice") if isinstance(value, str) else value


LabelText = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{1,63}$")]
LabelsSetting = Annotated[dict[LabelText, LabelText], BeforeValidator(_labels)]


class NodeSection(Section):
    """[node]: what the pool is told about this host."""

    labels: LabelsSetting = Field(
        default_factory=dict,
        description="name = value pairs with commas, such as rack=r12, rdma=ib0: letters, digits, "
        "dot, dash, underscore and slash",
    )


def _words(value: object) -> object:
    """ "a = x y, b = z" as a mapping to words."""
    if not isinstance(value, str):
        return value
    found = _pairs(value, "names somebody twice; give each one entry")
    return {name: text.split() for name, text in found.items()}


def _label_owners(value: object) -> object:
    found = _words(value)
    if isinstance(found, dict):
        for name, labels in found.items():
            if not re.fullmatch(r"(user|group|vm):.+", name):
                raise ValueError(f"{name}: write user:NAME, group:NAME or vm:NAME")
            if isinstance(labels, list) and len(labels) != 1:
                raise ValueError(f"{name}: give one label")
    return found


ProjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,120}$")]
Projects = Annotated[
    dict[str, Annotated[list[ProjectName], Field(min_length=1)]], BeforeValidator(_words)
]


class ProjectsSection(Section):
    """[projects]: on whose account this host's users and guests work, and what they may choose.

    Of several projects the first is theirs unless they choose another (SLUICE_PROJECT).
    """

    default: ProjectName = Field(
        "default", description="the project of whom nothing else is said of"
    )
    users: Projects = Field(
        default_factory=dict,
        description="user (name or number) = projects, with commas: alice=vision nlp, 1001=speech",
    )
    groups: Projects = Field(
        default_factory=dict, description="group (name or number) = projects, with commas"
    )
    vms: Projects = Field(
        default_factory=dict, description="guest (name or UUID) = projects, with commas"
    )
    labels: Annotated[dict[str, list[ProjectName]], BeforeValidator(_label_owners)] = Field(
        default_factory=dict,
        description="who draws on reservations for a label: user:alice=team-a, group:nlp=team-b, "
        "vm:web=team-c",
    )


class ServerSection(Section):
    """[server]: this host's GPUs, doors and folders."""

    vgpu_count: int = Field(
        4, ge=1, le=64, description="into how many vGPUs a GPU is cut by default, 1 to 64"
    )
    bind_addr: IpAddress = Field("127.0.0.1", description="the IP address of the data plane")
    bind_net: str | None = Field(
        None, description="the network interface of the data plane, instead of bind_addr"
    )
    listen_port: Port = Field(9960, description="the data port, 1 to 65535 (0: any free one)")
    advertise_addr: str | None = Field(
        None, description="the address that TCP clients are told, if it is not bind_addr"
    )
    enable_kvm: bool = Field(True, description="true or false: serve guests of libvirt")
    enable_shm: bool = Field(True, description="true or false: serve processes of this host")
    enable_relay: bool = Field(
        True,
        description="true or false: carry what this host's GPUs can never serve to other hosts'",
    )
    vsock_backend: str = Field(
        "vhost-device-vsock",
        description="the program that serves guests' vsock where the kernel has no vhost-vsock "
        "(empty: none)",
    )
    enable_rdma: bool = Field(
        False, description="true or false: use RDMA (not there yet: true only logs a warning)"
    )
    ibverbs_device: str | None = Field(None, description="the RDMA device, such as mlx5_0")

    libvirt_uri: str = Field(
        "qemu:///system", description="the libvirt whose guests are served, as in virsh -c"
    )
    node_name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=120,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="the node's name in the pool, letters, digits, dot, dash and underscore",
    )
    run_dir: Path = Field(Path("/run/sluice"), description="the folder of sockets and worker state")
    state_dir: Path = Field(
        Path("/var/lib/sluice-server"),
        description="the folder of what outlives a reboot: GPUs' health",
    )
    socket_path: Path | None = Field(
        None, description="the Unix socket of local clients (run_dir/server.sock)"
    )
    region_dir: Path = Field(Path("/dev/shm"), description="the folder of the guests' regions")
    arena_mib: int = Field(
        256, ge=1, le=65536, description="MiB of shared pinned memory of a local session"
    )
    driver: str = Field(
        "auto", description="auto, softgpu, none, or the path of a CUDA driver library"
    )
    cuda_libraries: Folders = Field(
        default_factory=list,
        description="the folders of NVIDIA's libraries, absolute, with commas (empty: look)",
    )
    visible_devices: str = Field(
        "", description="a comma-separated list of GPU UUIDs to put in the pool (empty: all)"
    )
    code_cache_dir: Path | None = Field(
        None, description="the folder where network clients' code is kept (empty: nowhere)"
    )
    code_cache_mib: int = Field(
        4096, ge=0, description="MiB of code that are kept at most (0: none)"
    )
    worker_user: str = Field(
        "sluice-worker",
        description="the account whose group workers have; without worker_uids they run as it",
    )
    worker_uids: WorkerUids = Field(
        (2100000000, 2100065535),
        description="a range of user ids, as 2100000000-2100065535, of which each grant's workers "
        "get one (empty: all run as worker_user)",
    )
    worker_uid_for: Literal["job", "project"] = Field(
        "job", description="job or project: whose workers share a user id"
    )
    worker_sandbox: bool = Field(True, description="true or false: workers confine themselves")
    charge_libraries: bool = Field(
        True, description="true or false: what NVIDIA's libraries take is a vGPU's memory"
    )
    context_overhead_mib: int | None = Field(
        None, ge=0, description="MiB of a GPU that each session's context takes (534 on NVIDIA)"
    )
    prestart_workers: int = Field(
        1, ge=0, le=16, description="how many workers wait ready for each GPU, 0 to 16"
    )
    worker_start_seconds: float = Field(
        60.0, gt=0, le=600, description="how many seconds a worker may take to be ready"
    )
    session_memory_mib: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="MiB of host memory of one session's cgroup (0: no limit), or auto: far more "
        "than any needs",
    )
    session_pids: int = Field(
        1024, ge=0, description="how many threads one session's cgroup may hold (0: no limit)"
    )
    silent_seconds: float = Field(
        300.0, gt=0, description="after how many silent seconds a guest's session is given up"
    )


def _addresses(value: object) -> object:
    if not isinstance(value, str):
        return value
    twice = "names a GPU or an address twice"
    addresses = {gpu: text.lower() for gpu, text in _pairs(value, twice).items()}
    if len(set(addresses.values())) < len(addresses):
        raise ValueError(twice)
    return addresses


PciAddressText = Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$")]
AddressesSetting = Annotated[dict[str, PciAddressText], BeforeValidator(_addresses)]


class NativeSection(Section):
    """[native]: GPUs that are given whole to one VM."""

    addresses: AddressesSetting = Field(
        default_factory=dict,
        description="UUID = PCI address pairs with commas, such as GPU-1a = 0000:65:00.0, for GPUs "
        "of which NVML does not tell it",
    )
    sysfs_dir: Path = Field(
        Path("/sys"), description="the folder where the kernel shows PCI devices"
    )


XidNumbers = Annotated[
    frozenset[Annotated[int, Field(ge=1, le=9999)]], BeforeValidator(split_commas)
]


class HealthSection(Section):
    """[health]: which GPUs are fit to be given out."""

    gpu_acceptance: Literal["refuse", "flag", "off"] = Field(
        "refuse",
        description="refuse, flag or off: what becomes of a GPU that does not pass its checks",
    )
    gpu_unchecked: Literal["flag", "refuse"] = Field(
        "flag", description="flag or refuse: what becomes of one that cannot be checked (no CuPy)"
    )
    acceptance_seconds: float = Field(
        120.0, gt=0, le=3600, description="how many seconds the checks of one GPU may take"
    )
    acceptance_memory_mib: int = Field(
        4096, ge=1, description="MiB of a GPU's memory that the checks write and read"
    )
    watch: bool = Field(True, description="true or false: hear of XID errors and lost GPUs")
    fault_xids: XidNumbers = Field(
        frozenset(), description="XID numbers, with commas, that condemn a GPU besides the usual"
    )
    ignored_xids: XidNumbers = Field(
        frozenset(), description="XID numbers, with commas, that are only noted"
    )


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
        None, description="the CA of other nodes' data ports, for relays to them (ca_file)"
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


class NcclSection(Section):
    """[server-nccl]: collective communication between GPU nodes."""

    comm_id: HostPort = Field(
        "127.0.0.1:9970", description="NCCL's address and port as host:port; read, not used yet"
    )


class ThrottleSection(Section):
    """[throttle]: how strictly compute shares are kept."""

    throttle_level: int = Field(
        100, ge=0, le=100, description="0 (strictest) to 100 (most throughput); read, not used yet"
    )
    enable_computation_throttle: bool = Field(
        True, description="true or false: hold sessions to their compute share"
    )
    computation_throttle_mode2: OnlyMode = Field(True, description="true, the only mode")


class NovaSection(Section):
    """[nova]: what OpenStack Nova's virt driver is given on a compute host."""

    group: str = Field(
        "nova", description="the group, besides root, that may ask for channels of VMs"
    )
    channel: Literal["ivshmem", "vsock"] = Field(
        "ivshmem", description="ivshmem, or vsock where the kernel has vhost-vsock"
    )
    region_mib: int = Field(
        256, ge=8, le=1 << 20, description="the size of an instance's region, a power of two"
    )
    slots: int = Field(
        4, ge=1, le=64, description="how many processes of an instance at once, 1 to 64"
    )

    @model_validator(mode="after")
    def _fits(self) -> NovaSection:
        if self.region_mib & (self.region_mib - 1):
            raise ValueError("region_mib is the size of a PCI BAR; give a power of two")
        if self.region_mib < 4 * self.slots + 1:
            raise ValueError(
                "a slot needs 4 MiB of the region; give fewer slots or more region_mib"
            )
        return self


class ServerConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    controller: ControllerSection = ControllerSection()
    server: ServerSection = Field(default_factory=ServerSection)
    node: NodeSection = NodeSection()
    projects: ProjectsSection = ProjectsSection()
    native: NativeSection = NativeSection()
    nova: NovaSection = Field(default_factory=NovaSection)
    health: HealthSection = HealthSection()
    tls: TlsSection = TlsSection()
    metrics: MetricsSection = MetricsSection()
    server_nccl: NcclSection = NcclSection()
    throttle: ThrottleSection = ThrottleSection()

    @model_validator(mode="after")
    def _whole_tls(self) -> ServerConfig:
        if (self.tls.cert_file is None) != (self.tls.key_file is None):
            raise ValueError("[tls] has one of cert_file and key_file; give both or none")
        if (self.tls.data_cert_file is None) != (self.tls.data_key_file is None):
            raise ValueError("[tls] has one of data_cert_file and data_key_file; give both or none")
        if self.tls.data_plane and not self.tls.data_pair:
            raise ValueError(
                "[tls] data_plane = true needs a certificate: data_cert_file and data_key_file, or "
                "cert_file and key_file"
            )
        if self.tls.cert_file and not self.tls.ca_file:
            raise ValueError("[tls] cert_file needs ca_file, the controller's CA")
        return self

    @model_validator(mode="after")
    def _one_data_address(self) -> ServerConfig:
        if self.server.bind_net and "bind_addr" in self.server.model_fields_set:
            raise ValueError("[server] has both bind_addr and bind_net; keep one of them")
        return self

    @property
    def client_socket(self) -> Path:
        """The Unix socket of local clients."""
        return self.server.socket_path or self.server.run_dir / "server.sock"


def read_server_config(path: Path | None) -> ServerConfig:
    """Reads server.conf; None takes the default path if it is there, else the defaults."""
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return read_config(path, ServerConfig)
