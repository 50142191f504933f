# SPDX-License-Identifier: Apache-2.0
"""Each way to the pool is judged as the native library would find it, with a remedy."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest
from free_ports import free_port

from sluice.guest_runtime import channels
from sluice.guest_runtime.channels import (
    REGION_MAGIC,
    check_channels,
    check_region,
    check_regions,
    check_socket,
)
from sluice.guest_runtime.configuration import Value, read_settings
from sluice.guest_runtime.findings import Verdict

SIZE = 4 << 20


def region_bytes(magic: int = REGION_MAGIC, generation: int = 1, size: int = SIZE) -> bytes:
    header = struct.pack("<QIIQQII", magic, 1, 4, size, size // 4, generation, 0)
    return header.ljust(SIZE, b"\0")


def device(folder: Path, content: bytes | None, address: str = "0000:03:00.0") -> Path:
    """A PCI device as sysfs shows it, with a file in place of its memory."""
    place = folder / address
    place.mkdir(parents=True)
    (place / "vendor").write_text("0x1af4\n")
    (place / "device").write_text("0x1110\n")
    if content is not None:
        (place / "resource2").write_bytes(content)
    return place


def settings(**variables: str) -> dict[str, Value]:
    return read_settings(dict(variables), Path("/nowhere"))


def test_a_formatted_region_is_good_and_says_its_size(tmp_path: Path) -> None:
    device(tmp_path, region_bytes())
    found = check_regions(tmp_path)
    assert found.verdict is Verdict.OK
    assert "4 MiB, 4 slots" in found.text


@pytest.mark.parametrize(
    ("registers", "rings"),
    [
        (None, False),  # nobody may use them
        (bytes(256), False),  # a plain device is peer 0
        (bytes(8) + (1).to_bytes(4, "little") + bytes(244), True),
        (b"\xff" * 256, False),  # a device that is gone
        (bytes(16), False),
    ],
)
def test_a_doorbell_is_said(registers: bytes | None, rings: bool, tmp_path: Path) -> None:
    place = device(tmp_path, region_bytes())
    if registers is not None:
        (place / "resource0").write_bytes(registers)
    found = check_regions(tmp_path)
    assert found.verdict is Verdict.OK
    assert ("its doorbell wakes the host" in found.text) is rings


def test_the_layout_is_the_native_headers() -> None:
    from .conftest import CHECKOUT

    source = (CHECKOUT / "native/channel/slot.h").read_text()
    assert f"kRegionMagic = {REGION_MAGIC:#x};" in source
    fields = source.partition("struct RegionHeader {")[2].partition("};")[0]
    names = [line.split(";")[0].split()[-1] for line in fields.splitlines() if ";" in line]
    assert names[:7] == [
        "magic",
        "version",
        "slot_count",
        "region_bytes",
        "slot_bytes",
        "generation",
        "reserved",
    ]


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (bytes(SIZE), "start sluice-server on the host"),
        (b"\xff" * SIZE, "start sluice-server on the host"),
        (region_bytes(generation=0), "start sluice-server on the host"),
        (region_bytes(magic=0x1234), "SLUICE_IVSHMEM"),
        (region_bytes(size=SIZE * 2), "SLUICE_IVSHMEM"),
        (None, "sluice-pci-setup"),
    ],
)
def test_every_bad_region_has_its_remedy(
    content: bytes | None, remedy: str, tmp_path: Path
) -> None:
    device(tmp_path, content)
    found = check_regions(tmp_path)
    assert found.verdict is Verdict.BAD
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("region", "own_memory", "good"),
    [
        (4e9, 8e9, True),
        (66e6, 90e6, True),  # an emulated machine: all of its memory is slow
        (250e6, 8e9, True),
        (30e6, 8e9, False),
        (30e6, 130e6, False),
    ],
)
def test_an_uncached_mapping_is_slower_than_other_memory(
    region: float, own_memory: float, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device(tmp_path, region_bytes())
    speeds = iter([region, own_memory])
    monkeypatch.setattr(channels, "_best_speed", lambda *_: next(speeds))
    found = check_regions(tmp_path)
    assert found.verdict is (Verdict.OK if good else Verdict.BAD)
    assert good or "maps it uncached" in found.text


def test_ours_is_found_among_others(tmp_path: Path) -> None:
    device(tmp_path, bytes(SIZE), "0000:01:00.0")
    device(tmp_path, region_bytes(), "0000:02:00.0")
    assert check_regions(tmp_path).verdict is Verdict.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_permission_the_group_is_named(tmp_path: Path) -> None:
    place = device(tmp_path, region_bytes())
    (place / "resource2").chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        found = check_region(place / "resource2")
    finally:
        os.seteuid(0)
    assert found.verdict is Verdict.BAD
    assert "usermod -aG sluice" in found.remedy


def test_no_device_at_all_names_the_hosts_command(tmp_path: Path) -> None:
    assert "sluice vm attach" in check_regions(tmp_path).remedy


def test_a_socket_is_good_only_if_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    assert "start sluice-server" in check_socket(path).remedy
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        assert "nobody listens" in check_socket(path).remedy
        listener.listen()
        assert check_socket(path).verdict is Verdict.OK


def test_a_dead_socket_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    device(tmp_path / "pci", region_bytes())
    results = check_channels(settings(SLUICE_SERVER_SOCKET=str(path)), tmp_path / "pci")
    assert [r.verdict for r in results] == [Verdict.BAD], "the library would try this one only"


def test_a_missing_socket_is_a_note_where_the_region_serves(tmp_path: Path) -> None:
    device(tmp_path, region_bytes())
    results = check_channels(settings(SLUICE_SERVER_SOCKET=str(tmp_path / "none")), tmp_path)
    assert [r.verdict for r in results] == [Verdict.NOTE, Verdict.OK]


def test_by_tcp_the_controller_has_to_listen(tmp_path: Path) -> None:
    port = free_port()  # nobody else's afterwards
    with socket.create_server(("127.0.0.1", port)):
        chosen = settings(SLUICE_CHANNEL="tcp", SLUICE_CONTROLLER=f"127.0.0.1:{port}")
        assert [r.verdict for r in check_channels(chosen, tmp_path)] == [Verdict.OK]
        several = settings(
            SLUICE_CHANNEL="tcp", SLUICE_CONTROLLER=f"127.0.0.1:1,https://127.0.0.1:{port}"
        )
        assert [r.verdict for r in check_channels(several, tmp_path)] == [Verdict.OK]
    (refused,) = check_channels(chosen, tmp_path)
    assert refused.verdict is Verdict.BAD
    assert "SLUICE_CONTROLLER" in refused.text
    (nonsense,) = check_channels(settings(SLUICE_CHANNEL="tcp", SLUICE_CONTROLLER="pool"), tmp_path)
    assert "no host:port" in nonsense.text
