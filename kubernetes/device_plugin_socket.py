# SPDX-License-Identifier: Apache-2.0
"""The device plugin's socket, and its registration with the kubelet.

Used by __main__.py. A kubelet that starts removes every socket in device-plugins and forgets who
was registered: the plugin sees its own go, makes it anew and registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import grpc

from sluice.kubernetes.device_plugin import DevicePlugin, options
from sluice.kubernetes.naming import DRIVER, VGPU
from sluice.rpc import deviceplugin_v1beta1_pb2 as deviceplugin
from sluice.rpc import deviceplugin_v1beta1_pb2_grpc as deviceplugin_grpc

log = logging.getLogger("sluice.kubernetes")

VERSION = "v1beta1"
LOOK_SECONDS = 0.5
RETRY_SECONDS = 1.0
ANSWER_SECONDS = 10.0
GRACE_SECONDS = 2.0


class DevicePluginSocket:
    """Serves a plugin on this node."""

    def __init__(self, kubelet_dir: Path, plugin: DevicePlugin) -> None:
        self._folder = kubelet_dir / "device-plugins"
        self._path = self._folder / f"{DRIVER}.sock"
        self._plugin = plugin

    async def serve(self) -> None:
        """Until cancelled. Raises OSError where the folder cannot be written."""
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            server = grpc.aio.server()
            deviceplugin_grpc.add_DevicePluginServicer_to_server(self._plugin, server)
            server.add_insecure_port(f"unix:{self._path}")
            await server.start()
            mine = self._path.stat().st_ino
            try:
                if await self._registered(mine):
                    log.info("the kubelet has registered %s", VGPU)
                    while self._is_mine(mine):
                        await asyncio.sleep(LOOK_SECONDS)
                log.warning("%s is gone: the kubelet has restarted", self._path)
            finally:
                await server.stop(GRACE_SECONDS)
                if self._is_mine(mine):
                    with contextlib.suppress(OSError):
                        self._path.unlink()

    async def _registered(self, mine: int) -> bool:
        """Whether the kubelet took it, before the socket went."""
        told = ""
        while self._is_mine(mine):
            try:
                await self._register()
            except grpc.aio.AioRpcError as error:
                text = f"{error.code().name} {error.details()}"
                if text != told:
                    log.warning("the kubelet does not register %s: %s", VGPU, text)
                told = text
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return True
        return False

    async def _register(self) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            stub = deviceplugin_grpc.RegistrationStub(channel)
            await stub.Register(
                deviceplugin.RegisterRequest(
                    version=VERSION,
                    endpoint=self._path.name,
                    resource_name=VGPU,
                    options=options(),
                ),
                timeout=ANSWER_SECONDS,
            )

    def _is_mine(self, inode: int) -> bool:
        try:
            return self._path.stat().st_ino == inode
        except OSError:
            return False
