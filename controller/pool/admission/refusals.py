# SPDX-License-Identifier: Apache-2.0
"""Says why a request is not granted, or was not granted in time, in words for its user.

Called by requests.Requests, the scheduler and feasibility. Each message names what was wanted, what
there is, and what to change.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice.controller.pool.decisions import GrantRequest, Refused
from sluice.controller.pool.grants.jobs import ADDRESS_DOMAIN, PROJECT_DOMAIN
from sluice.controller.pool.grants.node_parts import parts_of
from sluice.controller.pool.model import DEFAULT_PROJECT, Grant, ShareKeeping, Sharing
from sluice.controller.pool.projects.quotas import Excess
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import MAX_DEVICES, MIN_CONCURRENT_PERCENT


def wanted(request: GrantRequest) -> str:
    """The request in words, such as "2 vGPUs of 1024 MiB and 25 %"."""
    vgpus = "1 vGPU" if request.count == 1 else f"{request.count} vGPUs"
    memory = f"{request.memory_mib} MiB" if request.memory_mib else "default memory"
    compute = f"{request.compute_percent} %" if request.compute_percent else "default compute"
    return f"{vgpus} of {memory} and {compute}"


def malformed(request: GrantRequest) -> Refused | None:
    """Refuses numbers that no GPU could meet."""
    if not 1 <= request.count <= MAX_DEVICES:
        return Refused(
            CudaStatus.INVALID_VALUE,
            f"wanted {request.count} vGPUs; set SLUICE_VGPU to 1 to {MAX_DEVICES}",
        )
    if not 0 <= request.compute_percent <= 100:
        return Refused(
            CudaStatus.INVALID_VALUE,
            f"wanted {request.compute_percent} % of a GPU; set SLUICE_RATIO to 1 to 100",
        )
    if request.cross_node and request.compute_percent not in (0, 100):
        return Refused(
            CudaStatus.INVALID_VALUE,
            f"wanted {request.compute_percent} % of GPUs of several nodes (SLUICE_CROSS_NODE), "
            "which are given whole; unset SLUICE_RATIO or set it to 100",
        )
    if (
        request.sharing is Sharing.CONCURRENT
        and 0 < request.compute_percent < MIN_CONCURRENT_PERCENT
    ):
        return Refused(CudaStatus.INVALID_VALUE, too_small_at_once(request.compute_percent))
    if request.wait_seconds < -1:
        return Refused(
            CudaStatus.INVALID_VALUE,
            f"wanted to wait {request.wait_seconds} s; set SLUICE_WAIT to seconds, 0 to fail at "
            "once, or -1 to wait for ever",
        )
    return None


def too_small_at_once(compute_percent: int) -> str:
    """Why so small a share of a GPU's multiprocessors is not to be had."""
    return (
        f"wanted {compute_percent} % of a GPU's multiprocessors (SLUICE_SHARING=concurrent); "
        f"NVIDIA's MPS gives {MIN_CONCURRENT_PERCENT} % at least: set SLUICE_RATIO to "
        f"{MIN_CONCURRENT_PERCENT} to 100, or SLUICE_SHARING=turns"
    )


def not_at_once(where: str) -> Refused:
    """Refuses sessions that run at once, where no GPU is shared so."""
    return Refused(
        CudaStatus.NOT_SUPPORTED,
        f"wanted sessions that run at once (SLUICE_SHARING=concurrent); no GPU of {where} that "
        "would do is shared so, and `sluice node show NODE` says why: set SLUICE_SHARING=turns, or "
        "have the operator mend it",
    )


def share_not_kept(request: GrantRequest, where: str, why: Collection[ShareKeeping]) -> Refused:
    """Refuses to reserve a share that nobody would keep."""
    reasons = " or ".join(UNKEPT[each] for each in sorted(why) if each in UNKEPT)
    return Refused(
        CudaStatus.NOT_SUPPORTED,
        f"wanted to reserve {wanted(request)}, and no node of {where} that would do keeps shares "
        f"of a GPU's time: {reasons}; reserve 100 %, or mend that",
    )


UNKEPT = {
    ShareKeeping.OFF: "[throttle] enable_computation_throttle is false there",
    ShareKeeping.UNKNOWN: "its server is older than shares are",
}


