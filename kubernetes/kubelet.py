# SPDX-License-Identifier: Apache-2.0
"""The two sockets by which the kubelet knows a DRA plugin: the plugin's own, and its registration.

Used by __main__.py. The kubelet watches plugins_registry; what it finds there it asks for the
plugin's name and endpoint. A kubelet that restarts looks through the folder again; sockets that
somebody removed are made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import grpc

from sluice.kubernetes.naming import DRIVER
from sluice.rpc import dra_health_v1_pb2_grpc as health_grpc
from sluice.rpc import dra_v1_pb2_grpc as dra_grpc
from sluice.rpc import plugin_registration_v1_pb2 as registration
from sluice.rpc import plugin_registration_v1_pb2_grpc as registration_grpc

log = logging.getLogger("sluice.kubernetes")

SERVICES = ("v1.DRAPlugin", "v1.DRAResourceHealth")
LOOK_SECONDS = 1.0
GRACE_SECONDS = 2.0


class _Registration(registration_grpc.RegistrationServicer):
    """What the kubelet asks a plugin that it has found."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint

    async def GetInfo(  # noqa: N802
        self, request: registration.InfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> registration.PluginInfo:
        """Which plugin this is."""
        return registration.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=list(SERVICES),
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: registration.RegistrationStatus,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> registration.RegistrationStatusResponse:
        """Whether the kubelet takes it."""
        if request.plugin_registered:
            log.info("the kubelet has registered %s", DRIVER)
        else:
            log.error("the kubelet does not register %s: %s", DRIVER, request.error)
        return registration.RegistrationStatusResponse()


class KubeletSockets:
    """Serves a plugin on this node."""

    def __init__(
        self,
        kubelet_dir: Path,
        plugin: dra_grpc.DRAPluginServicer,
        health: health_grpc.DRAResourceHealthServicer,
    ) -> None:
        self._endpoint = kubelet_dir / "plugins" / DRIVER / "dra.sock"
        self._registry = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._plugin = plugin
        self._health = health

    async def serve(self) -> None:
        """Until cancelled. Raises OSError where the folders cannot be written."""
        while True:
            servers = [
                await _server(self._endpoint, self._add),
                await _server(
                    self._registry,
                    lambda s: registration_grpc.add_RegistrationServicer_to_server(
                        _Registration(self._endpoint), s
                    ),
                ),
            ]
            try:
                while self._endpoint.exists() and self._registry.exists():
                    await asyncio.sleep(LOOK_SECONDS)
                log.warning("the sockets below %s are gone: made anew", self._registry.parent)
            finally:
                # the registration first: nobody is to be sent to an endpoint that is gone
                for server in reversed(servers):
                    await server.stop(GRACE_SECONDS)
                for path in (self._registry, self._endpoint):
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _add(self, server: grpc.aio.Server) -> None:
        dra_grpc.add_DRAPluginServicer_to_server(self._plugin, server)
        health_grpc.add_DRAResourceHealthServicer_to_server(self._health, server)


def _make_place(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


async def _server(path: Path, add: Any) -> grpc.aio.Server:
    _make_place(path)
    server = grpc.aio.server()
    add(server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server
