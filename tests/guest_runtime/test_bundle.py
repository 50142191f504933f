# SPDX-License-Identifier: Apache-2.0
"""The real bundle, installed in a real guest: the channel comes by udev, `sluice` works."""

from __future__ import annotations

import struct
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from sluice.guest_runtime.channels import REGION_MAGIC
from sluice.hypervisor import channel_devices
from sluice.hypervisor.libvirt_host import libvirt_identity
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import DomainRequest

from .conftest import Guest, Rig, install_bundle

pytestmark = [pytest.mark.slow, pytest.mark.vm]

REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=64)
#: Some of each kind: ours, forwarding, not available, and what knows the session from aside.
STANDING_IN = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcupti.so.13",
    "libnvidia-ml.so.1",
)
RESOURCE = "/sys/bus/pci/devices/*/resource2"


@pytest.fixture(scope="module")
def guest(rig: Rig, bundle: Path) -> Guest:
    """A guest with the bundle installed and two users, one of them in the group."""
    guest = rig.define_guest("bundled", mem_mib=384, vcpus=2)
    guest.start()
    guest.wait_ready()
    install_bundle(guest, bundle)
    guest.check("useradd -m member && usermod -aG sluice member && useradd -m stranger")
    return guest


@pytest.fixture
def files(rig: Rig, tmp_path: Path) -> RegionFiles:
    return RegionFiles(libvirt_identity(rig.uri), run_folder=tmp_path)


def format_region(path: Path) -> None:
    """What the doorbell process does, as far as `sluice check` looks."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(struct.pack("<QIIQQII", REGION_MAGIC, 1, 4, size, size // 4, 1, 0))


def channel_ready(guest: Guest) -> str:
    """Group, mode and size of the channel's file, once udev has been there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        code, out, _ = guest.run(f"stat -c '%G %a %s' {RESOURCE}")
        if code == 0 and out.startswith("sluice"):
            return out.strip()
        time.sleep(0.1)
    raise AssertionError(f"udev has not given the channel to the group: {out}")


def test_the_archive_holds_one_folder_and_no_surprise(bundle: Path) -> None:
    with tarfile.open(bundle) as archive:
        members = {member.name: member for member in archive}
    assert all(name.startswith("sluice-guest/") for name in members)
    for name in (*STANDING_IN, "libsluice-audit.so"):
        assert members[f"sluice-guest/lib/{name}"].mode & 0o777 == 0o755
    assert "sluice-guest/bin/sluice-watch" in members
    assert members["sluice-guest/lib/libcudart_static.a"].mode & 0o777 == 0o644
    assert all((m.uid, m.gid, m.mtime) == (0, 0, 0) for m in members.values())


def test_the_loader_finds_the_libraries_without_sluice_run(guest: Guest) -> None:
    out = guest.check("ldconfig -p")
    assert "libcuda.so.1 (libc6,x86-64) => /opt/sluice/lib/libcuda.so.1" in out
    assert "libcudart.so.13 (libc6,x86-64) => /opt/sluice/lib/libcudart.so.13" in out


def test_programs_that_look_for_a_device_file_find_one(guest: Guest) -> None:
    """JAX does. With each start udev makes it again."""
    assert guest.check("readlink /dev/nvidiactl").strip() == "null"
    assert "ok    device file: /dev/nvidiactl" in guest.run("sluice doctor")[1]
    guest.check("rm /dev/nvidiactl && export SYSTEMD_IGNORE_CHROOT=1 && udevadm control --reload")
    guest.check(
        "SYSTEMD_IGNORE_CHROOT=1 udevadm trigger --settle --action=add --subsystem-match=mem"
    )
    assert guest.check("readlink /dev/nvidiactl").strip() == "null"


def test_the_libraries_load_in_the_guest(guest: Guest) -> None:
    load = "import ctypes; print(ctypes.CDLL('%s')._name)"
    for name in STANDING_IN:
        assert guest.check(f'python3 -c "{load % name}"').strip() == name
        run = f"""sluice run python3 -c "{load % ("/no/such/folder/" + name)}" """
        assert guest.check(run).strip().endswith(name)


