# SPDX-License-Identifier: Apache-2.0
"""The socket at which Nova's driver asks for a VM's channel: what it gives, whom it believes."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import cids_for
from sluice.server.listeners import vm_socket
from sluice.server.listeners.json_line import MOST_BYTES
from sluice.server.listeners.vm_socket import (
    SOCKET_NAME,
    VmListener,
    make_regions,
    render,
)

UUID = "11111111-2222-3333-4444-555555555555"
RIGHT = {"uuid": UUID, "memory_mib": 1024, "compute": 25}
REQUEST = DomainRequest(
    memory_mib=1024, compute_percent=25, count=2, region_mib=64, slots=2, priority=-3
)


class FakeRegions:
    """What stands in for the regions' files, which need a libvirt."""

    def __init__(self) -> None:
        self.prepared: list[tuple[str, DomainRequest]] = []
        self.full = False
        self.looked: list[str] = []
        self.readied: list[str] = []
        self.awaited: Path | None = None

    def ready(self, uuid: str) -> Path | None:
        if self.full:
            raise HypervisorError("web: every slot of PCI bus 0 is used")
        self.readied.append(uuid)
        return self.awaited

    def prepare(self, uuid: str, request: DomainRequest) -> None:
        if self.full:
            raise HypervisorError("a region of 64 MiB does not fit: free some")
        self.prepared.append((uuid, request))


@pytest.fixture
def regions() -> FakeRegions:
    return FakeRegions()


def listening_in(folder: Path, regions: FakeRegions, channel: str) -> VmListener:
    return VmListener(
        folder,
        group="no-such-group",
        region_mib=64,
        slots=2,
        channel=channel,
        prepare=regions.prepare,
        render=render,
        sessions=lambda uuid: [f"a program of {uuid}"],
        look=regions.looked.append,
        unplug=lambda uuid, seconds: uuid == UUID and seconds == 7,
        plug=lambda uuid: [f"{uuid}: no free port"],
        ready=regions.ready,
    )


@pytest.fixture
async def listener(tmp_path: Path, regions: FakeRegions) -> AsyncIterator[VmListener]:
    opened = listening_in(tmp_path, regions, "ivshmem")
    opened.open()
    yield opened
    await opened.close()


async def ask(folder: Path, line: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(folder / SOCKET_NAME))
    writer.write(line)
    await writer.drain()
    answer = await reader.readline()
    writer.close()
    found: dict[str, Any] = json.loads(answer or b"{}")
    return found


async def prepare(folder: Path, **sizes: Any) -> dict[str, Any]:
    return await ask(folder, json.dumps({"prepare": {**RIGHT, **sizes}}).encode() + b"\n")


async def test_a_vm_gets_its_channel(
    listener: VmListener, regions: FakeRegions, tmp_path: Path
) -> None:
    answer = await prepare(tmp_path, count=2, priority=-3, uuid=UUID.upper())
    assert regions.prepared == [(UUID, REQUEST)]
    [device] = answer["devices"]
    assert f"<shmem name='sluice-{UUID}'>" in device
    assert "<size unit='M'>64</size>" in device
    assert "<address" not in device  # libvirt chooses
    assert "memory-mib='1024'" in answer["metadata"]
    assert "xmlns:sluice='https://sluice.dev/xmlns/libvirt/1'" in answer["metadata"]
    assert listener.expects(UUID)
    assert not listener.expects(UUID.replace("1", "2"))
    listener.defined(UUID)
    assert not listener.expects(UUID)


async def test_who_writes_metadata_alone_gets_no_device(
    listener: VmListener, regions: FakeRegions, tmp_path: Path
) -> None:
    answer = await prepare(tmp_path, metadata_only=True)
    assert answer["devices"] == []
    assert "region-mib='64'" in answer["metadata"]
    assert [uuid for uuid, _ in regions.prepared] == [UUID], "what has no room is refused now"
    assert listener.expects(UUID)


async def test_a_defined_vm_is_made_ready_for_its_start(
    listener: VmListener, regions: FakeRegions, tmp_path: Path
) -> None:
    line = json.dumps({"ready": {"uuid": UUID.upper()}}).encode() + b"\n"
    assert await ask(tmp_path, line) == {"ready": True}
    assert (regions.readied, regions.looked) == ([UUID], [UUID])
    regions.full = True
    assert await ask(tmp_path, line) == {"error": "web: every slot of PCI bus 0 is used"}
    assert "uuid" in (await ask(tmp_path, b'{"ready": {}}\n'))["error"]


async def test_a_doorbells_socket_is_there_before_the_start(
    listener: VmListener, regions: FakeRegions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"ready": {"uuid": UUID}}).encode() + b"\n"
    regions.awaited = tmp_path / "server"
    asked = asyncio.create_task(ask(tmp_path, line))
    while not regions.looked:  # the server is told to look at the domain, which opens the socket
        await asyncio.sleep(0.01)
    assert not asked.done()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(regions.awaited))
        assert await asyncio.wait_for(asked, 20) == {"ready": True}
    regions.awaited.unlink()
    monkeypatch.setattr(vm_socket, "LISTEN_SECONDS", 0.1)
    assert "nobody listens at" in (await ask(tmp_path, line))["error"]


async def test_a_doorbell_is_not_for_a_driver_that_puts_in_the_device_itself(
    tmp_path: Path, regions: FakeRegions
) -> None:
    opened = listening_in(tmp_path, regions, "ivshmem-doorbell")
    opened.open()
    try:
        assert "newer sluice-nova" in (await prepare(tmp_path))["error"]
        answer = await prepare(tmp_path, metadata_only=True)
        assert "channel='ivshmem-doorbell'" in answer["metadata"]
        assert [request.has_doorbell for _, request in regions.prepared] == [True]
    finally:
        await opened.close()


