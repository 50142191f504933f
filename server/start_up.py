# SPDX-License-Identifier: Apache-2.0
"""What a server starts from: its folder, the driver, NVIDIA's libraries, certificates and tokens.

Called by service. Whatever is missing or unreadable and without which no server can run is a
StartError that says what to set; anything else is a line in the log.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from pathlib import Path

from sluice.config.native_files import NativeFileMissing
from sluice.config.server import ServerConfig, ServerSection
from sluice.server.controller.tls import ControllerCredentials
from sluice.server.gpus.cuda_libraries import cuda_12_line, find_libraries, search_folders
from sluice.server.gpus.discovery import Driver, find_driver
from sluice.server.listeners.addresses import StartError
from sluice.server.listeners.data_tls import DataTls, DataTlsError, load_kernel_tls
from sluice.server.rdma.ports import ChosenPort, RdmaError, choose, read_ports
from sluice.server.sessions.code_cache import CodeCache
from sluice.server.workers.compute_cache import ComputeCache

log = logging.getLogger("sluice.server")


def lock_run_dir(run_dir: Path) -> int:
    """Makes the folder and keeps other servers out of it; returns the lock's descriptor."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StartError(
            f"another sluice-server runs in {run_dir}; stop it, or set [server] run_dir"
        ) from None
    except OSError as error:
        raise StartError(
            f"{run_dir} cannot be used ({error.strerror}); set [server] run_dir to a folder "
            "that the server may write"
        ) from None
    return lock


def chosen_driver(section: ServerSection) -> Driver:
    """The CUDA driver of this host's GPUs."""
    try:
        return find_driver(section.driver)
    except (NativeFileMissing, FileNotFoundError) as error:
        raise StartError(str(error)) from None


def library_folders(section: ServerSection, driver: Driver) -> list[Path]:
    """Where workers find NVIDIA's libraries; what is not there is said in the log."""
    setting = section.cuda_libraries
    if (driver.software and not setting) or driver.is_none:
        return []  # they need a GPU of NVIDIA's
    left_out: list[str] = []
    folders = search_folders(setting, left_out)
    for line in left_out:
        log.warning("%s", line)
    found = find_libraries(folders)
    if there := [f"{x.title} {x.version}".strip() for x in found if x.path]:
        log.info("libraries: %s, from %s", ", ".join(there), ", ".join(map(str, folders)))
        log.info("%s", cuda_12_line(folders))
    if missing := [x.title for x in found if not x.path]:
        log.warning(
            "this host lacks %s: programs that need them are told so; install them (they come "
            "with CUDA 13, cuDNN and NCCL) or name their folder in [server] cuda_libraries",
            ", ".join(missing),
        )
    return folders


def controller_credentials(config: ServerConfig) -> ControllerCredentials:
    """What the controller is shown, and shows."""
    try:
        return ControllerCredentials(config.tls, config.controller.token_file)
    except OSError as error:
        raise StartError(
            f"{error.filename}: cannot be read ({error.strerror}); see [tls] and [controller] "
            "token_file"
        ) from None


def data_tls(config: ServerConfig) -> DataTls | None:
    """The TLS of the data port; None where it has none."""
    pair = config.tls.data_pair
    if pair is None:
        return None
    tls = DataTls(*pair)
    try:
        if warning := tls.check(config.server.node_name):
            log.error("%s", warning)
    except DataTlsError as error:
        raise StartError(f"[tls] data_plane: {error}") from None
    kernel = "the kernel has TLS" if load_kernel_tls() else "the kernel has no TLS"
    log.info("data port: %s", kernel)
    return tls


def rdma_port(section: ServerSection) -> ChosenPort | None:
    """The port for sessions over RDMA. Without it, which is said, they go over TCP."""
    if not section.enable_rdma:
        return None
    try:
        chosen = choose(section, read_ports())
    except RdmaError as error:
        log.error("no session goes over RDMA: %s", error)
        return None
    log.info("RDMA: %s; the node's label rdma is %s", chosen.describe(), chosen.reach)
    return chosen


def code_cache(section: ServerSection) -> CodeCache | None:
    """Where network clients' code is kept; None where it is not."""
    if section.code_cache_dir is None or section.code_cache_mib == 0:
        return None
    try:
        return CodeCache(section.code_cache_dir, section.code_cache_mib << 20)
    except OSError as error:
        log.warning("code is not kept: [server] code_cache_dir: %s", error)
        return None


def compute_cache(section: ServerSection) -> ComputeCache | None:
    """Where what drivers compile is kept; None where it is not."""
    if section.compute_cache_mib == 0:
        return None
    folder = section.state_dir / "compute-cache"
    try:
        cache = ComputeCache(folder, section.compute_cache_mib << 20)
    except OSError as error:
        log.warning("compiled code is not kept: [server] state_dir: %s", error)
        return None
    closed = [p for p in folder.parents if not p.stat().st_mode & stat.S_IXOTH]
    if closed:
        log.warning(
            "compiled code is not kept: workers cannot pass through %s: give it mode 0711, or set "
            "[server] state_dir or compute_cache_mib = 0",
            closed[0],
        )
        return None
    return cache
