# SPDX-License-Identifier: Apache-2.0
"""The running server: every part of it, started and stopped in one readable order.

Called by server.__main__ and by tests. Order of start: driver, sessions.adoption of what still
runs, data port, GPUs and warm workers, the line to the controller, the other doors. On stop the
doors close and sessions go on: their workers outlive the server, and the next one adopts them.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.config.native_files import NativeFileMissing
from sluice.config.server import ServerConfig
from sluice.config.version import own_version
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink
from sluice.server.controller.orders import OrderRefused
from sluice.server.controller.tls import ControllerLine
from sluice.server.gpus.acceptance import Acceptance
from sluice.server.gpus.cuda_libraries import find_libraries, search_folders
from sluice.server.gpus.discovery import Driver, LocalGpu, describe_gpus, find_driver
from sluice.server.gpus.figures import GpuReader
from sluice.server.gpus.health import GpuHealth, driver_version
from sluice.server.gpus.native import NativeGpus
from sluice.server.gpus.nvml_watch import NvmlWatch, nvml_beside
from sluice.server.gpus.records import GpuRecords
from sluice.server.guests.machines import GuestMachines
from sluice.server.guests.regions import Regions
from sluice.server.listeners.addresses import StartError, data_address, reachable_address
from sluice.server.listeners.data_port import DataPort
from sluice.server.listeners.data_tls import DataTls, DataTlsError, load_kernel_tls
from sluice.server.listeners.unix_socket import UnixListener
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.adoption import adopt_workers
from sluice.server.sessions.code_cache import CodeCache
from sluice.server.sessions.logs import read_session_log
from sluice.server.sessions.manager import SessionManager
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.warm import WarmWorkers
from sluice.server.workers.worker import WorkerError

if TYPE_CHECKING:
    from sluice.server.guests.service import Guests
    from sluice.server.listeners.metrics_port import MetricsListener
log = logging.getLogger("sluice.server")

DISCOVERY_RETRY_SECONDS = 10.0


class Server:
    """One sluice-server; the ServerSide of its ControllerLink and the Ward of its GpuHealth."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lock = -1
        self._metrics_listener: MetricsListener | None = None
        self._guests: Guests | None = None
        self.gpus: list[LocalGpu] = []

    async def start(self) -> None:
        """Starts everything; raises StartError."""
        section, log_dir = self._config.server, self._config.log.log_dir
        self._take_run_dir(section.run_dir)
        if section.enable_rdma:
            log.warning("[server] enable_rdma = true: RDMA is not there yet and is not used")
        driver = self._driver()
        libraries = self._libraries(driver)
        starter = WorkerStarter(self._config, WorkerFiles(section.run_dir), libraries)
        self.health = self._make_health(driver, libraries)
        self._workers = WarmWorkers(
            starter,
            driver,
            log_dir,
            per_gpu=section.prestart_workers,
            start_seconds=section.worker_start_seconds,
        )
        controller = self._config.controller
        self.controller = ControllerLink(
            controller.grpc_targets,
            self,
            controller.wait_seconds,
            self._line(),
        )
        self.manager = SessionManager(
            section.node_name,
            self.controller,
            self._workers,
            starter,
            log_dir,
            throttle=self._config.throttle.enable_computation_throttle,
            accounts=Accounts(self._config.projects),
            code_cache=self._code_cache(),
        )
        if section.enable_relay:
            tls = self._config.tls
            self.manager.relay_by(section.run_dir, tls.data_ca_file or tls.ca_file)
        self.regions = Regions(self.manager, section.silent_seconds)
        self.machines = GuestMachines(Accounts(self._config.projects), self.controller.report)
        self.native = NativeGpus(
            self._config,
            self._workers,
            lambda: self.gpus,
            lambda: self._look_and_report(driver),
            self.controller.report,
        )
        await adopt_workers(starter, self._workers, self.manager)

        address = data_address(section.bind_addr, section.bind_net)
        self.data_port = DataPort(
            address, section.listen_port, self.manager, self.controller, self._data_tls()
        )
        self._advertised = section.advertise_addr or reachable_address(
            address, controller.grpc_targets[0]
        )
        try:
            self.data_port.open()
        except OSError as error:
            raise StartError(
                f"the data port {address}:{section.listen_port} cannot be opened "
                f"({error.strerror}); set [server] bind_addr and listen_port"
            ) from None
        await self._find_gpus(driver)
        self._run(self.health.run())
        self._run(self.controller.run())
        self.unix_listener = UnixListener(
            self._config.client_socket, self.manager, section.arena_mib, socket.gethostname()
        )
        if section.enable_shm:
            try:
                self.unix_listener.open()
            except OSError as error:
                raise StartError(
                    f"{self._config.client_socket} cannot be opened ({error.strerror}); set "
                    "[server] socket_path or run_dir to a place that the server may write"
                ) from None
        if section.enable_kvm:
            self._serve_guests(starter)
        self._open_metrics(driver)

    async def stop(self) -> None:
        """Closes the doors; sessions go on without this server."""
        if self._metrics_listener:
            await self._metrics_listener.close()
        if self._guests:
            await self._guests.close()
        await self.unix_listener.close()
        await self.data_port.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._workers.stop()
        self.manager.let_go()
        await self.controller.close()
        os.close(self._lock)
        log.info("stopped; %d session(s) go on", len(self.manager.served))

    def _open_metrics(self, driver: Driver) -> None:
        section = self._config.metrics
        if not section.listen:
            return
        from sluice.server.listeners.metrics_port import MetricsListener
        from sluice.server.metrics import ServerMetrics

        metrics = ServerMetrics(
            self._config.server.node_name,
            gpus=lambda: self.gpus,
            reader=GpuReader(driver),
            sessions=self.manager.figures,
            workers=self._workers,
            controller=self.controller,
            health=self.health,
        )
        try:
            self._metrics_listener = MetricsListener(section, self._config.tls, metrics.scrape)
            self._metrics_listener.open()
        except OSError as error:
            # sessions matter more than their figures
            self._metrics_listener = None
            what = error.filename or section.listen
            log.error("there are no metrics: %s: %s; see [metrics]", what, error.strerror)

    def _line(self) -> ControllerLine:
        try:
            return ControllerLine(self._config.tls, self._config.controller.token_file)
        except OSError as error:
            raise StartError(
                f"{error.filename}: cannot be read ({error.strerror}); see [tls] and [controller] "
                "token_file"
            ) from None

    def _data_tls(self) -> DataTls | None:
        pair = self._config.tls.data_pair
        if pair is None:
            return None
        tls = DataTls(*pair)
        try:
            if warning := tls.check(self._config.server.node_name):
                log.error("%s", warning)
        except DataTlsError as error:
            raise StartError(f"[tls] data_plane: {error}") from None
        kernel = "the kernel has TLS" if load_kernel_tls() else "the kernel has no TLS"
        log.info("data port: %s", kernel)
        return tls

    # what the controller may ask (ServerSide)

    def inventory(self) -> rpc.Inventory:
        """Everything that is here and runs here, now."""
        sessions = [session.report() for session in self.manager.sessions.values()]
        return rpc.Inventory(
            node=self._config.server.node_name,
            data_address=self._advertised,
            data_port=self.data_port.port,
            data_tls=self._config.tls.data_plane,
            version=own_version(),
            vgpu_count=self._config.server.vgpu_count,
            gpus=[
                rpc.Gpu(
                    uuid=gpu.uuid,
                    model=gpu.name,
                    memory_mib=gpu.memory_mib,
                    software=gpu.software,
                    context_overhead_mib=gpu.context_overhead_mib,
                    reserved_mib=gpu.reserved_mib,
                    architecture=gpu.architecture,
                    numa_node=gpu.numa_node if gpu.numa_node >= 0 else None,
                    nvlink_group=gpu.nvlink_group,
                    let_go=self._workers.has_let_go(gpu.uuid),
                    pci_address=self.native.address_of(gpu),
                    native_problem=self.native.problem_of(gpu),
                    fault=condition.fault,
                    held=condition.held,
                    note=condition.note,
                )
                for gpu in self.gpus
                for condition in (self.health.condition(gpu.uuid),)
            ],
            hands_over=True,
            sessions=sessions + self.data_port.expected_reports(),
            holds=self.manager.holds.reports(),
            labels=[
                rpc.Label(name=name, value=value)
                for name, value in sorted(self._config.node.labels.items())
            ],
        )

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        """Expects a TCP client. Raises OrderRefused."""
        known = {gpu.uuid for gpu in self.gpus}
        missing = [v.gpu_uuid for v in assignment.vgpus if v.gpu_uuid not in known]
        if missing:
            raise OrderRefused(f"it has no GPU {', '.join(missing)}")
        self.data_port.expect(assignment)

    def end_grant(self, grant_id: str, why: End) -> None:
        """Ends what runs for a grant."""
        running = self.manager.end_grant(grant_id, why)
        if not running and not self.data_port.forget_grant(grant_id, why):
            # nothing of it is here: the books only need to hear that
            self.controller.report_end("", grant_id, why)

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """Changes the limits of what runs for a grant. Raises OrderRefused."""
        if self.data_port.resize_grant(grant_id, vgpus):
            return
        if not any(session.grant_id == grant_id for session in self.manager.sessions.values()):
            raise OrderRefused(f"no session of grant {grant_id} is open here yet; try again")
        await self.manager.resize_grant(grant_id, vgpus)

    async def hand_over(self, order: rpc.HandOver) -> None:
        """Lets a GPU go, or takes it back. Raises OrderRefused."""
        if order.back:
            await self.native.take_back(order)
            self.health.take_back(order.gpu_uuid)
        await self.manager.hand_over(order.gpu_uuid, back=order.back)
        if order.to_native:
            await self.health.give_away(order.gpu_uuid)
            await self.native.leave(order)

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        """Gives a whole GPU up, to a VM, or back."""
        return await self.native.carry_out(order)

    def report_holdings(self) -> None:
        """Reports what VMs ask for and what they have of this host's GPUs, once that is known."""
        self.native.report()
        self.machines.report()

    def read_log(self, session_id: str, tail_bytes: int) -> str:
        """The end of a session's log."""
        return read_session_log(self._config.log.log_dir, session_id, tail_bytes)

    def order_gpu(self, uuid: str, *, clear: bool) -> None:
        """Clears a GPU's fault, or has it checked. Raises OrderRefused."""
        if clear:
            self.health.clear(uuid)
        else:
            self.health.check(uuid)

    # what becomes of GPUs (Ward)

    def condition_changed(self, uuid: str) -> None:
        """Tells the controller first: nothing may be placed where a session has just ended."""
        now = self.health.condition(uuid)
        told = rpc.GpuCondition(uuid=uuid, fault=now.fault, held=now.held, note=now.note)
        self.controller.report(rpc.NodeReport(gpu_condition=told))
        self._keep_warm(uuid)
        if now.fault:
            cause, _, _ = now.fault.partition(";")  # what to do then is for operators
            why = End(EndCause.GPU_FAILED, f"GPU {uuid} has failed: {cause}")
            for session in self.manager.on_gpu(uuid):
                self.manager.end(session, why)

    def sessions_on(self, uuid: str) -> int:
        """How many sessions use a GPU."""
        return len(self.manager.on_gpu(uuid))

    def note_on_sessions(self, uuid: str, text: str) -> None:
        """Tells in the logs of a GPU's sessions what happened on it."""
        for session in self.manager.on_gpu(uuid):
            session.log.write(text, logging.WARNING)

    # within

    def _make_health(self, driver: Driver, libraries: Sequence[Path]) -> GpuHealth:
        section = self._config.health
        library = nvml_beside(driver.path)
        return GpuHealth(
            section,
            GpuRecords(self._config.server.state_dir),
            Acceptance(
                driver.path, section.acceptance_seconds, section.acceptance_memory_mib, libraries
            ),
            self,
            driver_version=driver_version(),
            watch=(lambda health: NvmlWatch(library, health)) if library else None,
        )

    def _take_run_dir(self, run_dir: Path) -> None:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(run_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"another sluice-server runs in {run_dir}; stop it, or set [server] run_dir"
            ) from None
        except OSError as error:
            raise StartError(
                f"{run_dir} cannot be used ({error.strerror}); set [server] run_dir to a folder "
                "that the server may write"
            ) from None

    def _code_cache(self) -> CodeCache | None:
        section = self._config.server
        if section.code_cache_dir is None or section.code_cache_mib == 0:
            return None
        try:
            return CodeCache(section.code_cache_dir, section.code_cache_mib << 20)
        except OSError as error:
            log.warning("code is not kept: [server] code_cache_dir: %s", error)
            return None

    def _driver(self) -> Driver:
        try:
            return find_driver(self._config.server.driver)
        except (NativeFileMissing, FileNotFoundError) as error:
            raise StartError(str(error)) from None

    def _libraries(self, driver: Driver) -> list[Path]:
        setting = self._config.server.cuda_libraries
        if (driver.software and not setting) or driver.is_none:
            return []  # they need a GPU of NVIDIA's
        left_out: list[str] = []
        folders = search_folders(setting, left_out)
        for line in left_out:
            log.warning("%s", line)
        found = find_libraries(folders)
        if there := [f"{x.title} {x.version}".strip() for x in found if x.path]:
            log.info("libraries: %s, from %s", ", ".join(there), ", ".join(map(str, folders)))
        if missing := [x.title for x in found if not x.path]:
            log.warning(
                "this host lacks %s: programs that need them are told so; install them (they come "
                "with CUDA 13, cuDNN and NCCL) or name their folder in [server] cuda_libraries",
                ", ".join(missing),
            )
        return folders

    async def _find_gpus(self, driver: Driver) -> None:
        if driver.is_none:
            log.info("this host gives no GPU: [server] driver = none")
            return
        try:
            await self._look_at_gpus(driver)
        except WorkerError as error:
            log.error("no GPU of this host is in the pool: %s", error)
            self._run(self._keep_looking(driver))

    async def _keep_looking(self, driver: Driver) -> None:
        while True:
            await asyncio.sleep(DISCOVERY_RETRY_SECONDS)
            try:
                await self._look_at_gpus(driver)
            except WorkerError as error:
                log.debug("still no GPU: %s", error)
            else:
                self.controller.report_inventory()
                return

    async def _look_at_gpus(self, driver: Driver) -> None:
        section = self._config.server
        wanted = {uuid.strip() for uuid in section.visible_devices.split(",") if uuid.strip()}
        devices = [d for d in await self._workers.see_devices() if not wanted or d.uuid in wanted]
        self.gpus = describe_gpus(
            devices, driver, section.prestart_workers, section.context_overhead_mib
        )
        for gpu in self.gpus:
            log.info("GPU %s: %s, %d MiB", gpu.uuid, gpu.name, gpu.memory_mib)
        self.health.join(self.gpus)
        for gpu in self.gpus:
            self._keep_warm(gpu.uuid)

    async def _look_and_report(self, driver: Driver) -> None:
        await self._look_at_gpus(driver)
        self.controller.report_inventory()

    def _keep_warm(self, uuid: str) -> None:
        (self._workers.wake if self.health.condition(uuid).takes_work else self._workers.rest)(uuid)

    def _serve_guests(self, starter: WorkerStarter) -> None:
        try:
            from sluice.server.guests.service import Guests
        except ImportError as error:
            log.warning(
                "guests are not served: %s; install the extra `sluice-gpu[libvirt]`, or set "
                "[server] enable_kvm = false",
                error,
            )
            return
        self._guests = Guests(
            self._config,
            self.manager,
            self.regions,
            starter,
            host_devices=self.native,
            machines=self.machines,
        )
        self._guests.open(self._run)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a part of the server ended with an error", exc_info=error)