async def test_on_demand_is_passed_on(
    listener: VmListener, regions: FakeRegions, tmp_path: Path
) -> None:
    answer = await prepare(tmp_path, mode="on-demand")
    assert "mode='on-demand'" in answer["metadata"]


async def test_only_root_may_ask_where_there_is_no_group(
    listener: VmListener, tmp_path: Path
) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600


async def test_a_refusal_says_why_and_leaves_nothing(
    listener: VmListener, regions: FakeRegions, tmp_path: Path
) -> None:
    regions.full = True
    assert await prepare(tmp_path) == {"error": "a region of 64 MiB does not fit: free some"}
    assert not listener.expects(UUID)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"uuid": "../../etc/passwd"}, "uuid: give the VM's UUID"),
        ({"memory_mib": "1024"}, "memory_mib: give a number"),
        ({"memory_mib": True}, "memory_mib: give a number"),
        ({"compute": None}, "compute is missing"),
        ({"compute": 101}, "compute=101: give 1 to 100"),
        ({"count": 0}, "count=0: give 1 to 64"),
        ({"mode": "reserved"}, "mode: give auto or on-demand"),
        ({"mode": ["auto"]}, "mode: give auto or on-demand"),
        ({"region_mib": 1 << 20}, ""),  # the host's operator says how large, not the caller
    ],
)
async def test_sizes_are_bounded(
    listener: VmListener, regions: FakeRegions, tmp_path: Path, sizes: dict[str, Any], said: str
) -> None:
    answer = await prepare(tmp_path, **sizes)
    if said:
        assert said in answer["error"]
        assert regions.prepared == []
    else:
        assert regions.prepared[0][1].region_mib == 64


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"{}\n", b'{"prepare": 7}\n', b"\xff\xfe\n"])
async def test_nonsense_is_refused(listener: VmListener, tmp_path: Path, line: bytes) -> None:
    answer = await ask(tmp_path, line)
    assert "error" in answer


async def test_an_endless_line_is_cut(listener: VmListener, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
    writer.write(b"x" * (2 * MOST_BYTES))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert "devices" in await prepare(tmp_path)


async def test_who_would_move_a_vm_learns_which_programs_use_its_channel(
    listener: VmListener, tmp_path: Path
) -> None:
    line = json.dumps({"sessions": {"uuid": UUID.upper()}}).encode() + b"\n"
    assert await ask(tmp_path, line) == {"sessions": [f"a program of {UUID}"]}
    for wrong in ({"sessions": UUID}, {"sessions": {}}, {"sessions": {"uuid": "../x"}}):
        answer = await ask(tmp_path, json.dumps(wrong).encode() + b"\n")
        assert "sessions" in answer["error"] or "uuid" in answer["error"]


async def test_what_the_hook_says_is_logged_and_looked_at(
    listener: VmListener, regions: FakeRegions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    said = {"uuid": UUID, "name": "web\n1", "operation": "release", "sub": "end", "extra": "-"}
    assert await ask(tmp_path, json.dumps({"hook": said}).encode() + b"\n") == {}
    assert regions.looked == [UUID]
    assert f"domain 'web\\n1' ({UUID}): release end -" in caplog.text
    answer = await ask(tmp_path, json.dumps({"hook": {"uuid": "x"}}).encode() + b"\n")
    assert "uuid" in answer["error"]
    assert regions.looked == [UUID]


async def test_a_hosts_instances_may_come_by_vsock(tmp_path: Path, regions: FakeRegions) -> None:
    listener = VmListener(
        tmp_path,
        group="no-such-group",
        region_mib=64,
        slots=2,
        channel="vsock",
        prepare=regions.prepare,
        render=render,
        sessions=lambda uuid: [],
        look=regions.looked.append,
        unplug=lambda uuid, seconds: True,
        plug=lambda uuid: [],
        ready=regions.ready,
    )
    listener.open()
    answer = await prepare(tmp_path)
    await listener.close()
    [device] = answer["devices"]
    assert f"<cid auto='no' address='{next(cids_for(UUID))}'/>" in device
    assert "channel='vsock'" in answer["metadata"]


def test_a_compute_host_without_vhost_vsock_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.server.listeners.vm_socket.VHOST_VSOCK", tmp_path / "none")
    ready = make_regions("test:///default", None)
    with pytest.raises(HypervisorError, match="modprobe vhost_vsock"):
        ready(UUID, DomainRequest(memory_mib=1024, compute_percent=25, channel="vsock"))


async def test_a_channel_is_taken_out_and_put_back(listener: VmListener, tmp_path: Path) -> None:
    async def asks(what: str, **part: Any) -> dict[str, Any]:
        return await ask(tmp_path, json.dumps({what: part}).encode() + b"\n")

    assert await asks("unplug", uuid=UUID, seconds=7) == {"unplugged": True}
    assert await asks("unplug", uuid=UUID, seconds=8) == {"unplugged": False}
    assert await asks("plug", uuid=UUID) == {"problems": [f"{UUID}: no free port"]}
    for wrong in (None, 0, 601, "7"):
        assert "1 to 600" in (await asks("unplug", uuid=UUID, seconds=wrong))["error"]
    assert "uuid" in (await asks("plug", uuid="../x"))["error"]
