# SPDX-License-Identifier: Apache-2.0
"""`sluice enrol` reads a real config drive, and leaves nothing mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import CHECKOUT


@pytest.mark.parametrize("broken", [False, True])
def test_a_config_drive_is_mounted_read_and_let_go(tmp_path: Path, broken: bool) -> None:
    image, place = tmp_path / "drive", tmp_path / "place"
    place.mkdir()
    subprocess.run(["mkfs.vfat", "-n", "config-2", "-C", image, "4096"], check=True)
    if subprocess.run(["mount", image, place], check=False).returncode:
        pytest.skip("this machine has no loop devices")
    try:
        document = place / "openstack/latest/vendor_data2.json"
        document.parent.mkdir(parents=True)
        told = {"reservation": "r1", "controller": "127.0.0.1:1"}
        told["enrolment"] = "sluice_enrol_" + "a" * 43
        document.write_text(json.dumps({"sluice": told}))
    finally:
        subprocess.run(["umount", place], check=True)
    if broken:
        image.write_bytes(b"no file system")
    label = tmp_path / "system/dev/disk/by-label/config-2"
    label.parent.mkdir(parents=True)
    label.symlink_to(image)
    before = Path("/proc/self/mounts").read_text()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sluice.guest_runtime", "enrol"),
            *("--source", "openstack", "--system", tmp_path / "system", "--dir", tmp_path / "etc"),
            *("--metadata", "http://127.0.0.1:1"),
        ],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    wanted = "the config drive cannot be read" if broken else "no controller answers: 127.0.0.1:1"
    assert wanted in done.stderr
    left = set(Path("/proc/self/mounts").read_text().splitlines()) - set(before.splitlines())
    assert not [line for line in left if "sluice-config-drive" in line]
