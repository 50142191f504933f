# SPDX-License-Identifier: Apache-2.0
"""Another share of compute for sessions that run: all of a grant's, or none.

Called by sessions.lifecycle on the controller's order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu
from sluice.server.controller.orders import OrderRefused
from sluice.server.sessions.records import Session, run_at_once
from sluice.server.workers.worker import WorkerError


async def resize(
    sessions: Sequence[Session], vgpus: Sequence[rpc.Vgpu], *, throttle: bool
) -> list[Session]:
    """Gives the sessions of a grant these vGPUs. Raises OrderRefused: all stays as it is.

    A worker and its client share out a vGPU's memory from the session's beginning, and neither can
    be told of another size while it runs. `throttle`: workers hold sessions to their compute.
    """
    for session in sessions:
        if [v.memory_mib for v in session.vgpus] != [v.memory_mib for v in vgpus]:
            raise OrderRefused(
                f"session {session.id} runs, and memory can be changed only while none does; "
                "change compute alone, or end its process first"
            )
        if run_at_once(session.vgpus) and [v.compute_percent for v in session.vgpus] != [
            v.compute_percent for v in vgpus
        ]:
            raise OrderRefused(
                f"session {session.id} runs at once with others (MPS), with a share that was fixed "
                "when it began; end its process first"
            )
    done: list[Session] = []
    try:
        for session in sessions:
            await _set_compute(session, vgpus, throttle=throttle)
            done.append(session)
    except WorkerError as problem:
        for session in done:
            with contextlib.suppress(WorkerError):
                await _set_compute(session, session.vgpus, throttle=throttle)
        raise OrderRefused(str(problem)) from problem
    for session in done:
        session.vgpus = tuple(map(GrantedVgpu.of, vgpus))
    return done


async def _set_compute(
    session: Session, vgpus: Sequence[rpc.Vgpu | GrantedVgpu], *, throttle: bool
) -> None:
    shares = [vgpus[place].compute_percent if throttle else 100 for place in session.places]
    await session.worker.set_compute(shares)
