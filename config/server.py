# SPDX-License-Identifier: Apache-2.0
"""server.conf as a model: what an operator may set for sluice-server.

Called by sluice.server's main; the object is handed to every part of the server and never changed.
Its sections on connections, projects and GPUs are in the modules beside this one (server_*.py).
The sections [log] [controller] [server] [server-nccl] [throttle] and their first keys are those of
the systems that Sluice replaces, so that an operator's file can be brought along.
"""

from __future__ import annotations

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

from sluice.config.files import SERVER_FILE
from sluice.config.ini import Section, read_config
from sluice.config.sections import (
    ANY_PORT,
    HostPort,
    IpAddress,
    LogSection,
    Port,
    pairs,
)
from sluice.config.server_connections import ControllerSection, MetricsSection, TlsSection
from sluice.config.server_containers import ContainersSection
from sluice.config.server_gpus import HealthSection, NativeSection, SuspendSection, ThrottleSection
from sluice.config.server_projects import ProjectsSection
from sluice.resources.vgpu_request import LABEL_WORD

DEFAULT_PATH = SERVER_FILE


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


def _labels(value: object) -> object:
    return pairs(value, "names a label twice") if isinstance(value, str) else value


NcclNames = Annotated[str, Field(pattern=r"^(?:\^?=?[A-Za-z0-9._@:,-]+)?$")]
LabelText = Annotated[str, Field(pattern=f"^{LABEL_WORD}$")]
LabelsSetting = Annotated[dict[LabelText, LabelText], BeforeValidator(_labels)]


class NodeSection(Section):
    """[node]: what the pool is told about this host."""

    labels: LabelsSetting = Field(
        default_factory=dict,
        description="name = value pairs with commas, such as rack=r12, rdma=ib0: letters, digits, "
        "dot, dash, underscore and slash",
    )


