# SPDX-License-Identifier: Apache-2.0
"""server.conf: which of a host's GPUs are given out, and how.

[native], [health] and [throttle]; part of config.server's ServerConfig.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from sluice.config.ini import Section
from sluice.config.sections import pairs, split_commas
from sluice.protocol.frames import MAX_DRAIN_MS
from sluice.resources.memory_factor import MOST_MEMORY_FACTOR
from sluice.resources.vgpu_request import Sharing


def _addresses(value: object) -> object:
    if not isinstance(value, str):
        return value
    twice = "names a GPU or an address twice"
    addresses = {gpu: text.lower() for gpu, text in pairs(value, twice).items()}
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


def _factors(value: object) -> object:
    return pairs(value, "names a GPU twice") if isinstance(value, str) else value


FactorsSetting = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=64)],
        Annotated[float, Field(ge=1.0, le=MOST_MEMORY_FACTOR)],
    ],
    Field(max_length=64),
    BeforeValidator(_factors),
]


class SuspendSection(Section):
    """[suspend]: sessions that stand still while their memory is the host's."""

    swap_mib: int = Field(
        0,
        ge=0,
        description="MiB of host memory that suspended sessions' device memory may take, and that "
        "they may keep for their next time (0: none, so that nothing is suspended here)",
    )
    ready_mib: int = Field(
        0,
        ge=0,
        description="MiB of these that are kept ready, which makes suspending faster (0: none)",
    )
    driver_memory: Literal["auto", "off"] = Field(
        "auto",
        description="auto or off: whether what is kept ready is made by the GPUs' driver where it "
        "can, which makes suspending and resuming faster; off: as shared memory, on huge pages "
        "where enough are free",
    )
    checkpoint_contexts: Literal["auto", "off"] = Field(
        "auto",
        description="auto or off: whether the CUDA context of a suspended session leaves its GPU, "
        "too, by the driver's checkpoint, where the driver has it (570 or newer) and the context "
        "can come back",
    )
    movable: Literal["on", "off"] = Field(
        "off",
        description="on or off: whether a suspended session may come back on another GPU of its "
        "model; its worker sees all of them then, and a GPU that is to go to a VM whole has to "
        "wait for the sessions that see it",
    )
    drain_seconds: float = Field(
        10.0,
        gt=0,
        le=MAX_DRAIN_MS / 1000,
        description="how many seconds a session has to come to a stop before it is suspended",
    )
    memory_oversubscription: float | None = Field(
        None,
        ge=1.0,
        le=MOST_MEMORY_FACTOR,
        description="how often each GPU's memory may be promised, as far as swap_mib takes what is "
        "beyond; 1.0: once (empty: as [pool] of the controller says)",
    )
    gpu_memory_oversubscription: FactorsSetting = Field(
        default_factory=dict,
        description="the same of single GPUs: UUID = factor pairs with commas, such as "
        "GPU-1a = 1.5, GPU-2b = 1",
    )
    idle_seconds: float = Field(
        10.0,
        ge=0.1,
        le=86400,
        description="a session without work for so many seconds gives its GPU memory to anybody "
        "who waits for it, where memory is promised more than once",
    )
    on_pause: Literal["keep", "suspend"] = Field(
        "keep",
        description="keep or suspend: what becomes of the sessions of a VM that is paused, as by "
        "virsh suspend; suspended, they go on with it",
    )


def _only_mode(value: bool) -> bool:
    if not value:
        raise ValueError("is not supported")
    return value


OnlyMode = Annotated[bool, AfterValidator(_only_mode)]


class ThrottleSection(Section):
    """[throttle]: how strictly compute shares are kept."""

    throttle_level: int = Field(
        50,
        ge=0,
        le=100,
        description="in which time each tenant of a GPU has its share: 0 (strictest) is 10 ms, 50 "
        "is 50 ms, 100 (most throughput) is 200 ms",
    )
    enable_computation_throttle: bool = Field(
        True, description="true or false: hold sessions to their compute share"
    )
    computation_throttle_mode2: OnlyMode = Field(True, description="true, the only mode")
    sharing: Literal[Sharing.TURNS, Sharing.CAPPED, Sharing.CONCURRENT] = Field(
        Sharing.TURNS,
        description="turns (more than its share while nobody else wants the GPU), capped (never "
        "more) or concurrent (sessions of a project at once, through NVIDIA's MPS), where request "
        "and pool say nothing",
    )
    run_together: bool = Field(
        True,
        description="true or false: tenants that do not fill a GPU together run at once while none "
        "has less than in turns",
    )
    merge_launches: Literal["auto", "off"] = Field(
        "auto",
        description="auto or off: whether commands that a program repeats may be launched as CUDA "
        "graphs, where it asks for that (SLUICE_MERGE)",
    )
    longest_overrun_seconds: float = Field(
        0.0,
        ge=0,
        le=86400,
        description="for how many seconds work that others wait for may run on beyond its turn "
        "before its session is ended (0: for ever)",
    )
    allow_concurrent: bool = Field(
        True, description="true or false: whether requests and the pool may choose concurrent here"
    )
    concurrent_headroom: float = Field(
        2.0,
        ge=1,
        le=12.5,
        description="how many times its share a session that runs at once with others may have of "
        "a GPU's multiprocessors, {bounds}",
    )
    mps_control: Path | None = Field(
        None,
        description="the path of nvidia-cuda-mps-control (empty: looked for in PATH, and not used "
        "with the software GPU)",
    )
    mps_idle_seconds: float = Field(
        60.0,
        gt=0,
        le=86400,
        description="after how many seconds without a session a project's MPS daemon is ended",
    )

    @property
    def period_ms(self) -> int:
        """In which each tenant that wants it has had its share."""
        middle = self.throttle_level - 50
        return 50 + (3 * middle if middle > 0 else 4 * middle // 5)
