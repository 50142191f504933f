# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's XID errors mean for the pool: whether a card may go on being given out.

Used by gpus.health. The numbers are those of NVIDIA's XID catalogue for Ampere and newer
(docs.nvidia.com/deploy/xid-errors). An error is an application's own where the catalogue says
restart the application or ignore; it condemns the card where the catalogue says reset, reboot or
replace. Between them are errors after which the catalogue lets running work go on and wants a reset
when convenient: such a card takes nothing new. docs/gpu-health.md shows this table to operators; a
test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of the card."""

    APPLICATION = "application"  # one session's own error: the card stays in the pool
    NOTED = "noted"  # in the log, nothing else
    WORN = "worn"  # it takes nothing new; what runs goes on
    FAULT = "fault"  # it leaves the pool, and what runs on it ends


@dataclass(frozen=True, slots=True)
class Xid:
    """One number of the catalogue."""

    number: int
    verdict: Verdict
    meaning: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """In words, for logs and reasons."""
        return f"XID {self.number}, {self.meaning}"


_RESET = "reset the GPU (nvidia-smi -r) or reboot; if it comes back, have the card replaced"
_LINK = "reset the GPU or reboot; check the NVLink bridge or switch"
_REPLACE = "have the card replaced"

_A, _N, _W, _F = Verdict.APPLICATION, Verdict.NOTED, Verdict.WORN, Verdict.FAULT
_TABLE = (
    (8, _A, "the GPU stopped processing an application's work", ""),
    (11, _A, "an invalid command stream", ""),
    (13, _A, "a kernel's exception (address out of range, illegal instruction)", ""),
    (25, _A, "an illegal command stream", ""),
    (31, _A, "a page fault in GPU memory", ""),
    (32, _A, "a corrupted command stream", ""),
    (37, _N, "the driver's firmware reported an error", ""),
    (38, _N, "the driver's firmware reported an error", ""),
    (39, _A, "a copy engine's exception", ""),
    (40, _A, "a copy engine's exception", ""),
    (41, _A, "a copy engine's exception", ""),
    (43, _A, "an application was stopped after an error of its own", ""),
    (44, _N, "a fault during a context switch", ""),
    (45, _A, "an application's work was removed when it ended", ""),
    (46, _F, "the GPU stopped processing", _RESET),
    (48, _F, "an uncorrectable ECC error (double bit)", _RESET),
    (54, _F, "the auxiliary power is not connected", "connect it"),
    (60, _A, "a security engine's exception", ""),
    (62, _F, "an internal microcontroller halted", _RESET),
    (63, _W, "rows of memory are to be remapped", "reset the GPU when it is idle"),
    (64, _F, "rows of memory could not be remapped", _REPLACE),
    (66, _N, "an illegal access by the driver", ""),
    (67, _N, "an illegal access by the driver", ""),
    (68, _A, "a video decoder's exception", ""),
    (69, _A, "an engine's class error", ""),
    (70, _A, "a copy engine's exception", ""),
    (71, _A, "a copy engine's exception", ""),
    (72, _A, "a copy engine's exception", ""),
    (74, _F, "an NVLink error", _LINK),
    (75, _A, "a copy engine's exception", ""),
    (76, _A, "a copy engine's exception", ""),
    (77, _A, "a copy engine's exception", ""),
    (79, _F, "the GPU has fallen off the bus", "power-cycle the host; check slot, riser and power"),
    (80, _A, "corrupted data was sent to the GPU", ""),
    (82, _A, "a JPEG engine's error", ""),
    (83, _A, "a video decoder's error", ""),
    (84, _A, "a video decoder's error", ""),
    (85, _A, "a copy engine's exception", ""),
    (86, _A, "the optical flow engine's exception", ""),
    (92, _W, "many correctable ECC errors", "reset the GPU when it is idle; watch its ECC counts"),
    (94, _W, "a contained memory error, of one application", "reset the GPU when it is idle"),
    (95, _F, "an uncontained memory error", _RESET),
    (109, _F, "a context switch did not end in time", _RESET),
    (110, _F, "a security fault", "power-cycle the host; if it comes back, replace the card"),
    (119, _F, "the GPU's system processor does not answer", _RESET),
    (120, _F, "the GPU's system processor reported an error", _RESET),
    (121, _N, "a corrected error of the link to the CPU", ""),
    (136, _F, "an NVLink could not be trained", _LINK),
    (137, _A, "an illegal access over NVLink", ""),
    (140, _F, "an uncorrectable ECC error that could not be handled", _RESET),
    (141, _N, "an error of CUDA's fast path", ""),
    (143, _F, "the GPU could not be initialised", _RESET),
    (154, _N, "the recovery that another XID asks for has changed", ""),
    (155, _N, "an NVLink went down as told", ""),
    (156, _W, "a part of the GPU is to be retired", "reset the GPU when it is idle"),
    (157, _W, "a part of the GPU could not be retired", _REPLACE),
    (158, _F, "the GPU did not answer in time", _RESET),
    (167, _F, "the PCIe link did not answer in time", "power-cycle the host; check slot and riser"),
    (169, _F, "an internal microcontroller halted", _RESET),
    (171, _F, "an uncorrectable error in memory", _RESET),
    (172, _F, "an uncorrectable error in a cache", _RESET),
    *((n, _F, "an NVLink error", _LINK) for n in range(144, 151)),
    *((n, _A, "a video decoder's error", "") for n in (88, 89, 96, 97, 98)),
    *((n, _A, "a JPEG engine's error", "") for n in range(99, 106)),
    *((n, _A, "a copy engine's exception", "") for n in range(126, 136)),
)

CATALOGUE = {row[0]: Xid(*row) for row in sorted(_TABLE)}


def classify(number: int, faults: Collection[int] = (), ignored: Collection[int] = ()) -> Xid:
    """The catalogue's entry, or what the operator says instead.

    A number that the catalogue does not have is noted only: a card is not taken from its users for
    something that nobody can name. `[health] fault_xids` adds such numbers.
    """
    known = CATALOGUE.get(number) or Xid(number, Verdict.NOTED, "not in Sluice's catalogue")
    if number in ignored:
        return Xid(number, Verdict.NOTED, known.meaning, known.remedy)
    if number in faults:
        return Xid(number, Verdict.FAULT, known.meaning, known.remedy or _RESET)
    return known
