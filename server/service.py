# SPDX-License-Identifier: Apache-2.0
"""The running server: every part of it, started and stopped in one readable order.

Called by server.__main__. Order of start: what start_up finds, sessions.adoption of what still
runs, data port, GPUs and warm workers, the connection to the controller, the other listeners. On
stop the listeners close and sessions go on: their workers outlive the server, and the next one
adopts them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.config.places import Places
from sluice.config.server import ServerConfig
from sluice.server.checkpoints.caller import Caller
from sluice.server.claims.listener import ClaimsListener
from sluice.server.claims.service import Claims
from sluice.server.containers.admission import Admission
from sluice.server.containers.devices import ContainerDevices
from sluice.server.containers.identity import ContainerIdentities
from sluice.server.containers.sockets import ContainerSockets
from sluice.server.controller.link import ControllerLink
from sluice.server.controller.node_side import NodeParts, NodeSide
from sluice.server.controller.orders import ServerSide
from sluice.server.gpus.discovery import Driver
from sluice.server.gpus.figures import GpuReader
from sluice.server.gpus.host_gpus import HostGpus
from sluice.server.gpus.native import NativeGpus
from sluice.server.gpus.nvml_watch import nvml_beside
from sluice.server.gpus.process_use import ProcessUseReader
from sluice.server.gpus.sharing import GpuSharing
from sluice.server.gpus.view_figures import ViewFigures
from sluice.server.guests.machines import GuestMachines
from sluice.server.guests.regions import Regions
from sluice.server.guests.requests import GuestRequests
from sluice.server.guests.standing import GuestStandings
from sluice.server.host_memory.driver_memory import DriverMemory
from sluice.server.listeners.addresses import StartError, data_address, reachable_address
from sluice.server.listeners.data_port import DataPort
from sluice.server.listeners.unix_socket import UnixListener, local_places
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.adoption import adopt_workers
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.residency import Residency
from sluice.server.sessions.turn_pages import TurnPages
from sluice.server.sessions.use_watch import UseWatch
from sluice.server.sessions.views import GpusHere
from sluice.server.start_up import (
    chosen_driver,
    code_cache,
    compute_cache,
    controller_credentials,
    data_tls,
    library_folders,
    lock_run_dir,
    rdma_port,
)
from sluice.server.workers.mps import MpsDaemons, control_program, problem_here
from sluice.server.workers.process import WorkerFiles, WorkerStarter
from sluice.server.workers.session_start import ResumeTerms
from sluice.server.workers.warm import WarmWorkers

if TYPE_CHECKING:
    from sluice.server.guests.service import Guests
    from sluice.server.listeners.metrics_port import MetricsListener
log = logging.getLogger("sluice.server")

ARBITER_SECONDS = 2.0  # that registering waits for it; then shares are said to be kept by nobody


def link_to_controller(config: ServerConfig, side: ServerSide) -> ControllerLink:
    """The connection that the configuration names; raises StartError."""
    return ControllerLink(
        config.controller.grpc_targets,
        side,
        config.controller.wait_seconds,
        controller_credentials(config),
    )


class Server:
    """One sluice-server."""

    def __init__(
        self,
        config: ServerConfig,
        link: Callable[[ServerConfig, ServerSide], ControllerLink] = link_to_controller,
    ) -> None:
        """`link`: how it reaches its controller; tests have one that grants by itself."""
        self._config = config
        self._link = link
        self._tasks: set[asyncio.Task[Any]] = set()
        self._metrics_listener: MetricsListener | None = None
        self._guests: Guests | None = None

    async def start(self) -> None:
        """Starts everything; raises StartError."""
        section = self._config.server
        self._lock = lock_run_dir(section.run_dir)
        self._rdma = rdma_port(section)
        driver = chosen_driver(section)
        starter = self._make_parts(driver)
        if self._daemons:
            self._daemons.adopt()
        await adopt_workers(starter, self._workers, self._lifecycle)
        if self._turns:
            self._run(self._turns.arbiter.run())
        self._open_data_port()
        await self._gpus.find(self._run)
        if self._residency:
            self._residency.tell_everything()
        await self._lifecycle.suspensions.find_contexts()
        unknown = {*self._config.suspend.gpu_memory_oversubscription} - {
            gpu.uuid for gpu in self._gpus.gpus
        }
        if unknown:
            log.warning(
                "[suspend] gpu_memory_oversubscription names %s, and no such GPU is here: `sluice "
                "gpu list` has their UUIDs",
                ", ".join(sorted(unknown)),
            )
        self._run(self._gpus.health.run())
        if self._turns:
            await self._turns.found(ARBITER_SECONDS)
        self._run(self._controller.run())
        self._run(self._lifecycle.times.run())
        self._run(self._lifecycle.suspensions.swap.keep_ready())
        if nvml_beside(driver.path):
            self._run(self._watch_use(driver).run())
        self._open_unix_socket()
        if section.enable_kvm:
            self._serve_guests(starter)
        self._open_metrics(driver)

    async def stop(self) -> None:
        """Closes the listeners; sessions go on without this server."""
        if self._metrics_listener:
            await self._metrics_listener.close()
        if self._guests:
            await self._guests.close()
        await self._container_sockets.close()
        await self._unix_listener.close()
        await self._claims_listener.close()
        await self._claims.close()
        await self._data_port.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._workers.stop()
        self._lifecycle.let_go()
        if self._daemons:
            self._daemons.let_go()
        await self._caller.close()
        await self._controller.close()
        os.close(self._lock)
        log.info("stopped; %d session(s) go on", len(self._lifecycle.served))

    def _make_parts(self, driver: Driver) -> WorkerStarter:
        """Everything that sessions need, before any of it is heard or asked."""
        config, section, log_dir = self._config, self._config.server, self._config.log.log_dir
        self._data_tls = data_tls(config)  # before any process is started that would stay
        self._devices = ContainerDevices(config.containers)
        libraries = library_folders(section, driver)
        starter = WorkerStarter(config, WorkerFiles(section.run_dir), libraries)
        starter.merge_launches = config.throttle.merge_launches == "auto"
        if starter.users.ids:  # else one tenant's worker could write into another's
            starter.compute_cache = compute_cache(section)
        self._workers = WarmWorkers(
            starter,
            driver,
            log_dir,
            per_gpu=section.prestart_workers,
            start_seconds=section.worker_start_seconds,
            movable=config.suspend.movable == "on",
        )
        self._side = NodeSide(config)
        if self._rdma:
            starter.rdma = self._rdma.option
            self._side.found_labels["rdma"] = self._rdma.reach
        self._controller = self._link(config, self._side)
        self._caller = Caller(driver.path, nvml_beside(driver.path), starter.environment())
        self._lifecycle = SessionLifecycle(
            section.node_name,
            self._controller,
            self._workers,
            starter,
            log_dir,
            throttle=config.throttle.enable_computation_throttle,
            accounts=Accounts(config.projects, self._devices),
            code_cache=code_cache(section),
            suspend=config.suspend,
            caller=self._caller,
            driver_memory=(
                DriverMemory(driver.path, starter.environment())
                if config.suspend.driver_memory == "auto"
                else None
            ),
            gpus=lambda: self._gpus.gpus,
        )
        self._share_out(driver, starter)
        ca_file = config.tls.data_ca_file or config.tls.ca_file
        self._lifecycle.links.ca_file = ca_file
        if section.enable_relay:
            self._lifecycle.relay_by(section.run_dir, ca_file)
        self._gpus = HostGpus(
            config, driver, libraries, self._workers, self._controller, self._lifecycle
        )
        figures = ViewFigures(driver, self._gpus_to_ask)
        self._lifecycle.show(
            GpusHere(lambda: {gpu.uuid: gpu for gpu in self._gpus.gpus}, figures.of)
        )
        self._regions = Regions(self._lifecycle, section.silent_seconds)
        self._standings = GuestStandings(
            self._lifecycle.sessions,
            self._controller.report,
            suspends=config.suspend.on_pause == "suspend",
        )
        self._lifecycle.on_opened.append(self._standings.session_opened)
        self._machines = GuestMachines(Accounts(config.projects), self._controller.report)
        self._native = NativeGpus(
            config,
            self._workers,
            lambda: self._gpus.gpus,
            self._gpus.look_again,
            self._controller.report,
        )
        return starter

    def _share_out(self, driver: Driver, starter: WorkerStarter) -> None:
        """How the GPUs are shared: by turns, and by MPS where there is one."""
        throttle, section, log_dir = (
            self._config.throttle,
            self._config.server,
            self._config.log.log_dir,
        )
        problem = problem_here(throttle, driver, starter.users)
        self._sharing = GpuSharing(throttle, problem, self._controller.report)
        self._daemons: MpsDaemons | None = None
        if problem:
            log.info("sessions do not run at once (MPS): %s", problem)
        elif control := control_program(throttle):
            idle = throttle.mps_idle_seconds
            self._daemons = MpsDaemons(control, starter, section.run_dir, log_dir, idle)
            self._workers.serve_concurrent(self._daemons, throttle.concurrent_headroom)
        self._turns: TurnPages | None = None
        self._residency: Residency | None = None
        if throttle.enable_computation_throttle:
            self._turns = TurnPages(
                throttle, starter, section.run_dir, log_dir, self._sharing.arbiter
            )
            self._lifecycle.divide_time(self._turns)
            if self._config.suspend.swap_mib:
                self._residency = Residency(
                    self._lifecycle.suspensions,
                    self._turns,
                    lambda: self._gpus.gpus,
                    self._config.suspend.idle_seconds,
                    self._controller,
                )
                self._lifecycle.times.on_figures = self._residency.hear_figures
                self._lifecycle.times.on_told_again = self._residency.figures.tell_again
            if throttle.longest_overrun_seconds:
                self._lifecycle.limit_overruns(throttle.longest_overrun_seconds)

    def _gpus_to_ask(self) -> list[str]:
        """The GPUs that no VM has for itself: one that it has must not be held open."""
        return [gpu.uuid for gpu in self._gpus.gpus if not self._workers.has_let_go(gpu.uuid)]

    def _watch_use(self, driver: Driver) -> UseWatch:
        return UseWatch(
            ProcessUseReader(driver),
            self._lifecycle.sessions,
            self._lifecycle.figures,
            self._workers.has_let_go,
        )

    def _open_data_port(self) -> None:
        """From now on the controller's questions can be answered, too."""
        section = self._config.server
        address = data_address(section.bind_addr, section.bind_net)
        self._data_port = DataPort(
            address,
            section.listen_port,
            self._lifecycle,
            self._controller,
            self._data_tls,
            ResumeTerms(section.network_grace_seconds, section.closed_grace_seconds),
            section.bulk_connections,
            rdma=self._rdma is not None,
        )
        advertised = section.advertise_addr or reachable_address(
            address, self._config.controller.grpc_targets[0]
        )
        try:
            self._data_port.open()
        except OSError as error:
            raise StartError(
                f"the data port {address}:{section.listen_port} cannot be opened "
                f"({error.strerror}); set [server] bind_addr and listen_port"
            ) from None
        self._side.speak_for(
            NodeParts(
                controller=self._controller,
                lifecycle=self._lifecycle,
                workers=self._workers,
                gpus=self._gpus,
                native=self._native,
                machines=self._machines,
                standings=self._standings,
                requests=GuestRequests(self._config),
                sharing=self._sharing,
                data_port=self._data_port,
                advertised=advertised,
            )
        )

    def _open_unix_socket(self) -> None:
        section, path = self._config.server, self._config.client_socket
        places, host, identities = local_places(), socket.gethostname(), ContainerIdentities()

        def listener(path: Path, admission: Admission) -> UnixListener:
            return UnixListener(path, self._lifecycle, section.arena_mib, host, admission, places)

        self._unix_listener = listener(path, Admission(identities, self._devices))
        self._container_sockets = ContainerSockets(
            section.run_dir, self._devices, identities, listener
        )
        self._open_claims(identities, places)
        if not section.enable_shm:
            return
        if self._config.containers.enable:
            self._container_sockets.open()
        try:
            self._unix_listener.open()
        except OSError as error:
            raise StartError(
                f"{path} cannot be opened ({error.strerror}); set [server] socket_path or run_dir "
                "to a place that the server may write"
            ) from None

    def _open_claims(self, identities: ContainerIdentities, places: Places) -> None:
        """For Kubernetes: claims that it places have sockets of their own."""
        section = self._config.server
        self._claims = Claims(
            section.run_dir, self._lifecycle, section.arena_mib, identities, places
        )
        self._claims_listener = ClaimsListener(
            section.run_dir, self._claims, section.node_name, self._gpus.conditions
        )
        if not section.enable_shm:
            return
        try:
            self._claims.open()
            self._claims_listener.open()
        except OSError as error:
            where = error.filename or section.run_dir
            raise StartError(
                f"claims cannot be served: {where}: {error.strerror}; set [server] run_dir to a "
                "place that the server may write"
            ) from None

    def _open_metrics(self, driver: Driver) -> None:
        section = self._config.metrics
        if not section.listen:
            return
        from sluice.server.listeners.metrics_port import MetricsListener
        from sluice.server.metrics import ServerMetrics
        from sluice.server.rdma.figures import RdmaFigures

        metrics = ServerMetrics(
            self._config.server.node_name,
            gpus=lambda: self._gpus.gpus,
            reader=GpuReader(driver),
            sessions=self._lifecycle.figures,
            workers=self._workers,
            controller=self._controller,
            health=self._gpus.health,
            rdma=RdmaFigures(self._rdma),
            memory=self._residency.figures if self._residency else None,
            swap=self._lifecycle.suspensions.swap,
        )
        try:
            self._metrics_listener = MetricsListener(section, self._config.tls, metrics.scrape)
            self._metrics_listener.open()
        except OSError as error:
            # sessions matter more than their figures
            self._metrics_listener = None
            what = error.filename or section.listen
            log.error("there are no metrics: %s: %s; see [metrics]", what, error.strerror)

    def _serve_guests(self, starter: WorkerStarter) -> None:
        try:
            from sluice.server.guests.service import Guests
        except ImportError as error:
            log.warning(
                "guests are not served: %s; install python3-libvirt (with the deb) or the extra "
                "`sluice-gpu[libvirt]`, or set [server] enable_kvm = false",
                error,
            )
            return
        self._guests = Guests(
            self._config,
            self._lifecycle,
            self._regions,
            starter,
            host_devices=self._native,
            machines=self._machines,
            standings=self._standings,
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
