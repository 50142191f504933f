# SPDX-License-Identifier: Apache-2.0
"""Who uses NVML alone looks: it is shown what its requester has, and takes nothing for that."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import looker
import pytest
from static_pool import StaticPool
from vgpu_user import VgpuUser

from sluice.config.native_files import find_native
from sluice.protocol import frames
from sluice.protocol.frames import OpenFlags
from sluice.server.sessions.open_session import (
    BadOpen,
    pack_open_session,
    parse_open_session,
    unpack_open_reply,
)

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


@pytest.fixture(params=["shm", "tcp", "relay"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StaticPool]:
    way = {request.param: True} if request.param != "shm" else {}
    with StaticPool(tmp_path, vgpus=2, memory_mib=512, **way) as started:
        yield started


def look(pool: StaticPool, code: str = "", **variables: str) -> Any:
    return looker.look(pool.environment(**variables), code)


def test_who_has_nothing_sees_the_idle_slices_that_it_would_get(pool: StaticPool) -> None:
    first, second = look(pool)
    for vgpu in (first, second):
        assert vgpu["name"].startswith("Sluice software GPU")
        assert (vgpu["total"], vgpu["used"], vgpu["processes"]) == (512, 0, {})
        assert vgpu["capability"] == [9, 0]
        assert vgpu["power"] == -3  # NVML_ERROR_NOT_SUPPORTED: nobody knows
    assert first["uuid"] != second["uuid"]
    assert look(pool) == [first, second], "the same names each time"
    assert len(look(pool, SLUICE_VGPU="1")) == 1
    assert pool.sessions() == 0, "nothing was taken"


def test_who_has_a_session_elsewhere_sees_its_vgpu_and_process(pool: StaticPool) -> None:
    with VgpuUser(pool.environment(SLUICE_VGPU="1")) as holder:
        (vgpu,) = look(pool)
        assert vgpu["uuid"] == holder.uuid, "CUDA's own name of it"
        assert vgpu["total"] == 512
        assert vgpu["used"] >= 64
        assert list(vgpu["processes"]) == [str(holder.pid)]
        assert vgpu["processes"][str(holder.pid)] == vgpu["used"]
        assert "python" in vgpu["names"][0]
        with VgpuUser(pool.environment(SLUICE_VGPU="1")) as other:
            assert {v["uuid"] for v in look(pool)} == {holder.uuid, other.uuid}
            other.kill()
            deadline = time.monotonic() + 60
            while len(look(pool)) > 1 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert [v["uuid"] for v in look(pool)] == [holder.uuid]
    assert pool.sessions() == 2, "of the programs, and none of who looked"


def test_one_index_follows_what_runs(tmp_path: Path) -> None:
    code = """
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
before = n.nvmlDeviceGetUUID(handle)
print(json.dumps(before), flush=True)
sys.stdin.readline()
time.sleep(0.3)  # longer than a view is kept
print(json.dumps([n.nvmlDeviceGetUUID(handle), n.nvmlDeviceGetMemoryInfo(handle).used >> 20]))
"""
    with StaticPool(tmp_path, memory_mib=512) as pool:
        watcher = subprocess.Popen(
            [sys.executable, "-c", looker.LOOK + code],
            env=pool.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watcher.stdout is not None
        idle = json.loads(watcher.stdout.readline())
        with VgpuUser(pool.environment()) as holder:
            said, _ = watcher.communicate("\n", timeout=60)
        uuid, used = json.loads(said)
        assert idle != uuid == holder.uuid
        assert used >= 64


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root")
def test_a_neighbour_is_not_seen(tmp_path: Path, short_path: Path) -> None:
    short_path.chmod(0o755)
    with StaticPool(short_path, memory_mib=512) as pool:
        with VgpuUser(pool.environment(HOME="/"), user=65534):
            (vgpu,) = look(pool)
            assert (vgpu["used"], vgpu["processes"]) == (0, {}), "root's view, of root's own"
        assert pool.sessions() == 1


def test_no_attach_looks_though_cuda_is_loaded(tmp_path: Path) -> None:
    code = """
import ctypes
ctypes.CDLL("libcudart.so.13")
n.nvmlInitWithFlags(n.NVML_INIT_FLAG_NO_ATTACH)
print(json.dumps(seen()))
"""
    with StaticPool(tmp_path, memory_mib=512) as pool:
        assert len(look(pool, code)) == 1
        assert pool.sessions() == 0


def test_who_opens_a_session_later_is_told_of_its_own(tmp_path: Path) -> None:
    code = """
import ctypes
n.nvmlInit()
before = seen()
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
(after,) = seen()
raw = (ctypes.c_ubyte * 16)()
assert cuda.cuDeviceGetUuid_v2(raw, 0) == 0
assert after["uuid"][4:].replace("-", "") == bytes(raw).hex()
print(json.dumps(before))
"""
    with StaticPool(tmp_path, memory_mib=512) as pool:
        assert len(look(pool, code)) == 1
        assert pool.sessions() == 1


def test_without_a_server_there_is_a_reason_and_no_name(tmp_path: Path) -> None:
    code = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([n.nvmlDeviceGetCount(), refused(n.nvmlDeviceGetName, h)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", looker.LOOK + code],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "SLUICE_SERVER_SOCKET": "/nowhere",
            "SLUICE_CHANNEL": "shm",
            "LD_LIBRARY_PATH": str(find_native("libnvidia-ml.so.1").parent),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [1, -9]  # NVML_ERROR_DRIVER_NOT_LOADED
    assert done.stderr.count("no vGPU can be shown: no sluice-server at /nowhere") == 1


def test_a_server_that_knows_no_views_starts_nothing() -> None:
    asked = pack_open_session(flags=OpenFlags.VIEW | OpenFlags.HOLD_JOB)
    assert parse_open_session(asked).looks
    with pytest.raises(BadOpen, match="a job is to be held"):
        parse_open_session(pack_open_session(flags=OpenFlags.HOLD_JOB))  # as an older one reads it


def test_a_flood_of_looks_and_hostile_ones_leave_the_server_as_it_was(tmp_path: Path) -> None:
    view = pack_open_session(flags=OpenFlags.VIEW | OpenFlags.HOLD_JOB, program="\x1b[31mred\x07")
    with StaticPool(tmp_path, memory_mib=512) as pool:

        def ask(frame: bytes, *, listens: bool = True) -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(str(pool.socket))
                client.send(frame)
                return client.recv(1 << 17) if listens else b""

        answers = {ask(view) for _ in range(2000)}
        assert len(answers) == 1
        answer = answers.pop()
        assert frames.FrameHeader.unpack(answer[:16]).size == len(answer)
        (vgpu,) = json.loads(answer[frames.OpenReply.BYTES :].rstrip(b"\0"))["vgpus"]
        assert vgpu["idle"]
        assert vgpu["processes"] == []
        for _ in range(200):
            ask(view, listens=False)
        # more than could ever be had: a reason, and nothing else
        large = pack_open_session(flags=OpenFlags.VIEW | OpenFlags.HOLD_JOB, vgpu_count=65)
        status, _, message = unpack_open_reply(ask(large))
        assert status
        assert "65 vGPUs" in message
        status, _, message = unpack_open_reply(
            ask(
                pack_open_session(
                    flags=OpenFlags.VIEW | OpenFlags.HOLD_JOB, request_lines=["project=not-mine"]
                )
            )
        )
        assert status
        assert "not-mine" in message
        assert pool.sessions() == 0
        with VgpuUser(pool.environment()):
            assert len(look(pool)) == 1