def foreign_job(request: GrantRequest) -> Refused:
    """Refuses a token that somebody else's job was started with."""
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"the job {request.job[:8]} (SLUICE_JOB) belongs to another user, container, VM or address "
        "than this process; start a job of its own with `sluice run --share`, or unset SLUICE_JOB",
    )


def anothers_project(request: GrantRequest, grant: Grant) -> Refused:
    """Refuses a process that works for another project than its job does."""
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"the job {request.job[:8]} (SLUICE_JOB) is of project {grant.project or DEFAULT_PROJECT}, "
        f"and this process is of project {request.project or DEFAULT_PROJECT}: give all processes "
        "of a job the same SLUICE_PROJECT, or start a job of its own with `sluice run --share`",
    )


def job_too_high(request: GrantRequest, grant: Grant, most: int) -> Refused:
    """Refuses a process that may not ask for the priority that its job has."""
    project = request.project or DEFAULT_PROJECT
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"the job {request.job[:8]} (SLUICE_JOB) has priority {grant.priority}, and project "
        f"{project} may ask for at most {most} here: start a job of its own with `sluice run "
        f"--share`, or have the operator raise it (`sluice quota set {project} --max-priority "
        f"{grant.priority}`, or a token made with --max-priority)",
    )


def anothers_reservation(request: GrantRequest, grant: Grant) -> Refused:
    """Refuses a process that may not draw on the reservation that its job uses."""
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"the job {request.job[:8]} (SLUICE_JOB) draws on reservation {grant.reservation}, which "
        "is not for this process: start a job of its own with `sluice run --share`, or have the "
        "operator give it the reservation's label ([projects] labels in server.conf, or a token "
        "made with --label)",
    )


def not_a_servers(request: GrantRequest) -> Refused | None:
    """Refuses a server that names a job of the network, whose processes come to the controller."""
    if not (request.job and request.job_domain.startswith((PROJECT_DOMAIN, ADDRESS_DOMAIN))):
        return None
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"node {request.node} asks for a session of job {request.job[:8]} with job_domain "
        f"{request.job_domain[:80]!r}, which the controller alone gives: a server names the user, "
        "VM or claim that it knows; processes of a job over the network ask by POST /v1/sessions",
    )


def cannot_join(
    request: GrantRequest, grant: Grant, live_sessions: int, most: int, *, ending: bool
) -> Refused | None:
    """Refuses a session of a job that its grant cannot take."""
    if ending:
        return Refused(
            CudaStatus.DEVICE_UNAVAILABLE, f"the job {request.job[:8]} is being ended; try again"
        )
    if request.local_only and request.node != grant.node:
        return Refused(
            CudaStatus.DEVICE_UNAVAILABLE,
            f"the job {request.job[:8]} has its vGPUs on node {grant.node}, and this process is on "
            f"{request.node}; start a job of its own there with `sluice run --share`",
        )
    if request.chosen and max(request.chosen) >= len(grant.vgpus):
        return Refused(
            CudaStatus.INVALID_VALUE,
            f"this process chooses vGPU {max(request.chosen)} of its job, which has "
            f"{len(grant.vgpus)}, numbered from 0; set CUDA_VISIBLE_DEVICES, or start the job with "
            "`sluice run --share --vgpu N`",
        )
    parts = parts_of(grant, request.chosen) if grant.spans_nodes else []
    if len({node for node, _ in parts}) < len(parts):
        return Refused(
            CudaStatus.INVALID_VALUE,
            f"this process chooses vGPUs {', '.join(map(str, request.chosen))} of its job, which "
            "are of several nodes in turn: name each node's one after the other in "
            "CUDA_VISIBLE_DEVICES (`sluice grant show` lists them)",
        )
    if len(parts) > 1 and request.one_node:
        return Refused(
            CudaStatus.NOT_SUPPORTED,
            f"the job {request.job[:8]} has vGPUs of nodes {', '.join(grant.nodes_in_order)}, and "
            "this process can have a session on one node: set SLUICE_CROSS_NODE=1 and "
            "SLUICE_CHANNEL=tcp as its job has, update its client library, or choose vGPUs of one "
            "node by CUDA_VISIBLE_DEVICES",
        )
    where = " on one of its nodes" if parts else ""
    if live_sessions >= most:
        return Refused(
            CudaStatus.DEVICE_UNAVAILABLE,
            f"the job {request.job[:8]} has {live_sessions} sessions{where}, the most that one job "
            "may have; end a process of it, or raise [pool] job_sessions in controller.conf",
        )
    return None


