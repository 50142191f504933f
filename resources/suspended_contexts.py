# SPDX-License-Identifier: Apache-2.0
"""Where the CUDA contexts of a suspended grant are, and why they stay on its GPUs where they do.

Said by servers (sessions.contexts), kept by the controller, shown by REST and the command line.
"""

from __future__ import annotations

from enum import StrEnum


class ContextPlace(StrEnum):
    """On its GPUs; on the way; in the host's memory; not known (booked as if it stayed)."""

    STAYS = "stays"
    LEAVING = "leaving"
    OFF = "off"
    UNKNOWN = "unknown"


class Stays(StrEnum):
    """Why a context stays; those of a worker are `context_tie` in native/api/control.yaml."""

    NONE = ""
    OPENED_MEMORY = "opened_memory"
    OPENED_EVENTS = "opened_events"
    COMMUNICATOR = "communicator"
    SEVERAL_GPUS = "several_gpus"
    OTHER_NODES = "other_nodes"
    MPS = "mps"
    OFF = "off"
    UNAVAILABLE = "unavailable"
    NOTHING_BOOKED = "nothing_booked"
    PROMISED_TWICE = "promised_twice"
    OLD_WORKER = "old_worker"
    LITTLE_MEMORY = "little_memory"
    MUCH_LEFT = "much_left"
    HOST_MEMORY = "host_memory"
    RESTARTED = "restarted"
    FAILED = "failed"


TEXTS = {
    Stays.NONE: "",
    Stays.OPENED_MEMORY: "it has, or had, memory of another process open",
    Stays.OPENED_EVENTS: "it has, or had, events of another process open",
    Stays.COMMUNICATOR: "it has, or had, an NCCL communicator with other ranks",
    Stays.SEVERAL_GPUS: "it is on several GPUs",
    Stays.OTHER_NODES: "it has vGPUs of other nodes",
    Stays.MPS: "it runs at once with others (MPS)",
    Stays.OFF: "[suspend] checkpoint_contexts of its node is off",
    Stays.UNAVAILABLE: "its node's driver cannot take it off",
    Stays.NOTHING_BOOKED: "nothing is booked for it",
    Stays.PROMISED_TWICE: "its GPU's memory is promised more than once, and no room to come back "
    "could be kept for it",
    Stays.OLD_WORKER: "its worker is of an earlier release",
    Stays.LITTLE_MEMORY: "too little of its memory is out, whose room it would need to come back",
    Stays.MUCH_LEFT: "too much of its memory could not be moved",
    Stays.HOST_MEMORY: "the host has no memory left for it ([suspend] swap_mib)",
    Stays.RESTARTED: "its server was restarted while it was about to leave",
    Stays.FAILED: "the driver did not take it off",
}


def read_place(text: str) -> ContextPlace | None:
    """As a server said; None: it said nothing, or what is not known here."""
    try:
        return ContextPlace(text)
    except ValueError:
        return None


def read_why(text: str) -> Stays:
    """The same; what is not known here is no reason."""
    try:
        return Stays(text)
    except ValueError:
        return Stays.NONE


def words(why: Stays, note: str) -> str:
    """For people; `note` is what the server said besides."""
    return f"{TEXTS[why]} ({note})" if note and TEXTS[why] else TEXTS[why] or note
