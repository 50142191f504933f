# SPDX-License-Identifier: Apache-2.0
"""What an allocated ResourceClaim asks of the pool. Pure.

Called by node_plugin.py, when the kubelet has a claim prepared, and by publishing.py, which looks
for parts whose claims are over. The scheduler has chosen; here it is only said in the pool's words,
and what cannot be is refused with the field and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from sluice.kubernetes.naming import COMPUTE, DRIVER, MEMORY, gpu_word, read_device_name

MIB = 1 << 20


class ClaimError(Exception):
    """A claim cannot be prepared; the text is shown as an event of its pod."""


@dataclass(frozen=True)
class Result:
    """One device of a claim's allocation, as it is answered to the kubelet."""

    request: str
    pool: str
    device: str
    share: str
    memory_mib: int | None  # None: the whole device
    compute_percent: int | None


@dataclass(frozen=True)
class Wanted:
    """Our part of a claim's allocation."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]
    reservation: str

    def places(self, reservation: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The vGPUs as the pool's REST takes them; `reservation` is the whole's view."""
        found = [_place(result, reservation) for result in self.results]
        sizes = {(place["memory_mib"], place["compute_percent"]) for place in found}
        if len(sizes) > 1:
            raise ClaimError(
                f"its devices are of different sizes ({_sizes(found)}): the vGPUs of one claim are "
                "alike; use a claim for each size"
            )
        if len({place["gpu"].rpartition(":")[0] for place in found}) > 1:
            raise ClaimError(
                "its devices are on several nodes of the pool: a program's vGPUs are on one; use "
                f"matchAttribute: {DRIVER}/node in the claim's constraints"
            )
        return found


def is_allocated(claim: Mapping[str, Any]) -> bool:
    """Whether a claim holds devices of ours."""
    return bool(_results(claim))


def read_claim(claim: Mapping[str, Any], uid: str) -> Wanted:
    """What a claim asks for; raises ClaimError."""
    metadata = claim["metadata"]
    if metadata["uid"] != uid:
        raise ClaimError(
            f"claim {metadata['namespace']}/{metadata['name']} is another one now "
            f"({metadata['uid']}, not {uid})"
        )
    found = tuple(_result(each) for each in _results(claim))
    if not found:
        raise ClaimError("it is not allocated, or holds no device of this driver")
    _refuse_parameters(claim)
    reservations = {_device(result)[1] for result in found}
    if len(reservations) > 1:
        raise ClaimError(
            f"its devices are of several reservations ({', '.join(sorted(reservations))}): ask for "
            "devices of one, or use several claims"
        )
    return Wanted(uid, metadata["namespace"], metadata["name"], found, reservations.pop())


def _refuse_parameters(claim: Mapping[str, Any]) -> None:
    """Opaque parameters for this driver, of the claim or of its class: there are none to give."""
    allocation = claim["status"]["allocation"]
    for config in allocation["devices"].get("config") or ():
        if (config.get("opaque") or {}).get("driver") == DRIVER:
            where = "class" if config.get("source") == "FromClass" else "claim"
            raise ClaimError(
                f"the {where}'s devices.config has parameters for {DRIVER}, which takes none: say "
                f"what is wanted in the request's capacity ({MEMORY}, {COMPUTE})"
            )


def _results(claim: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [each for each in results if each.get("driver") == DRIVER]


def _result(found: Mapping[str, Any]) -> Result:
    consumed = found.get("consumedCapacity") or {}
    memory, compute = consumed.get(MEMORY), consumed.get(COMPUTE)
    return Result(
        request=found["request"],
        pool=found["pool"],
        device=found["device"],
        share=found.get("shareID") or "",
        memory_mib=None if memory is None else number_of(MEMORY, memory, MIB),
        compute_percent=None if compute is None else number_of(COMPUTE, compute, 1),
    )


def consumed_of(
    claim: Mapping[str, Any],
) -> list[tuple[str, str, int | None, int | None]]:
    """What a claim holds of our devices: pool, device, memory in MiB, percent of compute.

    None: all of the device. What cannot be read counts as that.
    """
    found = []
    for result in _results(claim):
        try:
            each = _result(result)
        except ClaimError:
            each = Result("", str(result.get("pool")), str(result.get("device")), "", None, None)
        found.append((each.pool, each.device, each.memory_mib, each.compute_percent))
    return found


def number_of(name: str, text: str, unit: int) -> int:
    """A capacity as a number of units (MIB, 1); raises ClaimError."""
    try:
        number = parse_quantity(text)
        whole, rest = divmod(number, unit)
    except (ValueError, ArithmeticError) as error:
        raise ClaimError(f"capacity {name}={str(text)[:40]}: {error}") from None
    if rest or whole < 1:
        what = "whole MiB, 1Mi or more" if unit == MIB else "a whole number, 1 or more"
        raise ClaimError(f"capacity {name}={str(text)[:40]}: ask for {what}")
    return int(whole)


def _device(result: Result) -> tuple[str, str]:
    try:
        return read_device_name(result.device)
    except ValueError as error:
        raise ClaimError(str(error)) from None


def _place(result: Result, reservation: Mapping[str, Any]) -> dict[str, Any]:
    word, _ = _device(result)
    for slot in reservation["slots"]:
        node, _, uuid = slot["gpu"].rpartition(":")
        if node == result.pool and gpu_word(uuid) == word:
            return {
                "gpu": slot["gpu"],
                "memory_mib": result.memory_mib or slot["memory_mib"],
                "compute_percent": result.compute_percent or slot["compute_percent"],
            }
    raise ClaimError(
        f"reservation {reservation['id']} holds nothing of {result.device} on {result.pool} any "
        "more: delete the pod, and it is placed anew"
    )


def _sizes(places: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['memory_mib']} MiB and {each['compute_percent']} %" for each in places)
