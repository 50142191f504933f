# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts at each RDMA port, for /metrics.

Used by server.metrics. Read from sysfs at each scrape; what a device does not count is left out,
and a device that is gone has no series but its being down.
"""

from __future__ import annotations

from pathlib import Path

from sluice.config.metric_families import Family, Samples
from sluice.server.rdma.ports import ChosenPort

DEVICES = Path("/sys/class/infiniband")
LABELS = ("device", "port")
WORD_BYTES = 4  # port_rcv_data and port_xmit_data count words

#: Files below a port's folder: what counts, and by how much a figure of theirs is multiplied.
COUNTERS = {
    "sluice_rdma_port_received_bytes_total": (("counters/port_rcv_data", WORD_BYTES),),
    "sluice_rdma_port_sent_bytes_total": (("counters/port_xmit_data", WORD_BYTES),),
    "sluice_rdma_port_received_packets_total": (
        ("counters/port_rcv_packets", 1),
        ("hw_counters/rcvd_pkts", 1),
    ),
    "sluice_rdma_port_sent_packets_total": (
        ("counters/port_xmit_packets", 1),
        ("hw_counters/sent_pkts", 1),
    ),
}
#: Errors by the name of the kernel's counter.
ERRORS = (
    "counters/link_downed",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "hw_counters/link_downed",
    "hw_counters/out_of_sequence",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/retry_exceeded_err",
    "hw_counters/rcvd_seq_err",
    "hw_counters/rcvd_rnr_err",
    "hw_counters/roce_slow_restart",
)

FAMILIES = (
    Family(
        "sluice_rdma_port_up",
        "gauge",
        "1 if the port for RDMA carries data, 0 while its link is down or the device is gone.",
        LABELS,
    ),
    Family(
        "sluice_rdma_port_received_bytes_total", "counter", "Bytes that came to the port.", LABELS
    ),
    Family("sluice_rdma_port_sent_bytes_total", "counter", "Bytes that the port sent.", LABELS),
    Family(
        "sluice_rdma_port_received_packets_total",
        "counter",
        "Packets that came to the port.",
        LABELS,
    ),
    Family("sluice_rdma_port_sent_packets_total", "counter", "Packets that the port sent.", LABELS),
    Family(
        "sluice_rdma_port_errors_total",
        "counter",
        "Errors at the port, by the name of the kernel's counter.",
        (*LABELS, "error"),
    ),
)


class RdmaFigures:
    """Of the port that sessions use."""

    def __init__(self, chosen: ChosenPort | None, devices: Path = DEVICES) -> None:
        self._chosen = chosen
        self._devices = devices

    def fill(self, samples: Samples) -> None:
        """The families of this module."""
        if self._chosen is None:
            return
        port = self._chosen.port
        labels = (port.device, str(port.number))
        folder = self._devices / port.device / "ports" / str(port.number)
        # "4: ACTIVE"
        samples.add("sluice_rdma_port_up", 1 if _text(folder / "state")[:1] == "4" else 0, *labels)
        for family, files in COUNTERS.items():
            for file, unit in files:
                if (figure := _number(folder / file)) is not None:
                    samples.add(family, figure * unit, *labels)
                    break
        said = set()
        for file in ERRORS:
            name = file.partition("/")[2]
            if name not in said and (figure := _number(folder / file)) is not None:
                said.add(name)
                samples.add("sluice_rdma_port_errors_total", figure, *labels, name)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None