def no_room_for_context(request: GrantRequest) -> Refused:
    """Refuses a session of a job whose GPU is full of others' memory."""
    return Refused(
        CudaStatus.DEVICE_UNAVAILABLE,
        f"the job {request.job[:8]} has its vGPUs, but one of their GPUs has no room now for "
        "another process's context; start the job with `sluice run --share --processes N`, which "
        "keeps room for N, or set SLUICE_WAIT to the seconds to wait, or -1 for ever",
    )


def over_quota(request: GrantRequest, why: Excess) -> Refused:
    """Refuses what its project may not hold."""
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"wanted {wanted(request)}; {why}: ask for less, end other work of the project, or have "
        f"the operator raise it (`sluice quota set {request.project or DEFAULT_PROJECT}`)",
    )


def may_not_preempt(request: GrantRequest) -> Refused:
    """Refuses to end others' work for a project without that right."""
    project = request.project or DEFAULT_PROJECT
    if request.may_preempt is False:
        return Refused(
            CudaStatus.NOT_PERMITTED,
            "preempt (SLUICE_PREEMPT) is wanted, and the token has no right to it; ask without, or "
            "have an admin make one that has (`sluice token create --may-preempt`)",
        )
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"preempt (SLUICE_PREEMPT) is wanted, and project {project} has no right to preempt; ask "
        f"without, or have the operator give it (`sluice quota set {project} --may-preempt`)",
    )


def too_high(request: GrantRequest, most: int) -> Refused:
    """Refuses a priority that its project or token does not allow."""
    project = request.project or DEFAULT_PROJECT
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"priority {request.priority} (SLUICE_PRIORITY) is wanted, and project {project} may ask "
        f"for at most {most} here: ask for at most {most}, or have the operator raise it "
        f"(`sluice quota set {project} --max-priority {request.priority}`, or a token made with "
        "--max-priority)",
    )


def not_reserved(request: GrantRequest) -> Refused:
    """Refuses what is to be drawn on a reservation and has none."""
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"wanted {wanted(request)} of a reservation (SLUICE_MODE=reserved), and no reservation is "
        f"held for project {request.project or DEFAULT_PROJECT}"
        + (f", VM {request.domain_name}" if request.domain_name else "")
        + (f", label {request.owner_label}" if request.owner_label else "")
        + ": unset SLUICE_MODE, or have the operator make one (`sluice reservation create`)",
    )


def larger_than_reserved(request: GrantRequest) -> Refused:
    """Refuses what no reservation of its owner's could hold."""
    return Refused(
        CudaStatus.NOT_PERMITTED,
        f"wanted {wanted(request)} of a reservation (SLUICE_MODE=reserved), and none of its "
        "owner's is that large: set SLUICE_VGPU, SLUICE_GMEM and SLUICE_RATIO to less, or have "
        "the operator resize it (`sluice reservation resize`)",
    )


def not_in_time(request: GrantRequest, position: int, queued: int, why: str = "") -> Refused:
    """Refuses what did not fit within the time that its user gave."""
    if why and request.wait_seconds == 0:
        text = (
            f"wanted {wanted(request)}; {why}; set SLUICE_WAIT to the seconds to wait, or -1 for "
            "ever"
        )
    elif request.wait_seconds == 0:
        text = (
            f"wanted {wanted(request)}; every GPU that could give it is in use now "
            f"({queued} request(s) wait); set SLUICE_WAIT to the seconds to wait, or -1 for ever"
        )
    else:
        because = f" ({why})" if why else ""
        text = (
            f"wanted {wanted(request)}; still at position {position} after {request.wait_seconds} "
            f"s{because}; set SLUICE_WAIT to more seconds, or -1 to wait for ever"
        )
    return Refused(CudaStatus.DEVICE_UNAVAILABLE, text)


def waiting_line(request: GrantRequest, position: int, queued: int, why: str = "") -> str:
    """The line that a waiting client prints."""
    because = f"; {why}" if why else ""
    return (
        f"waiting for {wanted(request)}: position {position} of {queued} in the queue{because} "
        "(SLUICE_WAIT=0 fails at once instead)"
    )
