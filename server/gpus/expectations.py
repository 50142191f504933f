# SPDX-License-Identifier: Apache-2.0
"""What a healthy GPU of each model reaches, by NVIDIA's public data sheets, and what is too little.

Used by gpus.acceptance. Figures are peaks: GB/s of memory and of one direction of the link to
the host, TFLOPS of dense matrix products. A card fails below a share of them that no healthy one
stays below, whatever its clocks, cooling and host: the point is to find a card that is broken (half
of its memory channels, a link at an eighth of its width), not one that is a little slow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# of the peak, per figure; below is a failure
LEAST_SHARE: Mapping[str, float] = {
    "to_host_gbs": 0.2,
    "from_host_gbs": 0.2,
    "on_device_gbs": 0.5,
    "fp32_tflops": 0.4,
    "bf16_tflops": 0.3,
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """Peaks of one model; 0: the model cannot do it, or nobody says."""

    model: str
    link_gbs: float
    memory_gbs: float
    fp32_tflops: float
    bf16_tflops: float

    def peak(self, figure: str) -> float:
        """The data sheet's number for a measured figure."""
        if figure in ("to_host_gbs", "from_host_gbs"):
            return self.link_gbs
        if figure == "on_device_gbs":
            return self.memory_gbs
        return self.fp32_tflops if figure == "fp32_tflops" else self.bf16_tflops

    def least(self, figure: str) -> float:
        """What a healthy card reaches at the least."""
        return self.peak(figure) * LEAST_SHARE[figure]


_PCIE3, _PCIE4, _PCIE5, _C2C = 16.0, 32.0, 64.0, 450.0

# the first pattern that is found in the model's name counts
_TABLE: tuple[tuple[str, Expectation], ...] = (
    (r"GH200.*144G|GH200.*HBM3e", Expectation("GH200 144GB", _C2C, 4900, 67, 989)),
    (r"GH200", Expectation("GH200 96GB", _C2C, 4000, 67, 989)),
    (r"H200 NVL", Expectation("H200 NVL", _PCIE5, 4800, 60, 835)),
    (r"H200", Expectation("H200 SXM", _PCIE5, 4800, 67, 989)),
    (r"H100 NVL", Expectation("H100 NVL", _PCIE5, 3900, 60, 835)),
    (r"H100 PCIe", Expectation("H100 PCIe", _PCIE5, 2000, 51, 756)),
    (r"H100", Expectation("H100 SXM", _PCIE5, 3350, 67, 989)),
    (r"B200", Expectation("B200", _PCIE5, 7700, 75, 2250)),
    (r"A100.*SXM4.*80GB", Expectation("A100 SXM4 80GB", _PCIE4, 2039, 19.5, 312)),
    (r"A100 80GB PCIe", Expectation("A100 PCIe 80GB", _PCIE4, 1935, 19.5, 312)),
    (r"A100", Expectation("A100 40GB", _PCIE4, 1555, 19.5, 312)),
    (r"A30\b", Expectation("A30", _PCIE4, 933, 10.3, 165)),
    (r"A40\b", Expectation("A40", _PCIE4, 696, 37.4, 149.7)),
    (r"A10\b", Expectation("A10", _PCIE4, 600, 31.2, 125)),
    (r"L40S", Expectation("L40S", _PCIE4, 864, 91.6, 362)),
    (r"L40\b", Expectation("L40", _PCIE4, 864, 90.5, 181)),
    (r"L4\b", Expectation("L4", _PCIE4, 300, 30.3, 121)),
    (r"RTX 6000 Ada", Expectation("RTX 6000 Ada", _PCIE4, 960, 91.1, 364)),
    (r"RTX A6000", Expectation("RTX A6000", _PCIE4, 768, 38.7, 154.8)),
    (r"V100.*SXM2", Expectation("V100 SXM2", _PCIE3, 900, 15.7, 0)),
    (r"V100", Expectation("V100 PCIe", _PCIE3, 900, 14.0, 0)),
    (r"T4\b", Expectation("T4", _PCIE3, 300, 8.1, 0)),
)


def expectation_of(model: str) -> Expectation | None:
    """What is known of a model by the name that its driver gives; slices by MIG are not known."""
    if re.search(r"\bMIG\b", model):
        return None
    for pattern, expectation in _TABLE:
        if re.search(rf"\b(?:{pattern})", model):
            return expectation
    return None


def shortfalls(model: str, figures: Mapping[str, float]) -> list[str]:
    """What is too slow for the model, in words; nothing for a model that is not known."""
    expected = expectation_of(model)
    if expected is None:
        return []
    return [
        f"{FIGURES[name]} {value:.1f} {unit_of(name)}, at least {expected.least(name):.1f} expected"
        f" of {expected.model}"
        for name, value in figures.items()
        if name in LEAST_SHARE and value < expected.least(name)
    ]


def unit_of(figure: str) -> str:
    """GB/s or TFLOPS."""
    return "GB/s" if figure.endswith("gbs") else "TFLOPS"


FIGURES: Mapping[str, str] = {
    "from_host_gbs": "copies from the host",
    "to_host_gbs": "copies to the host",
    "on_device_gbs": "copies within its memory",
    "fp32_tflops": "matrix product in fp32",
    "bf16_tflops": "matrix product in bf16",
}
