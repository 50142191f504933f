# SPDX-License-Identifier: Apache-2.0
"""A GPU host's or controller's folders, certificates, users, guests: what is broken is named."""

from __future__ import annotations

import os
import resource
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pool_certificates import PoolCa

from sluice.config.controller import ControllerConfig, ControllerSection, StoreSection
from sluice.config.controller import TlsSection as ControllerTls
from sluice.config.server import ServerConfig, ServerSection
from sluice.config.server_connections import ControllerSection as ServerController
from sluice.config.server_connections import TlsSection
from sluice.config.server_gpus import ThrottleSection
from sluice.controller.store.sqlite import SqliteStore
from sluice.guest_runtime.findings import Finding, Verdict
from sluice.resources.vgpu_request import Sharing
from sluice.support import controller_host_check, server_check
from sluice.support.certificate_check import check_ca, check_pair, check_secret
from sluice.support.disk_check import Space, check_folder, space_of
from sluice.support.parts import log_folder_of
from sluice.support.port_check import check_taken, holders
from sluice.support.virtualisation_check import (
    NoBinding,
    check_guests,
    file_system_of,
    libvirt_version,
    qemu_devices,
)
from tests.support.findings_of import bad, noted, only_bad

SECRET = "sluice_" + "S3cr" * 10 + "xyz"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PoolCa:
    return PoolCa(tmp_path_factory.mktemp("ca"))


def section(folder: Path, **words: object) -> ServerSection:
    values = {"run_dir": folder / "run", "state_dir": folder / "state", "driver": "none", **words}
    return ServerSection.model_validate(values)


# folders


def test_a_folder_with_room_is_good_and_one_that_will_be_made_too(tmp_path: Path) -> None:
    assert check_folder("x", tmp_path, Space(9000, 10**6, False)).verdict is Verdict.OK
    made = check_folder("x", tmp_path / "a" / "b", Space(9000, -1, False))
    assert made.verdict is Verdict.OK
    assert "made when" in made.text
    assert space_of(tmp_path).free_mib > 0


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Space(100, 10**6, False), ("100 MiB left",)),
        (Space(9000, 10, False), ("10 inodes",)),
        (Space(9000, 10**6, True), ("read-only", "dmesg")),
    ],
)
def test_a_folder_without_room_is_named(
    space: Space, words: tuple[str, ...], tmp_path: Path
) -> None:
    only_bad([check_folder("[log] log_dir", tmp_path, space)], "[log] log_dir", *words)


def test_a_file_in_a_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    only_bad([check_folder("x", tmp_path / "state")], "is no folder")
    noted([check_folder("x", tmp_path, Space(1000, -1, False))], "1000 MiB left")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_a_full_disk_and_a_read_only_one_are_named_for_real(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"cannot mount here: {made.stderr.decode()}")
    try:
        only_bad([check_folder("x", mount)], "MiB left")
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        only_bad([check_folder("x", mount)], "read-only")
    finally:
        subprocess.run(["umount", mount], check=True)


# certificates


def test_a_good_pair_is_good_and_says_until_when(ca: PoolCa) -> None:
    pair = ca.issue("gpu-1", "10.0.0.1")
    [found] = check_pair("tls", pair.cert, pair.key, names=["gpu-1"], ca_file=ca.file)
    assert found.verdict is Verdict.OK
    assert "29 more days" in found.text
    assert check_ca("ca", ca.file).verdict is Verdict.OK


def test_each_fault_of_a_certificate_is_named(ca: PoolCa, tmp_path: Path) -> None:
    good, other = ca.issue("gpu-2"), ca.issue("gpu-3")
    old = ca.issue_expired("gpu-4")

    def pair(cert: Path, key: Path, *names: str, ca_file: Path | None = None) -> list[Finding]:
        return check_pair("tls", cert, key, names=names, ca_file=ca_file)

    only_bad(pair(old.cert, old.key), "expired", "sluice ca issue")
    only_bad(pair(good.cert, other.key), "not the key")
    only_bad(pair(good.cert, good.key, "gpu-9"), "gpu-2", "sluice ca issue gpu-9")
    only_bad(pair(tmp_path / "none", good.key), "No such file")
    only_bad(pair(good.key, good.key), "no certificate")
    assert len(bad(pair(good.cert, tmp_path / "none"))) == 2
    noted(pair(good.cert, good.key, ca_file=PoolCa(tmp_path / "second").file), "not signed by")
    controllers = check_pair("tls", old.cert, old.key, kind="controller")
    only_bad(controllers, "sluice ca issue --for controller gpu-4")
    (ca.folder.parent / "init.conf").touch()
    only_bad(pair(old.cert, old.key), "sluice init")
    (ca.folder.parent / "init.conf").unlink()
    soon = ca.issue("gpu-5", days=4)
    noted(pair(soon.cert, soon.key), "days")
    good.key.chmod(0o644)
    only_bad(pair(good.cert, good.key), "0644", "chmod 600")


