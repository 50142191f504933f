# SPDX-License-Identifier: Apache-2.0
"""A host without a GPU with one guest that has a vsock device only: relays to another node's GPU.

The parts of a server that serve guests, real relays, and programs of this host as the guest's: a
preloaded library gives them the device, and a process stands in for the one behind it (both of
tests/compatibility). `async with vsock_relay_host(plane, folder, terms) as guest:`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from control_plane import ControlPlane
from gpuless_host import gpuless_host

from sluice.config.native_files import find_native
from sluice.hypervisor.ports import RegionOwner, VsockPlace
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import UserSockets
from sluice.server.guests.vsock import VsockGuests
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.workers.session_start import ResumeTerms
from tests.compatibility.recording.stand_ins import vsock_preload

COMPATIBILITY = Path(__file__).resolve().parents[1] / "compatibility"
OWNER = RegionOwner("11111111-2222-3333-4444-555555555555", "guest")
REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, channel="vsock")


@dataclass
class VsockGuest:
    """The device and what runs for it."""

    plane: ControlPlane
    guests: VsockGuests
    lifecycle: SessionLifecycle
    device: Path
    preload: str

    def environment(self, **more: str) -> dict[str, str]:
        """Of a CUDA program in the guest."""
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
        return {
            **mine,
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            "SLUICE_CHANNEL": "vsock",
            "SLUICE_TEST_VSOCK": str(self.device),
            "LD_PRELOAD": self.preload,
            **more,
        }

    async def run(self, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """One in the guest, to its end."""
        return await asyncio.to_thread(
            subprocess.run,
            [str(program), *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    async def quiet(self, seconds: float) -> None:
        """Waits until nothing is left, here and in the pool."""
        async with asyncio.timeout(seconds):
            for session in list(self.lifecycle.served):
                await session.gone.wait()
            while self.plane.grants() or self.plane.session_worker_pids():
                await asyncio.sleep(0.05)
            relays = self.lifecycle.relays
            while relays and list(relays.files.worker_ids()):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def vsock_relay_host(
    plane: ControlPlane, folder: Path, terms: ResumeTerms
) -> AsyncIterator[VsockGuest]:
    """`folder`: a short one, for sockets; `terms`: how long sessions outlive connections here."""
    device = str(COMPATIBILITY / "vsock_device.py")
    async with gpuless_host(plane, folder) as host:
        guests = VsockGuests(
            host.lifecycle, host.run, host.log, device, add_bell=lambda *_: None, terms=terms
        )
        try:
            await guests.add(OWNER, VsockPlace(), REQUEST)
            sockets = UserSockets.of(host.run, OWNER.uuid)
            yield VsockGuest(plane, guests, host.lifecycle, sockets.device, vsock_preload(folder))
            await guests.remove(OWNER.uuid, "the test is over")
        finally:
            await guests.close()
