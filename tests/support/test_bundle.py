# SPDX-License-Identifier: Apache-2.0
"""A support bundle has what helps, says what it has not, and no secret that was planted."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane
from pool_certificates import PoolCa

from sluice.guest_runtime.bundle_file import BundleFile, read_end
from sluice.guest_runtime.secret_removal import SecretRemoval
from sluice.support.bundle import secret_files
from tests.support.commands import run


def unpacked(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            assert member.isfile()
            assert not member.name.startswith(("/", ".."))
            file = archive.extractfile(member)
            assert file
            found[member.name.partition("/")[2]] = file.read()
    manifest = json.loads(found.pop("manifest.json"))
    return found, manifest


class Planted:
    """Secrets of this test, each in another place and shape."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def new(self, prefix: str = "") -> str:
        self.values.append(prefix + secrets.token_urlsafe(32))
        return self.values[-1]

    def found_in(self, files: dict[str, bytes], manifest: dict[str, Any]) -> list[str]:
        everything = {**files, "manifest.json": json.dumps(manifest).encode()}
        return [
            name
            for name, data in everything.items()
            for value in self.values
            if value.encode() in data
        ]


@pytest.mark.control_plane(guarded=True)
def test_no_planted_secret_is_in_the_bundle_of_a_host(plane: ControlPlane, tmp_path: Path) -> None:
    planted = Planted()
    admin = plane.first_token()
    planted.values += [admin, (plane.folder / "node.token").read_text().strip()]
    key = PoolCa(plane.folder / "pki").issue("node-a").key
    key_lines = [line for line in key.read_text().splitlines() if not line.startswith("-----")]
    planted.values += key_lines
    home = tmp_path / "home"
    (home / ".sluice/log").mkdir(parents=True)
    (home / ".sluice/token").write_text(planted.new("sluice_") + "\n")
    own = planted.values[-1]
    (home / ".sluice/client.conf").write_text(
        f"; {planted.new()}\n[client]\nvgpu_count = 2\ntoekn = {planted.new()}\n"
    )
    (home / ".sluice/log/run.log").write_text(f"sluice: it said {own}\nsluice: useful line\n")
    unknown = planted.new("sluice_")
    with (plane.folder / "log" / "server.log").open("a") as log:
        log.write(f"password={planted.new()} and Bearer {planted.new()}\n")
        log.write(f"a key that went astray: {key_lines[1]}\n{key.read_text()}")
        log.write(f"{unknown} of somebody else\n")
    sessions = plane.folder / "log" / "session"
    sessions.mkdir(exist_ok=True)
    shadow = tmp_path / "shadow"
    shadow.write_text(planted.new())
    (sessions / "aa.log").symlink_to(shadow)
    os.mkfifo(sessions / "bb.log")
    (sessions / "cc.log").write_text(f"OPENAI_API_KEY={planted.new()}\nthe worker ended\n")
    (sessions / "dd\n..\x1b[2J.log").write_text("named by somebody who means harm\n")
    with (plane.folder / "server.conf").open("a") as conf:
        conf.write(f"[vcenter]\npassword = {planted.new()}\n# {planted.new()}\n")
    webhook = planted.new()
    with (plane.folder / "controller.conf").open("a") as conf:
        conf.write(f"[alerts]\nwebhook = https://chat.example/{webhook}\n")
    with (plane.folder / "log" / "controller.log").open("a") as log:
        log.write(f"it did not take it at chat.example: POST /{webhook}\n")
        log.write(f"etcd at https://root:{planted.new()}/{planted.new()}@10.0.0.1:2379 is away\n")
    target = tmp_path / "out.tar.gz"
    done = run(
        "support-bundle", "-o", str(target), "--controller", f"127.0.0.1:{plane.rest_port}",
        "--server-config", str(plane.folder / "server.conf"),
        "--controller-config", str(plane.folder / "controller.conf"),
        SLUICE_TOKEN=admin, HOME=str(home), OS_PASSWORD=planted.new(),
        NCCL_DEBUG="INFO", SLUICE_VSPHERE_PASSWORD=planted.new(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files, manifest = unpacked(target)
    assert not planted.found_in(files, manifest)
    assert not any(value in done.stdout + done.stderr for value in planted.values)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600

    # and what helps is there
    assert b"useful line" in files["logs/client/run.log"]
    assert b"the worker ended" in files["logs/session/cc.log"]
    assert b"listen_port" in files["settings/server.conf"]
    assert b"vgpu_count = 2" in files["settings/client-user.conf"]
    assert b"NCCL_DEBUG=INFO" in files["settings/environment.txt"]
    assert json.loads(files["state/nodes.json"])["nodes"][0]["name"] == plane.node
    assert b"sluice_pool_memory_bytes" in files["state/controller-metrics.txt"]
    assert json.loads(files["doctor.json"])["findings"]
    assert "kernel" in json.loads(files["versions.json"])
    assert all("\x1b" not in name and ".." not in name.split("/") for name in files)

    # the manifest is true and says what is not there
    listed = {each["name"]: each for each in manifest["files"]}
    assert set(listed) == set(files)
    assert all(
        listed[name]["sha256"] == hashlib.sha256(data).hexdigest() for name, data in files.items()
    )
    why = {each["what"]: each["why"] for each in manifest["left_out"]}
    assert "link" in why[str(sessions / "aa.log")]
    assert "no plain file" in why[str(sessions / "bb.log")]
    assert "the controller's store" in why
    assert "tokens, passwords and private keys" in why
    assert manifest["secrets_taken_out"] > 5


def test_a_host_whose_services_are_away_still_gives_one(tmp_path: Path) -> None:
    server, target = tmp_path / "server.conf", tmp_path / "out.tar.gz"
    server.write_text("[server]\nwrong key\n")
    words = ("support-bundle", "-o", str(target), "--controller", "127.0.0.1:1",
             "--server-config", str(server))  # fmt: skip
    done = run(*words, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    files, manifest = unpacked(target)
    assert b"server.conf" in files["doctor.txt"]
    assert any("does not answer" in each["why"] for each in manifest["left_out"])
    again = run(*words, HOME=str(tmp_path))
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_guests_python_gives_one_too(tmp_path: Path) -> None:
    checkout = Path(__file__).resolve().parents[2]
    (tmp_path / "sluice_guest").symlink_to(checkout / "guest_runtime")
    done = run("support-bundle", "-o", str(tmp_path), module="sluice_guest",
               PYTHONPATH=str(tmp_path), HOME=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    [target] = tmp_path.glob("sluice-support-*.tar.gz")
    files, _ = unpacked(target)
    assert {"doctor.json", "doctor.txt", "versions.json"} <= set(files)
    nowhere = run("support-bundle", "-o", "/no/such/folder/x.tar.gz", module="sluice_guest",
                  PYTHONPATH=str(tmp_path), HOME=str(tmp_path))  # fmt: skip
    assert nowhere.returncode == 1
    assert "--output" in nowhere.stderr


def test_files_of_secrets_are_found_by_setting_and_by_mode(tmp_path: Path) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text("[controller]\ntoken_file = /srv/node.token\n[tls]\nkey_file = node.key\n")
    (tmp_path / "stray.secret").touch(0o600)
    (tmp_path / "ca.crt").touch(0o600)
    found = secret_files([conf, tmp_path / "none" / "x.conf"])
    assert {each.name for each in found} == {"node.token", "node.key", "stray.secret"}


def test_the_whole_has_a_bound(tmp_path: Path) -> None:
    bundle = BundleFile(SecretRemoval(), most_bytes=1000)
    bundle.add_text("a", "x " * 400, "here")
    bundle.add_text("b", "y " * 400, "there")
    assert bundle.names == ["a"]
    assert bundle.manifest()["left_out"][0]["what"] == "there"


def test_a_long_log_is_cut_at_a_line_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"token={'s' * 40}{i:04d}\n" for i in range(100)))
    text, size = read_end(log, 200)
    assert size == log.stat().st_size
    assert text.startswith("token=")
    assert len(text) <= 200
    bundle = BundleFile(SecretRemoval())
    assert bundle.add_file("l", log, 200)
    manifest = bundle.manifest()
    assert "last 200 of" in manifest["files"][0]["note"]
    assert "ssss" not in json.dumps(manifest)


def test_a_program_that_hangs_or_is_not_there_is_left_out() -> None:
    bundle = BundleFile(SecretRemoval())
    bundle.add_command("x", ("no-such-program-here",))
    bundle.add_command("y", ("sleep", "600"), seconds=0.1)
    bundle.add_command("z", ("sh", "-c", "echo token=abcdefg; exit 3"))
    assert bundle.names == ["z"]
    assert [each["why"] for each in bundle.manifest()["left_out"]] == [
        "there is no such program here", "it did not end within 0 s"]  # fmt: skip
