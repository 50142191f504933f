# SPDX-License-Identifier: Apache-2.0
"""Rubbish on the controller's ports: it goes on serving."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, wait_for

from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc

pytestmark = pytest.mark.control_plane(shared=True, fake=True)


def test_random_bytes_on_both_ports(plane: ControlPlane, tmp_path: Path) -> None:
    source = random.Random(20261123)
    for port in (plane.rest_port, plane.grpc_port):
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connected:
                connected.sendall(source.randbytes(source.randrange(1, 4000)))
    assert plane.rest.get("/pool").status_code == 200
    assert plane.client().first["status"] == 0


def test_grpc_calls_out_of_order_are_refused(plane: ControlPlane) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{plane.grpc_port}") as channel:
        stub = pool_pb2_grpc.PoolStub(channel)
        beat = rpc.NodeReport(heartbeat=rpc.Heartbeat(beat=1))
        assert list(stub.Register(iter([beat]))) == [], "a stream begins with an inventory"
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.RequestGrant(rpc.GrantRequest(request_id="x", node="stranger")))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        released = stub.ReleaseGrant(rpc.GrantRelease(grant_id="nothing"))
        assert released.was_live is False


def test_a_caller_that_hangs_up_gives_its_grant_back(plane: ControlPlane) -> None:
    before = len(plane.grants())
    with grpc.insecure_channel(f"127.0.0.1:{plane.grpc_port}") as channel:
        stub = pool_pb2_grpc.PoolStub(channel)
        request = rpc.GrantRequest(
            request_id="hang-up", node=plane.node, compute_percent=100, wait_seconds=-1
        )
        call: Any = stub.RequestGrant(request)
        assert next(call).WhichOneof("answer") == "waiting"
        call.cancel()
    wait_for(lambda: plane.rest.get("/pool").json()["waiting"] == 0)
    assert len(plane.grants()) == before


def test_a_node_that_takes_anothers_name_replaces_its_stream(plane: ControlPlane) -> None:
    inventory = rpc.NodeReport(inventory=rpc.Inventory(node="twin", vgpu_count=4))
    with grpc.insecure_channel(f"127.0.0.1:{plane.grpc_port}") as channel:
        stub = pool_pb2_grpc.PoolStub(channel)
        first: Any = stub.Register(_held(inventory))
        assert next(first).HasField("welcome")
        second: Any = stub.Register(_held(inventory))  # surely the younger one now
        assert next(second).HasField("welcome")
        assert list(first) == [], "the older stream ends"
        assert plane.rest.get("/nodes/twin").json()["state"] == "up"
        second.cancel()
    wait_for(lambda: plane.rest.get("/nodes/twin").json()["state"] == "away")


def _held(report: rpc.NodeReport) -> Iterator[rpc.NodeReport]:
    yield report
    threading.Event().wait(60)


def test_a_node_that_claims_a_part_of_anothers_grant_is_not_believed(plane: ControlPlane) -> None:
    client = plane.client()
    [grant_id] = [s["grant_id"] for s in plane.sessions() if s["id"] == client.session_id]
    before = plane.rest.get(f"/grants/{grant_id}").json()["vgpus"]
    gpu = rpc.Gpu(uuid="GPU-liar", model="Model", memory_mib=8000)
    vgpu = rpc.Vgpu(gpu_uuid=gpu.uuid, memory_mib=100, compute_percent=10)
    claimed = rpc.SessionReport(session_id="claimed", grant_id=grant_id, vgpus=[vgpu])
    inventory = rpc.Inventory(node="liar", vgpu_count=4, gpus=[gpu], sessions=[claimed])
    with grpc.insecure_channel(f"127.0.0.1:{plane.grpc_port}") as channel:
        stream: Any = pool_pb2_grpc.PoolStub(channel).Register(
            _held(rpc.NodeReport(inventory=inventory))
        )
        assert next(stream).HasField("welcome")
        wait_for(lambda: plane.rest.get("/nodes/liar").json()["state"] == "up")
        assert plane.rest.get(f"/grants/{grant_id}").json()["vgpus"] == before
        assert plane.rest.get("/sessions/claimed").status_code == 404
        stream.cancel()
