# SPDX-License-Identifier: Apache-2.0
"""After a restart: finds the workers that an earlier server started, and takes them over.

Called once by server.service before a listener opens. A worker with a session goes to
sessions.lifecycle, a warm one to the warm workers or to its end, and what has no process any more
is removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sluice.resources.ends import End, EndCause
from sluice.server.listeners.peers import PeerGone, open_process
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.sessions.logs import SessionLog
from sluice.server.sessions.records import Session, session_from_record
from sluice.server.sessions.relays import Relays
from sluice.server.workers.concurrent import ConcurrentWorkers
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerFiles, WorkerRecord, WorkerStarter
from sluice.server.workers.warm import WarmWorkers
from sluice.server.workers.worker import Worker, WorkerError

log = logging.getLogger("sluice.server")

UNANSWERED = End(EndCause.NOT_TAKEN, "the server ended before it could answer the client")


async def adopt_workers(
    starter: WorkerStarter, workers: WarmWorkers, lifecycle: SessionLifecycle
) -> int:
    """Takes over every worker that still runs; returns how many sessions were adopted."""
    files = starter.files
    take_over = partial(_take_over, workers=workers, lifecycle=lifecycle)
    adopting = [
        _adopt(worker_id, files, take_over, workers.concurrent) for worker_id in files.worker_ids()
    ]
    if relays := lifecycle.relays:
        relayed = partial(_take_over_relay, relays=relays)
        adopting += [_adopt(name, relays.files, relayed) for name in relays.files.worker_ids()]
    found = await asyncio.gather(*adopting)
    lifecycle.ledgers.reconcile()
    if starter.cgroups:
        known = set(files.worker_ids())
        if relays:
            known |= set(relays.files.worker_ids())
        for worker_id in set(starter.cgroups.leftovers()) - known:
            starter.cgroups.remove(worker_id)
    if starter.compute_cache:
        starter.compute_cache.remove_others(files.worker_ids())
    if any(found):
        log.info("adopted %d session(s) of the server before this one", sum(found))
    return sum(found)


async def _adopt(
    worker_id: str,
    files: WorkerFiles,
    take_over: Callable[[Worker, Message], bool],
    concurrent: ConcurrentWorkers | None = None,
) -> bool:
    record = files.read(worker_id)
    if record is None:
        # without a record its process is unknown: started, but the server died before it wrote it
        log.warning("worker %s left no record; its socket is removed, so that it ends", worker_id)
        files.remove(worker_id)
        return False
    try:
        pidfd = open_process(record.pid, record.start_time)
    except PeerGone:
        _note_end(record)
        files.remove(worker_id)
        return False
    worker = Worker(record, pidfd, files)
    if concurrent and record.mps:
        concurrent.adopt(worker)  # before it is killed, should it not answer
    try:
        worker.connect()
        status = await worker.status()
    except (OSError, WorkerError) as error:
        log.warning("worker %s does not answer (%s) and is killed", worker_id, error)
        worker.kill()
        return False
    worker.mark_ready()
    return take_over(worker, status)


def _take_over(
    worker: Worker, status: Message, workers: WarmWorkers, lifecycle: SessionLifecycle
) -> bool:
    session = worker.record.session
    if adopted := _session_of(worker, status):
        lifecycle.adopt(adopted, status)
        if session["opening"] and adopted.requester.channel == "shm":
            # its client waited for an answer on a connection that ended with the server; over
            # other channels the worker answers by itself
            lifecycle.end(adopted, UNANSWERED)
        return True
    if status.get("state") == "idle" and not session and workers.adopt(worker):
        return False
    worker.end(End(EndCause.UNKNOWN, "it is of no use to the server that found it"))
    return False


def _take_over_relay(worker: Worker, status: Message, relays: Relays) -> bool:
    if adopted := _session_of(worker, status):
        relays.adopt(adopted, is_broken=status.get("state") == "broken")
        if worker.record.session["opening"] and adopted.requester.channel == "shm":
            worker.end(UNANSWERED)
        return True
    worker.end(End(EndCause.UNKNOWN, "it is of no use to the server that found it"))
    return False


def _session_of(worker: Worker, status: Message) -> Session | None:
    session = worker.record.session
    serves = status.get("state") in ("running", "broken") and bool(session)
    if not serves or status.get("id") != session["id"]:
        return None
    session_log = SessionLog(
        Path(worker.record.log), session["id"], session["grant_id"], session["request_id"]
    )
    return session_from_record(session, worker, session_log)


def _note_end(record: WorkerRecord) -> None:
    if record.session:
        session = record.session
        SessionLog(Path(record.log), session["id"], session["grant_id"]).write(
            "ended while no server ran"
        )
