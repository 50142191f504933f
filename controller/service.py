# SPDX-License-Identifier: Apache-2.0
"""The running controller: store, pool, desk, gRPC and REST, started and stopped in order.

Called by controller.__main__ and by tests. It owns every task and socket of the controller. The
store is read before a door opens, so that a restarted controller never answers from empty books.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Iterator

import grpc
import uvicorn

from sluice.config.controller import ControllerConfig
from sluice.controller.api.app import build_app
from sluice.controller.desk import GrantDesk
from sluice.controller.node_service import PoolService
from sluice.controller.pool.pool import Pool
from sluice.controller.store.sqlite import SqliteStore
from sluice.rpc import pool_pb2_grpc

log = logging.getLogger("sluice.controller")

GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()


class DoorError(Exception):
    """A port cannot be opened; the message says which and what to do."""


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the controller's own main."""
        yield


class Controller:
    """One sluice-controller."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []
        self.rest_port = 0
        self.grpc_port = 0

    async def start(self) -> None:
        """Opens the store and then the doors; raises StoreError or DoorError."""
        doors, shares = self._config.controller, self._config.pool
        self._store = SqliteStore(
            doors.store,
            synchronous=doors.store_synchronous,
            ended_kept=shares.ended_grants_kept,
            events_kept=shares.events_kept,
        )
        pool = Pool(
            SystemClock(),
            lambda: secrets.token_hex(8),
            vgpu_count=shares.vgpu_count,
            node_timeout_seconds=shares.node_timeout_seconds,
            ended_kept=shares.ended_grants_kept,
            job_sessions=shares.job_sessions,
            job_linger_seconds=shares.job_linger_seconds,
            snapshot=await self._store.load(),
        )
        self.desk = GrantDesk(pool, self._store, shares.waiting_line_seconds)
        service = PoolService(self.desk, shares.heartbeat_seconds)

        self._grpc = grpc.aio.server(options=GRPC_OPTIONS)
        pool_pb2_grpc.add_PoolServicer_to_server(service, self._grpc)
        host = f"[{doors.bind_addr}]" if ":" in doors.bind_addr else doors.bind_addr
        try:
            self.grpc_port = self._grpc.add_insecure_port(f"{host}:{doors.grpc_port}")
        except RuntimeError as error:
            raise DoorError(
                f"gRPC cannot listen on {host}:{doors.grpc_port} ({error}); set [controller] "
                "bind_addr and grpc_port, or end what uses the port"
            ) from None
        await self._grpc.start()

        rest = socket.socket(socket.AF_INET6 if ":" in doors.bind_addr else socket.AF_INET)
        rest.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            rest.bind((doors.bind_addr, doors.rest_port))
        except OSError as error:
            await self._grpc.stop(None)
            raise DoorError(
                f"REST cannot listen on {host}:{doors.rest_port} ({error.strerror}); set "
                "[controller] bind_addr and rest_port, or end what uses the port"
            ) from None
        self.rest_port = rest.getsockname()[1]
        app = build_app(self.desk, service, shares.key_seconds)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        )
        self._tasks = [
            asyncio.create_task(self._uvicorn.serve(sockets=[rest])),
            asyncio.create_task(self.desk.tick()),
        ]
        log.info(
            "serving: REST %s:%d, gRPC %s:%d, store %s",
            host, self.rest_port, host, self.grpc_port, doors.store,
        )  # fmt: skip

    async def stop(self) -> None:
        """Closes the doors, then the store; grants stay in it."""
        self._uvicorn.should_exit = True
        self._uvicorn.force_exit = True
        await self._grpc.stop(0.2)
        self._tasks[1].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()
        log.info("stopped")