def test_a_ca_that_is_none_is_named(ca: PoolCa, tmp_path: Path) -> None:
    only_bad([check_ca("[tls] ca_file", tmp_path / "none")], "[tls] ca_file")
    (tmp_path / "text").write_text("hello")
    only_bad([check_ca("x", tmp_path / "text")], "PEM")
    only_bad([check_ca("x", ca.issue_expired("ca2").cert)], "expired")


def test_a_secrets_file_is_judged_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    only_bad([check_secret("x", path)], "No such file")
    path.write_text(f"{SECRET}\nmore\n")
    path.chmod(0o600)
    found = only_bad([check_secret("x", path)], "2 lines")
    assert SECRET not in str(found)
    path.write_text(SECRET)
    assert check_secret("x", path).verdict is Verdict.OK
    path.chmod(0o604)
    assert SECRET not in str(only_bad([check_secret("x", path)], "0604"))


# configuration, users, limits


def test_a_configuration_that_no_service_takes_is_named_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_text("[server]\nlisten_port = 99999\nbind_adr = x\n")
    config, found = server_check.read_config(path)
    assert config is None
    assert len(bad(found)) == 2
    path.write_text("[controller]\nrest_port = x\n")
    other, found = controller_host_check.read_config(path)
    assert other is None
    only_bad(found, "rest_port")
    only_bad(server_check.read_config(tmp_path / "none")[1], "cannot be read")


@pytest.mark.skipif(os.geteuid() != 0, reason="users are judged as root")
def test_users_of_workers_that_are_none_are_named(tmp_path: Path) -> None:
    found = server_check.check_users(section(tmp_path, worker_user="no-such-user"))
    only_bad(found, "useradd", "no-such-user")


def test_a_range_with_an_account_in_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    alice = pwd.struct_passwd(("alice", "x", 2_100_000_007, 1000, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [alice])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = server_check.check_users(section(tmp_path, worker_user="root"))
    only_bad(found, "alice", "2100000000")


def test_cgroups_that_cannot_limit_are_named(tmp_path: Path) -> None:
    only_bad(server_check.check_cgroups(tmp_path), "mount -t cgroup2")
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "cgroup.controllers").write_text("cpu io\n")
    only_bad(server_check.check_cgroups(tmp_path), "no memory and no pids")
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    assert not bad(server_check.check_cgroups(tmp_path))
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert "systemd" in server_check.check_cgroups(tmp_path)[0].text


def test_too_few_open_files_are_named() -> None:
    only_bad(server_check.check_files(1024), "204 sessions", "LimitNOFILE")
    assert not bad(server_check.check_files(resource.RLIM_INFINITY))


def test_sessions_at_once_without_mps_are_named(tmp_path: Path) -> None:
    config = ServerConfig(
        server=section(tmp_path), throttle=ThrottleSection(sharing=Sharing.CONCURRENT)
    )
    only_bad(server_check.check_gpus(config), "sharing = concurrent", "gives no GPU")


