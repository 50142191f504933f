# SPDX-License-Identifier: Apache-2.0
"""What a container engine is told to add to a container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.guest_runtime import cdi_specification as cdi

#: What JAX looks for before it asks CUDA.
DEVICE_FILE = {
    "hostPath": "/dev/null",
    "containerPath": "/dev/nvidiactl",
    "options": ["ro", "nosuid", "nodev", "bind"],
}


def entries(found: dict[str, object], name: str) -> dict[str, object]:
    devices = found["devices"]
    assert isinstance(devices, list)
    return next(device["containerEdits"] for device in devices if device["name"] == name)


def test_a_slices_device_has_the_bundle_and_its_socket_and_nothing_to_choose() -> None:
    small = cdi.socket_device("small", "/run/sluice/", bounded=True)
    found = cdi.specification("/opt/sluice", [small])
    assert (found["cdiVersion"], found["kind"]) == ("0.3.0", "sluice.io/vgpu")
    assert found["containerEdits"] == {
        "env": [
            "LD_AUDIT=/opt/sluice/lib/libsluice-audit.so",
            "TRITON_LIBCUDA_PATH=/opt/sluice/lib",
        ],
        "mounts": [
            {
                "hostPath": "/opt/sluice",
                "containerPath": "/opt/sluice",
                "options": ["ro", "nosuid", "nodev", "bind"],
            },
            DEVICE_FILE,
        ],
    }
    # limits are the server's: nothing here says how much
    assert entries(found, "small") == {
        "env": ["SLUICE_CHANNEL=shm", f"SLUICE_JOB={'0' * 32}"],
        "mounts": [
            {
                "hostPath": "/run/sluice/containers/small/socket",
                "containerPath": "/run/sluice",
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ],
    }


def test_a_bundles_nvidia_smi_is_a_command_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").touch()
    found = cdi.specification(
        str(tmp_path), [cdi.socket_device("all", "/run/sluice", bounded=False)]
    )
    edits = found["containerEdits"]
    assert isinstance(edits, dict)
    assert edits["mounts"][1:] == [
        DEVICE_FILE,
        {
            "hostPath": f"{tmp_path}/bin/nvidia-smi",
            "containerPath": "/usr/local/bin/nvidia-smi",
            "options": ["ro", "nosuid", "nodev", "bind"],
        },
    ]


def test_hooks_and_device_nodes_are_not_used() -> None:
    found = cdi.specification("/x", [cdi.socket_device("all", "/run/sluice", bounded=False)])
    text = cdi.as_json(found)
    assert "hooks" not in text
    assert "deviceNodes" not in text
    assert json.loads(text) == found


def test_a_vms_region_can_be_written() -> None:
    region = cdi.region_device("/sys/bus/pci/devices/0000:03:00.0/resource2")
    edits = entries(cdi.specification("/opt/sluice", [region]), "all")
    assert edits["env"] == ["SLUICE_CHANNEL=ivshmem", "SLUICE_IVSHMEM=/run/sluice-region"]
    mounts = edits["mounts"]
    assert isinstance(mounts, list)
    assert "rw" in mounts[0]["options"]


def test_the_network_takes_the_cas_file_along() -> None:
    found = cdi.specification("/opt/sluice", [cdi.network_device("https://a:9123", "/etc/ca.pem")])
    edits = entries(found, "all")
    assert edits["env"] == [
        "SLUICE_CA=/run/sluice-ca.pem",
        "SLUICE_CHANNEL=tcp",
        "SLUICE_CONTROLLER=https://a:9123",
    ]


@pytest.mark.parametrize("name", ["", "1st", "a/b", "a=b", "-a", "a-", "ä", "a" * 64, "a\nb"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(cdi.CdiError, match="is no name of a device"):
        cdi.specification("/opt/sluice", [cdi.CdiDevice(name)])


def test_a_bundle_without_one_of_the_cudas_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libcuda.so.1", "libcudart.so.13", "libsluice-audit.so"):
        (tmp_path / "lib" / name).touch()
    with pytest.raises(cdi.CdiError, match=r"has no lib/libcudart\.so\.12: install the guest"):
        cdi.check_bundle(tmp_path)
    (tmp_path / "lib/libcudart.so.12").touch()
    cdi.check_bundle(tmp_path)


def test_a_file_is_never_half_written(tmp_path: Path) -> None:
    target = tmp_path / "cdi" / "sluice.json"
    cdi.write(target, "one")
    with pytest.raises(UnicodeEncodeError):
        cdi.write(target, "\udc80")
    assert target.read_text() == "one"
    assert [path.name for path in target.parent.iterdir()] == ["sluice.json"]
    assert target.stat().st_mode & 0o777 == 0o644