class ServerSection(Section):
    """[server]: this host's GPUs, listeners and folders."""

    vgpu_count: int = Field(
        4, ge=1, le=64, description="into how many vGPUs a GPU is cut by default, {bounds}"
    )
    bind_addr: IpAddress = Field("127.0.0.1", description="the IP address of the data plane")
    bind_net: str | None = Field(
        None, description="the network interface of the data plane, instead of bind_addr"
    )
    listen_port: Port = Field(9960, description=f"the data port, {ANY_PORT}")
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
        False, description="true or false: serve clients that have RDMA over it (needs pyverbs)"
    )
    ibverbs_device: str | None = Field(
        None,
        description="the RDMA device, such as mlx5_0 (empty: the first with a port that is up)",
    )
    ibverbs_port: int | None = Field(
        None, ge=1, le=255, description="its port, {bounds} (empty: the first that is up)"
    )
    ibverbs_gid: int | None = Field(
        None,
        ge=0,
        le=255,
        description="the index of the port's GID, {bounds} (empty: RoCE v2, of an IPv4 address "
        "where there is one)",
    )

    libvirt_uri: str = Field(
        "qemu:///system", description="the libvirt whose guests are served, as in virsh -c"
    )
    node_name: str = Field(
        default_factory=socket.gethostname,
        json_schema_extra={"default": "the host name"},
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
    compute_cache_mib: int = Field(
        1024,
        ge=0,
        description="MiB of code compiled by the driver that are kept in state_dir for the next "
        "session of a tenant (0: none, and each session compiles for itself)",
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
        1, ge=0, le=16, description="how many workers wait ready for each GPU, {bounds}"
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
    network_grace_seconds: int = Field(
        60,
        ge=0,
        le=86400,
        description="how long a session over TCP, vsock or a relay waits for its client to come "
        "back when their connection has broken (0: it ends with the connection)",
    )
    closed_grace_seconds: int = Field(
        10,
        ge=0,
        le=86400,
        description="the same where the client's end was closed, as it is when its process is "
        "killed; at most network_grace_seconds count",
    )
    bulk_connections: int = Field(
        4,
        ge=0,
        le=8,
        description="how many connections a session over TCP may have beside its first, for large "
        "copies (0: none)",
    )


class NcclSection(Section):
    """[server-nccl]: collective communication between GPU nodes.

    The two networks are said as NCCL's variables say them (docs.nvidia.com, "NCCL environment
    variables"), and go before what the server's environment has.
    """

    socket_ifname: NcclNames = Field(
        "",
        description="the interfaces of NCCL's connections between nodes, as `NCCL_SOCKET_IFNAME` "
        "takes them (`eth1`, `=ens5f0`, `^docker0`); empty: NCCL's own choice",
    )
    ib_hca: NcclNames = Field(
        "",
        description="its InfiniBand and RoCE adapters, as `NCCL_IB_HCA` takes them (`=mlx5_0:1`); "
        "empty: NCCL's own choice",
    )
    comm_id: HostPort = Field(
        "127.0.0.1:9970",
        description="accepted for configurations that have it: ranks find one another by the id "
        "that the program passes between them",
    )

    def environment(self) -> dict[str, str]:
        """What workers are told of it."""
        told = {"NCCL_SOCKET_IFNAME": self.socket_ifname, "NCCL_IB_HCA": self.ib_hca}
        return {name: value for name, value in told.items() if value}


class NovaSection(Section):
    """[nova]: what OpenStack Nova's virt driver is given on a compute host."""

    group: str = Field(
        "nova", description="the group, besides root, that may ask for channels of VMs"
    )
    channel: Literal["ivshmem", "ivshmem-doorbell", "vsock"] = Field(
        "ivshmem",
        description="ivshmem; ivshmem-doorbell, which wakes the host at once and whose instances "
        "start only while the server runs; or vsock, where the kernel has vhost-vsock",
    )
    region_mib: int = Field(
        256, ge=8, le=1 << 20, description="the size of an instance's region, a power of two"
    )
    slots: int = Field(
        4, ge=1, le=64, description="how many processes of an instance at once, {bounds}"
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
    containers: ContainersSection = Field(default_factory=ContainersSection)
    native: NativeSection = NativeSection()
    nova: NovaSection = Field(default_factory=NovaSection)
    health: HealthSection = HealthSection()
    tls: TlsSection = TlsSection()
    metrics: MetricsSection = MetricsSection()
    server_nccl: NcclSection = NcclSection()
    throttle: ThrottleSection = ThrottleSection()
    suspend: SuspendSection = SuspendSection()

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
    def _memory_beyond_the_gpus(self) -> ServerConfig:
        said = {"memory_oversubscription": self.suspend.memory_oversubscription or 1.0}
        of_gpus = self.suspend.gpu_memory_oversubscription
        said |= {f"gpu_memory_oversubscription of {gpu}": of_gpus[gpu] for gpu in sorted(of_gpus)}
        for name, factor in said.items():
            if factor > 1 and not self.suspend.swap_mib:
                raise ValueError(
                    f"[suspend] {name} is {factor:g}, and there is no host memory for what is not "
                    "on the GPU: set [suspend] swap_mib"
                )
            if factor > 1 and not self.throttle.enable_computation_throttle:
                raise ValueError(
                    f"[suspend] {name} is {factor:g}, and nobody says whose memory is on the GPU: "
                    "set [throttle] enable_computation_throttle = true"
                )
        return self

    @model_validator(mode="after")
    def _what_suspension_needs(self) -> ServerConfig:
        if self.suspend.movable == "on" and not self.suspend.swap_mib:
            raise ValueError(
                "[suspend] movable is on, and there is no host memory for what is suspended: set "
                "[suspend] swap_mib"
            )
        if self.suspend.movable == "on" and self.suspend.checkpoint_contexts == "off":
            raise ValueError(
                "[suspend] movable is on, and a session moves with its context, which "
                "checkpoint_contexts = off keeps on its GPU: set it to auto"
            )
        if self.suspend.on_pause == "suspend" and not self.suspend.swap_mib:
            raise ValueError(
                "[suspend] on_pause is suspend, and there is no host memory for what is suspended: "
                "set [suspend] swap_mib"
            )
        return self

    @property
    def memory_factor(self) -> float:
        """How often each GPU's memory may be promised; 0: as the pool says."""
        if not self.throttle.enable_computation_throttle or not self.suspend.swap_mib:
            return 1.0
        return self.suspend.memory_oversubscription or 0.0

    def memory_factor_of(self, gpu_uuid: str) -> float:
        """How often a GPU's memory may be promised; 0: as that of all of them."""
        return self.suspend.gpu_memory_oversubscription.get(gpu_uuid, 0.0)

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
