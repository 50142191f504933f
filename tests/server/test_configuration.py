# SPDX-License-Identifier: Apache-2.0
"""Configuration files: what operators bring along is read, what is wrong is named with the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from control_plane import PYTHON_PATH

from sluice.config.controller import read_controller_config
from sluice.config.ini import ConfigError
from sluice.config.server import read_server_config

BROUGHT_ALONG = """\
[log]
    log_with_time = true    ; whether lines carry the time
    log_to_screen = false
    log_level = debug       ; INFO or DEBUG
    file_log_level = INFO

[controller]
    controller_addr = 10.1.2.3:9123    ; where the scheduler is

[server]
    vgpu_count = 8          ; slices per GPU
    bind_addr = 127.0.0.1
    ;bind_net =             ; either this or bind_addr
# a comment of the other kind
    listen_port = 9961
    enable_kvm = true
    enable_shm = true
    enable_rdma = true
    ibverbs_device = mlx5_0

[server-nccl]
    comm_id = 127.0.0.1:9970; no space before the comment

[throttle]
    throttle_level = 50
    enable_computation_throttle = true
    computation_throttle_mode2 = true
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "server.conf"
    path.write_text(text)
    return path


def test_a_file_with_both_kinds_of_comments_is_read(tmp_path: Path) -> None:
    config = read_server_config(written(tmp_path, BROUGHT_ALONG))
    assert config.log.log_level == "DEBUG"
    assert config.log.log_to_screen is False
    assert config.controller.grpc_targets == ["10.1.2.3:9124"]
    assert (config.server.vgpu_count, config.server.listen_port) == (8, 9961)
    assert config.server.bind_net is None
    assert config.server_nccl.comm_id == "127.0.0.1:9970"
    assert config.throttle.throttle_level == 50


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[server]\nvgpu_count = many", "[server] vgpu_count = many: "),
        ("[server]\nvgpu_count = 65", "[server] vgpu_count = 65: "),
        ("[server]\nvgpu_count = 0", "give into how many vGPUs a GPU is cut by default, 1 to 64"),
        ("[log]\nlog_files_kept = 101", "beside it, 0 to 100"),
        ("[server]\nlisten_port = -1", "give the data port, 1 to 65535 (0: any free one)"),
        ("[node]\nlabels = rack=" + "r" * 64, "[node] labels"),
        ("[projects]\ndefault = a/b", "[projects] default = a/b: "),
        ("[server]\nlisten_port = 70000", "[server] listen_port = 70000: "),
        ("[server]\nlisen_port = 1", "did you mean listen_port?"),
        ("[server]\nbind_addr = nowhere", "[server] bind_addr = nowhere: "),
        ("[server]\nbind_addr = 1.2.3.4\nbind_net = eth0", "keep one of them"),
        ("[server]\nenable_shm = perhaps", "[server] enable_shm = perhaps: "),
        ("[controller]\ncontroller_addr = host", "host:port"),
        ("[controller]\ncontroller_addr = host:99999", "host:port"),
        ("[log]\nlog_level = LOUD", "[log] log_level = LOUD: "),
        ("[throttle]\ncomputation_throttle_mode2 = false", "the only mode"),
        ("[native]\naddresses = GPU-1 = 65:00.0", "0000:65:00.0"),
        ("[native]\naddresses = GPU-1 = ../../etc", "[native] addresses = "),
        ("[native]\naddresses = GPU-1 = 0000:65:00.0'/><x", "[native] addresses = "),
        ("[native]\naddresses = a=0000:65:00.0, b=0000:65:00.0", "twice"),
        ("[native]\naddresses = a=0000:65:00.0, a=0000:66:00.0", "twice"),
        ("[sever]\na = 1", "[sever]: there is no such section; use one of [log]"),
        ("vgpu_count = 1", "is not an INI file"),
        ("[server]\nvgpu_count = 1\nvgpu_count = 2", "is not an INI file"),
        ("[server]\nvgpu_count", "is not an INI file"),
    ],
)
def test_a_wrong_file_is_answered_with_place_value_and_fix(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_server_config(path)
    assert str(path) in str(error.value)
    assert complaint in str(error.value)


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_bytes(b"\xff\xfe[server]")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_server_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_controller_config(tmp_path / "absent.conf")


@pytest.mark.parametrize("service", ["server", "controller"])
def test_a_service_with_a_wrong_file_exits_with_2_and_no_traceback(
    tmp_path: Path, service: str
) -> None:
    path = written(tmp_path, "[log]\nlog_levle = INFO")
    done = subprocess.run(
        [sys.executable, "-m", f"sluice.{service}", "--config", str(path)],
        env={"PYTHONPATH": str(PYTHON_PATH)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "did you mean log_level?" in done.stderr
    assert "Traceback" not in done.stderr