def test_a_program_relinked_with_the_static_runtime_finds_the_driver(
    guest: Guest, bundle: Path, tmp_path: Path
) -> None:
    with tarfile.open(bundle) as archive:
        archive.extract("sluice-guest/lib/libcudart_static.a", tmp_path, filter="data")
    source = tmp_path / "count.c"
    source.write_text(
        "#include <stdio.h>\nint cudaRuntimeGetVersion(int*); int cudaGetDeviceCount(int*);\n"
        "int main(void) { int v = 0, n = -1; int a = cudaRuntimeGetVersion(&v);\n"
        'int b = cudaGetDeviceCount(&n); printf("%d %d %d\\n", a, v / 1000, b); return 0; }\n'
    )
    library = tmp_path / "sluice-guest/lib"
    link = [f"-L{library}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
    options = ["-static-libstdc++", "-static-libgcc"]
    command = ["g++", *options, "-x", "c", source, "-x", "none", *link, "-o", tmp_path / "count"]
    subprocess.run(command, check=True)
    guest.put(tmp_path / "count", "/root/count")
    no_device = 100  # it has the driver, and the driver has no channel; without one it would be 35
    assert guest.check("chmod +x /root/count && /root/count").split() == ["0", "13", str(no_device)]


def test_a_hot_plugged_channel_is_ready_by_itself(guest: Guest, files: RegionFiles) -> None:
    assert guest.run("sluice check")[0] == 1
    channel_devices.attach(guest.domain, REQUEST, files)
    try:
        assert channel_ready(guest) == f"sluice 660 {64 << 20}"
        code, out, _ = guest.run("sluice check")
        assert (code, "not formatted" in out) == (1, True)
        format_region(files.path(guest.uuid))
        code, out, _ = guest.run("sluice check")
        assert (code, out.splitlines()[-1]) == (0, "it would work"), out
        assert guest.run("su member -c 'sluice check'")[0] == 0
        code, out, _ = guest.run("su stranger -c 'sluice check'")
        assert code == 1
        assert "usermod -aG sluice" in out
    finally:
        channel_devices.detach(guest.domain, files)
    code, out, _ = guest.run("sluice check")
    assert (code, "sluice vm attach" in out) == (1, True)


def test_it_may_come_and_go_again_with_another_size(guest: Guest, files: RegionFiles) -> None:
    for mib in (32, 256, 64):
        request = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=mib)
        channel_devices.attach(guest.domain, request, files)
        try:
            assert channel_ready(guest) == f"sluice 660 {mib << 20}"
        finally:
            channel_devices.detach(guest.domain, files)


def test_installed_twice_it_keeps_the_settings_and_uninstalled_it_is_gone(guest: Guest) -> None:
    install = "/root/sluice-guest/install.sh --no-ldconfig"
    guest.check("touch /opt/sluice/python/old.py")
    guest.check(
        "echo '[client]' >/etc/sluice/client.conf; echo 'gmem=77' >>/etc/sluice/client.conf"
    )
    guest.check(install, timeout=120)
    assert "77" in guest.check("cat /etc/sluice/client.conf")
    assert guest.run("ls /opt/sluice/python/old.py /opt/sluice/.new")[1] == ""
    assert "SLUICE_GMEM" in guest.check("cat /etc/sluice/client.conf.dist")
    assert "sluice" not in guest.check("ldconfig -p")
    guest.check(install + " --uninstall", timeout=120)
    assert guest.run("ls /opt/sluice")[0] != 0
    assert guest.run("ls /etc/udev/rules.d/70-sluice.rules /usr/local/bin/sluice")[1] == ""
    refused = guest.run(install + " --uninstall")
    assert (refused[0], "nothing of Sluice" in refused[2]) == (1, True)