def test_nvidias_driver_without_module_or_devices_is_named(tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.touch()
    config = ServerConfig(
        server=section(tmp_path, driver=str(driver)),
        throttle=ThrottleSection(allow_concurrent=False),
    )
    only_bad(server_check.check_gpus(config, tmp_path), "modprobe nvidia")
    module = tmp_path / "sys/module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text("580.65.06\n")
    devices = tmp_path / "dev"
    devices.mkdir()
    (devices / "nvidiactl").touch()
    only_bad(server_check.check_gpus(config, tmp_path), "nvidia-uvm", "nvidia-modprobe")
    (devices / "nvidia-uvm").touch()
    (devices / "nvidia0").touch(0o600)
    only_bad(server_check.check_gpus(config, tmp_path), "nvidia0", "NVreg")
    (devices / "nvidia0").chmod(0o666)
    assert not bad(server_check.check_gpus(config, tmp_path))


# the server's process and ports


def test_no_server_and_an_address_of_another_host_are_named(tmp_path: Path) -> None:
    config = ServerConfig(server=section(tmp_path, bind_addr="192.0.2.1"))
    found = bad(server_check.check_running(config))
    assert [each.subject for each in found] == ["sluice-server", "data port"]
    wrong = ServerConfig(server=section(tmp_path, bind_net="no-such-net"))
    assert "bind_net" in bad(server_check.check_running(wrong))[1].text


def test_what_the_servers_settings_name_is_judged(ca: PoolCa, tmp_path: Path) -> None:
    pair = ca.issue("gpu-7")
    token = tmp_path / "node.token"
    token.write_text(SECRET)
    token.chmod(0o644)
    config = ServerConfig(
        server=section(tmp_path, node_name="gpu-8"),
        tls=TlsSection(ca_file=ca.file, cert_file=pair.cert, key_file=pair.key),
        controller=ServerController(token_file=token),
    )
    found = bad(server_check.check_tls(config))
    assert [each.subject for each in found] == ["[tls] cert_file", "[controller] token_file"]
    assert SECRET not in str(found)


def test_a_port_that_another_program_has_is_named_with_its_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = bad(check_taken("REST", port, "[controller] rest_port"))
        assert len(found) == 1
        assert f"process {os.getpid()}" in found[0].text
        assert "[controller] rest_port" in found[0].remedy
        config = ServerConfig(server=section(tmp_path, listen_port=port))
        assert "data port" in [each.subject for each in bad(server_check.check_running(config))]
        whole = controller(tmp_path, rest_port=port, grpc_port=0)
        [said] = bad(controller_host_check.check_listeners(whole, "0"))
        assert "is taken by" in said.text
    assert check_taken("REST", port, "x") == [], "nobody listens there any more"
    command = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    command += "print(s.getsockname()[1], flush=True); time.sleep(600)"
    words = [sys.executable, "-c", command, "sluice.controller"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout
        port = int(ours.stdout.readline())
        assert holders(port) == [ours.pid]
        assert check_taken("REST", port, "x") == [], "a controller's own"
        ours.kill()


# guests


def guests(tmp_path: Path, **given: object) -> list[Finding]:
    words: dict[str, object] = {
        "connect": lambda _: "libvirt 9.0.0",
        "devices": lambda: 'name "ivshmem-plain"\nname "ivshmem-doorbell"\n',
        **given,
    }
    return check_guests(section(tmp_path, region_dir="/dev/shm"), tmp_path, **words)  # type: ignore[arg-type]


def test_a_host_whose_guests_get_channels_is_good(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("kvm", "vhost-vsock"):
        (tmp_path / "dev" / name).touch()
    assert not bad(guests(tmp_path))


def test_libvirt_that_does_not_answer_is_named_for_real(tmp_path: Path) -> None:
    uri = f"qemu+unix:///system?socket={tmp_path}/none"
    config = section(tmp_path, region_dir="/dev/shm", libvirt_uri=uri)
    found = check_guests(config, tmp_path, libvirt_version, lambda: '"ivshmem-plain" "ivshmem-')
    assert any("libvirt" in each.subject and "enable_kvm" in each.remedy for each in bad(found))


def test_a_qemu_without_ivshmem_is_named(tmp_path: Path) -> None:
    only_bad(guests(tmp_path, devices=lambda: 'name "ivshmem-plain"'), "ivshmem-doorbell", "vsock")
    only_bad(guests(tmp_path, devices=lambda: None), "install qemu")


def test_a_host_that_was_never_to_have_guests_is_no_problem(tmp_path: Path) -> None:
    def away(_: str) -> str:
        raise NoBinding("no binding")

    noted(guests(tmp_path, connect=away, devices=lambda: None), "no guests", "enable_kvm = false")
    assert not bad(guests(tmp_path, connect=away, devices=lambda: None))
    (tmp_path / "run/libvirt").mkdir(parents=True)
    found = bad(guests(tmp_path, connect=away, devices=lambda: None))
    assert [each.subject for each in found] == ["libvirt", "QEMU"]
    assert "python3-libvirt" in found[0].remedy


def test_this_machines_qemu_is_asked_and_has_ivshmem() -> None:
    devices = qemu_devices()
    if devices is None:
        pytest.skip("no QEMU here")
    assert '"ivshmem-plain"' in devices


def test_no_kvm_and_no_vsock_are_noted(tmp_path: Path) -> None:
    noted(guests(tmp_path), "modprobe kvm")
    noted(guests(tmp_path), "modprobe vhost_vsock")


def test_regions_on_a_disk_are_named(tmp_path: Path) -> None:
    mounts = "/dev/sda1 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\ntmpfs /with\\040blank tmpfs 0 0"
    assert file_system_of(Path("/dev/shm/x"), mounts) == "tmpfs"
    assert file_system_of(Path("/dev/shmx"), mounts) == "ext4"
    assert file_system_of(Path("/with blank"), mounts) == "tmpfs"
    if file_system_of(tmp_path) == "tmpfs":
        pytest.skip("tests' folders are on a tmpfs here")
    config = section(tmp_path, region_dir=tmp_path)
    found = check_guests(config, tmp_path, lambda _: "", lambda: "ivshmem")
    assert any("region_dir" in each.text for each in bad(found))


# the controller's host


def controller(folder: Path, **words: object) -> ControllerConfig:
    values = {"store": folder / "controller.db", **words}
    return ControllerConfig(controller=ControllerSection.model_validate(values))


async def test_a_sound_store_is_good_and_a_damaged_one_named(tmp_path: Path) -> None:
    config = controller(tmp_path)
    found = controller_host_check.check_store(config)
    assert not [each for each in bad(found) if each.subject == "store"]
    noted(found, "no ", "makes it")
    store = SqliteStore(tmp_path / "controller.db")
    await store.close()
    assert any("sound" in each.text for each in controller_host_check.check_store(config))
    path = tmp_path / "controller.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    data = bytearray(path.read_bytes())
    data[4096 : 4096 * 4] = b"\xa5" * (4096 * 3)
    path.write_bytes(data)
    wrong = [e for e in bad(controller_host_check.check_store(config)) if e.subject == "store"]
    assert len(wrong) == 1
    assert "restore" in wrong[0].remedy


def test_an_etcd_that_does_not_answer_is_named(tmp_path: Path) -> None:
    config = ControllerConfig(
        controller=ControllerSection(store=tmp_path / "x"),
        store=StoreSection(kind="etcd", endpoints=["127.0.0.1:1"]),
    )
    found = [e for e in bad(controller_host_check.check_store(config)) if e.subject == "etcd"]
    assert len(found) == 1


def test_a_service_logs_where_its_unit_has_it_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.support.parts.LOG_DIR", str(tmp_path))
    assert log_folder_of("controller", tmp_path) == tmp_path
    (tmp_path / "controller").symlink_to(tmp_path / "private/of/root")
    assert log_folder_of("controller", tmp_path) == tmp_path / "controller"
    assert log_folder_of("controller", tmp_path / "mine") == tmp_path / "mine"


def test_a_controller_open_to_the_network_without_tls_is_noted(ca: PoolCa, tmp_path: Path) -> None:
    noted(controller_host_check.check_tls(controller(tmp_path, bind_addr="0.0.0.0")), "sluice ca")
    assert not bad(controller_host_check.check_tls(controller(tmp_path)))
    pair = ca.issue("ctl", kind="controller")
    config = ControllerConfig(
        controller=ControllerSection(advertise_addr="ctl.example"),
        tls=ControllerTls(cert_file=pair.cert, key_file=pair.key),
    )
    only_bad(controller_host_check.check_tls(config), "ctl.example")


def test_a_controller_that_does_not_run_is_named(tmp_path: Path) -> None:
    config = controller(tmp_path, rest_port=1, grpc_port=2)
    found = bad(controller_host_check.check_listeners(config, "0.2.0"))
    assert len(found) == 2
    assert all("sluice-controller" in each.remedy for each in found)
