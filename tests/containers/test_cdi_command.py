# SPDX-License-Identifier: Apache-2.0
"""`sluice cdi` on a host and in a guest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sluice.cli.application import application
from sluice.cli.rest import CommandError
from sluice.guest_runtime import cdi, cdi_specification
from sluice.guest_runtime.configuration import read_settings

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """As much of a bundle as the command looks at."""
    folder = tmp_path / "sluice"
    (folder / "lib").mkdir(parents=True)
    for name in cdi_specification._NEEDED:
        (folder / name).touch()
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "server.conf"
    run_dir = tmp_path / "run"
    path.write_text(
        f"[server]\nrun_dir = {run_dir}\n[containers]\ndevices = small=memory:64, train=count:2\n"
    )
    return path


def generate(bundle: Path, config: Path, output: str, *more: str) -> str:
    words = ["cdi", "generate", "--bundle", str(bundle), "--config", str(config)]
    result = CliRunner().invoke(application(words), [*words, "--output", output, *more])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_server_conf_names_the_devices(bundle: Path, config: Path, tmp_path: Path) -> None:
    for suffix in ("yaml", "json"):
        path = tmp_path / f"sluice.{suffix}"
        printed = generate(bundle, config, str(path))
        assert "sluice.io/vgpu=train" in printed
        found = yaml.safe_load(path.read_text())
        assert [d["name"] for d in found["devices"]] == ["all", "default", "small", "train"]
        assert "&id" not in path.read_text()
    assert json.loads((tmp_path / "sluice.json").read_text()) == found
    on_screen = generate(bundle, config, "-", "--format", "json")
    assert json.loads(on_screen) == found


def test_a_suffix_that_engines_do_not_read_is_refused(
    bundle: Path, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=r"name one that ends in \.yaml"):
        generate(bundle, config, str(tmp_path / "sluice.conf"))
    with pytest.raises(CommandError, match=r"name one that ends in \.json"):
        generate(bundle, config, str(tmp_path / "sluice.yaml"), "--format", "json")


def test_a_host_without_containers_says_so(bundle: Path, config: Path, tmp_path: Path) -> None:
    config.write_text("[containers]\nenable = false\n")
    with pytest.raises(CommandError, match="enable is false"):
        generate(bundle, config, str(tmp_path / "sluice.yaml"))


def test_the_list_says_what_is_missing(
    bundle: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cdi"
    generate(bundle, config, str(folder / "sluice.yaml"))
    (folder / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices: []\n")
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("sluice.io/vgpu")
    devices = cdi.offered([folder], parse_yaml=yaml.safe_load)
    assert [d.name for d in devices] == [
        f"sluice.io/vgpu={name}" for name in ("all", "default", "small", "train")
    ]
    assert devices[0].problem == f"there is no {tmp_path}/run/containers/all/socket"
    for name in ("all", "default", "small", "train"):
        (tmp_path / "run/containers" / name / "socket").mkdir(parents=True)
    assert cdi.show(cdi.offered([folder], parse_yaml=yaml.safe_load)) == 0
    (folder / "sluice.yaml").write_text("kind: [")
    assert cdi.show(cdi.offered([folder], parse_yaml=yaml.safe_load)) == 1
    assert "is no CDI specification: generate it again" in capsys.readouterr().out
    assert cdi.show([]) == 1


def test_a_guest_writes_its_regions_device(tmp_path: Path) -> None:
    device = tmp_path / "0000:03:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x1af4\n")
    (device / "device").write_text("0x1110\n")
    environment = {"SLUICE_SERVER_SOCKET": str(tmp_path / "none")}
    settings = read_settings(environment, tmp_path / "none.conf")
    with pytest.raises(cdi_specification.CdiError, match="no ivshmem device with its memory"):
        cdi.devices_of_machine("ivshmem", settings, tmp_path)
    with pytest.raises(cdi_specification.CdiError, match="would have no way to the pool"):
        cdi.devices_of_machine("auto", settings, tmp_path)
    (device / "resource2").touch()
    (found,) = cdi.devices_of_machine("auto", settings, tmp_path)
    assert (found.name, found.mounts[0].host) == ("all", str(device / "resource2"))


def test_a_guests_network_is_its_controllers(tmp_path: Path) -> None:
    environment = {"SLUICE_CONTROLLER": "https://pool:9123", "SLUICE_CA": "/etc/pool.pem"}
    settings = read_settings(environment, tmp_path / "none.conf")
    (found,) = cdi.devices_of_machine("tcp", settings, tmp_path)
    assert found.variables["SLUICE_CONTROLLER"] == "https://pool:9123"
    assert found.mounts[0].host == "/etc/pool.pem"


def test_the_bundles_own_command(bundle: Path, tmp_path: Path) -> None:
    """As it is packed: without the rest of Sluice, and with JSON alone."""
    (tmp_path / "python").mkdir()
    package = tmp_path / "python" / "sluice_guest"
    package.symlink_to(CHECKOUT / "guest_runtime")
    target = tmp_path / "cdi" / "sluice.json"
    words = ["cdi", "generate", "--channel", "tcp", "--bundle", str(bundle)]
    done = subprocess.run(
        [sys.executable, "-m", "sluice_guest", *words, "--output", str(target)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path / "python"), "SLUICE_CONTROLLER": "pool:9123"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{target}: sluice.io/vgpu=all\n"
    assert json.loads(target.read_text())["kind"] == "sluice.io/vgpu"
