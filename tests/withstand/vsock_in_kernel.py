# SPDX-License-Identifier: Apache-2.0
"""Run in a guest by test_vsock_guests.py: the listener in the kernel, asked over loopback.

In a machine without a vsock device of its own, CID 2 is the machine itself, and who connects has
CID 1. Prints what a client whose CID is a domain's is asked for, and what one hears whose CID is
nobody's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

from sluice.hypervisor.ports import RegionOwner, VsockPlace
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import BELL_PORT
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.guests.vsock import VsockGuests
from sluice.server.sessions.open_session import RefusalError
from sluice.server.sessions.opening import SessionRequest

LOOPBACK = 1
REQUEST = DomainRequest(memory_mib=64, compute_percent=10, channel="vsock")


class FakeManager:
    """Says what it was asked for, as a refusal."""

    served: tuple[Any, ...] = ()

    async def open(self, request: SessionRequest, *_: Any) -> None:
        asked, requester = request.asked, request.requester
        raise RefusalError(
            CudaStatus.NO_DEVICE,
            f"{requester.domain_name} over {requester.channel} wants {asked.request.count} of "
            f"{asked.request.memory_mib} MiB for {asked.program}",
        )


async def _run(program: str) -> None:
    rung: list[str] = []
    guests = VsockGuests(
        FakeManager(),  # type: ignore[arg-type]
        *(Path("/tmp"), Path("/tmp"), ""),
        add_bell=lambda uuid, _: rung.append(uuid[-1]),
    )
    for name, cid in (("web", LOOPBACK), ("other", 0x53400001)):
        owner = RegionOwner(f"00000000-0000-0000-0000-00000000000{cid % 16}", name)
        await guests.add(owner, VsockPlace(cid), REQUEST)
        asked = await asyncio.create_subprocess_exec(
            *("sluice", "run", program),
            env={**os.environ, "SLUICE_CHANNEL": "vsock"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asked.communicate(b"open\nquit\n")
        print(said.decode().strip())
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as bell:
            bell.setblocking(False)
            await asyncio.get_running_loop().sock_connect(bell, (socket.VMADDR_CID_HOST, BELL_PORT))
            async with asyncio.timeout(20):
                while not rung and cid == LOOPBACK:
                    await asyncio.sleep(0.01)
        await guests.remove(owner.uuid, "the next one")
    await guests.close()
    print("bells of", rung)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
