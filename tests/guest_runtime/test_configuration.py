# SPDX-License-Identifier: Apache-2.0
"""`sluice check` sees the settings that the native library will see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.guest_runtime.client_settings import ALL
from sluice.guest_runtime.configuration import read_settings, visible_vgpus

from .conftest import CHECKOUT


def files(tmp_path: Path, user: str, system: str) -> tuple[dict[str, str], Path]:
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice" / "client.conf").write_text(user)
    (tmp_path / "system.conf").write_text(system)
    return {"HOME": str(tmp_path)}, tmp_path / "system.conf"


def test_the_environment_wins_then_the_user_then_the_system(tmp_path: Path) -> None:
    home, system = files(
        tmp_path,
        "[client]\ngmem = 2048\n",
        "[client]\ngmem = 1024 ; each\nvgpu_count=2\n[controller]\ncontroller_addr = pool:9123\n",
    )
    settings = read_settings({**home, "SLUICE_GMEM": "512"}, system)
    assert (settings["client.gmem"].text, settings["client.gmem"].origin) == (
        "512",
        "environment variable SLUICE_GMEM",
    )
    settings = read_settings(home, system)
    assert settings["client.gmem"].text == "2048"
    assert settings["client.gmem"].origin.endswith(".sluice/client.conf:2")
    assert settings["client.vgpu_count"].text == "2"
    assert settings["client.vgpu_count"].origin == f"{system}:3"
    assert settings["controller.controller_addr"].text == "pool:9123"
    assert settings["client.channel"].origin == "default"


def test_the_older_spellings_are_accepted_and_ours_win() -> None:
    both = {"ORION_VGPU": "4", "ORION_CONTROLLER": "old:9123", "SLUICE_VGPU": "2"}
    settings = read_settings(both, Path("/nowhere"))
    assert settings["client.vgpu_count"].text == "2"
    assert settings["controller.controller_addr"].origin == "environment variable ORION_CONTROLLER"


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert read_settings({"SLUICE_VGPU": ""}, Path("/nowhere"))["client.vgpu_count"].text == "1"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SLUICE_VGPU", "0"),
        ("SLUICE_VGPU", "65"),
        ("SLUICE_GMEM", "1GB"),
        ("SLUICE_GMEM", "9" * 40),
        ("SLUICE_RATIO", "101"),
        ("SLUICE_CROSS_NODE", "maybe"),
        ("SLUICE_CHANNEL", "carrier-pigeon"),
        ("SLUICE_PRIORITY", "1001"),
        ("SLUICE_WAIT", "-2"),
        ("SLUICE_MODE", "mine"),
        ("SLUICE_PROJECT", "a/b"),
        ("SLUICE_LABELS", "rack"),
    ],
)
def test_what_the_library_will_refuse_is_a_problem(name: str, text: str) -> None:
    found = [v for v in read_settings({name: text}, Path("/nowhere")).values() if v.problem]
    assert len(found) == 1
    assert name in found[0].origin


def test_the_native_library_reads_every_setting_of_the_table() -> None:
    source = (CHECKOUT / "native/client/core/config.cc").read_text()
    read = re.findall(r"\br\.(?:read|take)\(setting::k(\w+),", source)
    assert read == ["".join(map(str.capitalize, s.name.split("_"))) for s in ALL]


def test_defaults_are_good_and_as_they_were() -> None:
    settings = read_settings({}, Path("/nowhere"))
    assert {key: value.text for key, value in settings.items() if value.text} == {
        "controller.controller_addr": "127.0.0.1:9123",
        "client.server_socket": "/run/sluice/server.sock",
        "client.channel": "auto",
        "client.bulk_connections": "-1",
        "client.enable_net": "true",
        "log.log_to_screen": "true",
        "client.vgpu_count": "1",
        "client.cross_node": "false",
        "client.priority": "0",
        "client.wait": "-1",
        "client.mode": "auto",
        "client.preempt": "false",
        "client.same_gpu": "false",
        "client.sharing": "auto",
        "client.static_runtime": "leave",
        "client.merge_launches": "off",
    }
    assert not any(value.problem for value in settings.values())


def test_a_key_that_nobody_knows_is_passed_over(tmp_path: Path) -> None:
    home, system = files(tmp_path, "[client]\ngmen = 2048\n[clients]\ngmem = 1\n", "")
    assert read_settings(home, system) == read_settings({}, Path("/nowhere"))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (None, 3),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("1", 1),
        (" 2 , 0", 2),
        ("0,1,-1,2", 2),
        ("0,7,1", 1),
        ("0,,1", 1),
        ("1,0,1", 0),
        ("GPU-8a1c,GPU-77", 2),
    ],
)
def test_what_cuda_visible_devices_leaves(text: str | None, left: int) -> None:
    # The cases of tests/native/client/config_test.cc.
    assert visible_vgpus(text, 3) == left
