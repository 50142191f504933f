# SPDX-License-Identifier: Apache-2.0
"""A guest's session by vsock goes on over another connection of the same guest's device, only."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.hypervisor.ports import VsockPlace
from sluice.protocol import frames
from sluice.protocol.frames import ControlFunction, ResumeFlags
from sluice.server.listeners.resumption import key_of, proof
from sluice.server.sessions.records import Requester
from sluice.server.workers.packets import Message

from .vsock_guests import DEVICE, OWNER, REQUEST, UUID, FakeManager, guests_of, sockets_in

SESSION = "00000000000000ab"
KEY = key_of("a key that the guest made up for it", SESSION)


@dataclass
class FakeWorker:
    told: list[Message] = field(default_factory=list)

    def tell(self, message: Message, descriptors: list[int]) -> None:
        assert len(descriptors) == 1
        self.told.append(message)


@dataclass
class FakeSession:
    requester: Requester
    id: str = SESSION
    resume_key: str = KEY.hex()
    relayed_to: str = ""
    worker: FakeWorker = field(default_factory=FakeWorker)


def session_of(uuid: str, channel: str = "vsock") -> FakeSession:
    return FakeSession(Requester(channel=channel, host="guest", program="p", domain_uuid=uuid))


async def resume(path: Path, key: bytes, flags: int = 0) -> frames.ResumeReply:
    """What the guest is answered; with a good answer its proof has been taken."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    size, function = frames.ResumeSession.BYTES, ControlFunction.RESUME_SESSION
    asked = frames.ResumeSession(
        header=frames.FrameHeader(size=size, function=function),
        magic=frames.OPEN_MAGIC,
        protocol_major=frames.PROTOCOL_MAJOR,
        session_id=int(SESSION, 16),
        epoch=3,
        flags=flags,
        nonce=os.urandom(32),
    )
    writer.write(asked.pack())
    async with asyncio.timeout(20):
        reply = frames.ResumeReply.unpack(await reader.readexactly(frames.ResumeReply.BYTES))
        if reply.status == 0:
            assert reply.proof == proof(b"server", KEY, asked, reply.nonce)
            size, function = frames.ResumeProof.BYTES, ControlFunction.RESUME_PROOF
            said = proof(b"client", key, asked, reply.nonce)
            header = frames.FrameHeader(size=size, function=function)
            writer.write(frames.ResumeProof(header=header, proof=said).pack())
            await reader.read()
    writer.close()
    return reply


@pytest.mark.parametrize(
    ("case", "told", "ended"),
    [
        ("its own", ["resume"], []),
        ("its own, which has ended", [], [SESSION]),
        ("its own, relayed", [], []),
        ("its own, without the key", [], []),
        ("another guest's", [], []),
        ("one over TCP", [], []),
        ("one that is over", [], []),
    ],
)
def test_who_goes_on_with_which_session(
    short_path: Path, case: str, told: list[str], ended: list[str]
) -> None:
    program = short_path / "device-program"
    program.write_text(DEVICE.format(python=sys.executable))
    program.chmod(0o755)

    async def check() -> None:
        manager = FakeManager()
        guests = guests_of(short_path, program, manager)
        await guests.add(OWNER, VsockPlace(), REQUEST)
        uuid = "11111111-1111-1111-1111-111111111111" if "another" in case else UUID
        session = session_of(uuid, "tcp" if "TCP" in case else "vsock")
        session.relayed_to = "node-b" if "relayed" in case else ""
        if "over" not in case or "TCP" in case:
            manager.resumable[SESSION] = session
        key = bytes(32) if "without" in case else KEY
        flags = ResumeFlags.ENDS if "ended" in case else 0
        reply = await resume(sockets_in(short_path).device, key, flags)
        assert (reply.status == 0) is case.startswith("its own")
        assert [message.verb for message in session.worker.told] == told
        assert manager.ended == ended
        assert manager.relayed == ([(SESSION, 3)] if "relayed" in case else [])
        await guests.remove(UUID, "it is over")

    asyncio.run(check())
