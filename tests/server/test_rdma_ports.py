# SPDX-License-Identifier: Apache-2.0
"""Which RDMA port sessions use, what is said where there is none, and its figures.

The ports are made here; `make test-rdma` reads real ones, of soft RoCE.
"""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

import pytest

from sluice.config.metric_families import Samples
from sluice.config.server import ServerConfig, ServerSection
from sluice.server.check import check
from sluice.server.rdma.figures import FAMILIES, RdmaFigures
from sluice.server.rdma.ports import (
    ChosenPort,
    Gid,
    GidType,
    RdmaError,
    RdmaPort,
    choose,
    read_ports,
)
from sluice.server.start_up import rdma_port

LINK = Gid(0, ipaddress.IPv6Address("fe80::1afe:ff"), GidType.ROCE_V2)
ROCE_V1 = Gid(1, ipaddress.IPv6Address("::ffff:10.9.0.1"), GidType.ROCE_V1)
IPV6 = Gid(2, ipaddress.IPv6Address("fd00:9::1"), GidType.ROCE_V2)
IPV4 = Gid(3, ipaddress.IPv6Address("::ffff:10.9.0.1"), GidType.ROCE_V2)
SUBNET = Gid(0, ipaddress.IPv6Address("fe80::2c9:3:ef"), GidType.INFINIBAND)
DOWN, ACTIVE = 1, 4


def port(
    device: str = "mlx5_0",
    number: int = 1,
    state: int = ACTIVE,
    *,
    ethernet: bool = True,
    gids: tuple[Gid, ...] = (LINK, ROCE_V1, IPV6, IPV4),
) -> RdmaPort:
    return RdmaPort(device, number, state, ethernet, 4096, gids)


def section(**settings: object) -> ServerSection:
    return ServerSection.model_validate({"enable_rdma": True, **settings})


def test_the_first_port_that_is_up_with_an_ipv4_address_s_gid() -> None:
    chosen = choose(section(), [port(state=DOWN), port("mlx5_1"), port("mlx5_2")])
    assert chosen.option == "mlx5_1:1:3"
    assert "mlx5_1 port 1, RoCE v2, GID 3 ::ffff:a09:1" in chosen.describe()


def test_a_routable_gid_before_the_link_s_and_none_of_roce_v1() -> None:
    assert choose(section(), [port(gids=(LINK, ROCE_V1, IPV6))]).gid == IPV6
    assert choose(section(), [port(gids=(LINK, ROCE_V1))]).gid == LINK


def test_infiniband_needs_no_address_and_its_reach_is_its_subnet() -> None:
    chosen = choose(section(), [port(ethernet=False, gids=(SUBNET,))])
    assert chosen.reach == "fe80000000000000"


def test_what_is_named_is_taken() -> None:
    ports = [port(), port("mlx5_1", 1), port("mlx5_1", 2)]
    named = section(ibverbs_device="mlx5_1", ibverbs_port=2, ibverbs_gid=0)
    assert choose(named, ports).option == "mlx5_1:2:0"


@pytest.mark.parametrize(
    ("settings", "ports", "said"),
    [
        ({}, [], "this host has no RDMA device"),
        ({"ibverbs_device": "mlx4_0"}, [port()], "ibverbs_device = mlx4_0, and this host has mlx5"),
        ({"ibverbs_port": 2}, [port()], "ibverbs_port = 2, and there is no such port: mlx5_0 po"),
        ({}, [port(state=DOWN)], "no port is up: mlx5_0 port 1 is down"),
        ({"ibverbs_gid": 9}, [port(gids=(IPV4,))], "ibverbs_gid = 9, and mlx5_0 port 1 has the"),
        ({}, [port(gids=(ROCE_V1,))], "has no GID of RoCE v2: give its network interface"),
    ],
)
def test_what_is_missing_is_named_with_its_setting(
    settings: dict[str, object], ports: list[RdmaPort], said: str
) -> None:
    with pytest.raises(RdmaError, match=said):
        choose(section(**settings), ports)


def test_without_pyverbs_the_server_goes_on_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    with pytest.raises(RdmaError, match=r"needs pyverbs.*python3-pyverbs"):
        read_ports()
    assert rdma_port(section()) is None
    assert "no session goes over RDMA: [server] enable_rdma = true needs pyverbs" in caplog.text
    assert rdma_port(section(enable_rdma=False)) is None


def test_the_check_of_a_server_names_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    config = ServerConfig.model_validate({"server": {"enable_rdma": True, "driver": "none"}})
    assert check(config) == 1
    assert "BAD   rdma: [server] enable_rdma = true needs pyverbs" in capsys.readouterr().out


def test_a_port_s_figures_are_the_kernel_s_and_what_is_not_counted_is_absent(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "mlx5_0" / "ports" / "1"
    for name, text in {
        "state": "4: ACTIVE",
        "counters/port_rcv_data": "1000",
        "counters/port_rcv_packets": "7",
        "hw_counters/sent_pkts": "9",
        "hw_counters/rcvd_pkts": "8",
        "hw_counters/retry_exceeded_err": "2",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    assert figures(tmp_path) == {
        "sluice_rdma_port_up": 1,
        "sluice_rdma_port_received_bytes_total": 4000,
        "sluice_rdma_port_received_packets_total": 7,
        "sluice_rdma_port_sent_packets_total": 9,
        "sluice_rdma_port_errors_total": 2,
    }
    assert figures(tmp_path / "gone") == {"sluice_rdma_port_up": 0}


def figures(devices: Path) -> dict[str, float]:
    samples = Samples(FAMILIES)
    RdmaFigures(ChosenPort(port(), IPV4), devices).fill(samples)
    return {s.name: s.value for metric in samples.found() for s in metric.samples}
