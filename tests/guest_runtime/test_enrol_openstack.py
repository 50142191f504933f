# SPDX-License-Identifier: Apache-2.0
"""An instance of OpenStack enrols by itself, from real files and a real web server, with a real
controller; what is hostile or stale ends in a sentence that names it."""

from __future__ import annotations

import http.server
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from sluice.guest_runtime.configuration import read_file
from sluice.guest_runtime.enrol import enrol

pytestmark = pytest.mark.control_plane(shared=True, guarded=True, requests_per_second=0)

CHECKOUT = Path(__file__).resolve().parents[2]
VM = "5026a1b2-0000-4000-8000-00000000000b"
PATH = "/openstack/latest/vendor_data2.json"
SECRET = "sluice_enrol_" + "a" * 43


class Metadata:
    """A metadata service on a port of its own: a status, headers and a body."""

    def __init__(self) -> None:
        self.status, self.body = 404, b""
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []
        self.slow_seconds = 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    if outer.slow_seconds:
                        for byte in range(100):
                            self.wfile.write(b"[" if not byte else b" ")
                            time.sleep(outer.slow_seconds)
                    self.wfile.write(outer.body)
                except OSError:
                    pass  # it was hung up on, which is what is wanted

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def says(self, document: Any, status: int = 200) -> None:
        self.body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.status = status  # last: who asks in between gets no new status with an old body

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Instance:
    """The files of an instance: firmware tables, config drive, cloud-init's copy, /etc/sluice."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        self.system, self.dir = folder / "system", folder / "etc"
        self.metadata = metadata
        self.firmware(VM)

    def firmware(self, uuid: str, product: str = "OpenStack Nova") -> None:
        tables = self.system / "sys/class/dmi/id"
        tables.mkdir(parents=True, exist_ok=True)
        (tables / "product_name").write_text(f"{product}\n")
        (tables / "product_uuid").write_text(f"{uuid}\n")

    def config_drive(self, document: Any) -> None:
        path = self.system / "dev/disk/by-label/config-2" / PATH[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())

    def cloud_init(self, text: str) -> None:
        path = self.system / "run/cloud-init/instance-data-sensitive.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def words(self) -> list[str]:
        places = ["--dir", self.dir, "--system", self.system, "--metadata", self.metadata.url]
        return [str(word) for word in places]

    def enrol(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sluice.guest_runtime", "enrol"]
        return subprocess.run(
            [*command, *self.words(), *words],
            env={
                "PATH": "/nonexistent",
                "PYTHONPATH": str(CHECKOUT / "python"),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def token(self) -> str:
        return (self.dir / "token").read_text().strip()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    yield service
    service.close()


@pytest.fixture
def instance(tmp_path: Path, metadata: Metadata) -> Instance:
    return Instance(tmp_path, metadata)


@pytest.fixture(scope="module")
def reservation(shared_plane: ControlPlane) -> str:
    body = {"owner_kind": "vm", "owner": VM, "project": "amber", "memory_mib": 64}
    answer = shared_plane.rest.post("/reservations", json={**body, "compute_percent": 10})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def told(plane: ControlPlane, reservation: str) -> dict[str, Any]:
    """What the controller's /v1/vendordata answers, with a secret of its own."""
    made = plane.rest.post("/enrolments", json={"reservation": reservation, "vm": VM})
    assert made.status_code == 201, made.text
    return {
        "sluice": {
            "reservation": reservation,
            "controller": f"127.0.0.1:{plane.rest_port}",
            "enrolment": made.json()["secret"],
            "expires": made.json()["expires"],
        },
        "another": {"vendor": 1},
    }


def assert_enrolled(plane: ControlPlane, instance: Instance) -> None:
    """Its token is the instance's, closed to others, and named in client.conf."""
    token_file = instance.dir / "token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    who = plane.rest_as(instance.token()).get("/whoami").json()
    assert (who["roles"], who["project"]) == (["tenant"], "amber")
    settings = {k: v for k, (v, _) in read_file(instance.dir / "client.conf").items()}
    assert settings == {
        "controller.controller_addr": f"127.0.0.1:{plane.rest_port}",
        "controller.token_file": str(token_file),
    }


@pytest.mark.parametrize("place", ["metadata", "config drive", "cloud-init"])
def test_an_instance_enrols_from_each_place(
    plane: ControlPlane, reservation: str, instance: Instance, place: str
) -> None:
    document = told(plane, reservation)
    if place == "metadata":
        instance.metadata.says(document)
    elif place == "config drive":
        instance.firmware(VM, "Standard PC (Q35 + ICH9, 2009)")  # its label is enough
        instance.config_drive(document)
    else:
        instance.cloud_init(json.dumps({"ds": {"vendordata2": document}, "v1": {}}))
    done = instance.enrol()
    assert done.returncode == 0, done.stderr
    assert_enrolled(plane, instance)
    assert document["sluice"]["enrolment"] not in done.stdout + done.stderr
    kept = "".join(path.read_text() for path in instance.dir.iterdir())
    assert document["sluice"]["enrolment"] not in kept


def test_the_second_boot_does_nothing_again(
    plane: ControlPlane, reservation: str, instance: Instance
) -> None:
    instance.config_drive(told(plane, reservation))
    assert instance.enrol().returncode == 0
    before = {path: (path.stat().st_ino, path.read_text()) for path in instance.dir.iterdir()}
    instance.metadata.asked.clear()
    instance.config_drive(b"whatever stands there now")
    again = instance.enrol()
    assert (again.returncode, again.stdout.split(";")[0]) == (0, "enrolled already"), again.stderr
    assert instance.metadata.asked == []
    assert before == {p: (p.stat().st_ino, p.read_text()) for p in instance.dir.iterdir()}


def test_an_image_of_an_enrolled_instance_gets_a_token_of_its_own(
    plane: ControlPlane, reservation: str, instance: Instance
) -> None:
    instance.metadata.says(told(plane, reservation))
    assert instance.enrol().returncode == 0
    first = instance.token()
    instance.firmware("00000000-1111-4222-8333-444444444444")
    instance.metadata.says(told(plane, reservation))
    done = instance.enrol()
    assert done.returncode == 0, done.stderr
    assert "another instance's" in done.stderr
    assert instance.token() != first
    # and where there is nothing for it, it keeps nothing of the other's
    instance.firmware(VM)
    instance.metadata.says({})
    assert instance.enrol().returncode == 3
    assert not (instance.dir / "token").exists()


def test_a_stale_secret_is_passed_over_for_a_fresh_one(
    plane: ControlPlane, reservation: str, instance: Instance
) -> None:
    stale = told(plane, reservation)
    instance.config_drive(stale)
    assert instance.enrol().returncode == 0
    (instance.dir / "token").unlink()
    refused = instance.enrol()
    assert refused.returncode == 1
    assert "not good any more" in refused.stderr
    assert "config drive" in refused.stderr
    assert "openstack server rebuild" in refused.stderr
    assert not (instance.dir / "token").exists()
    instance.metadata.says(told(plane, reservation))
    done = instance.enrol()
    assert done.returncode == 0, done.stderr
    assert_enrolled(plane, instance)


def test_a_machine_that_is_no_instance_asks_nobody(instance: Instance) -> None:
    instance.firmware(VM, "Standard PC (Q35 + ICH9, 2009)")
    instance.dir.mkdir()
    (instance.dir / "token").write_text("an administrator's")
    done = instance.enrol("--wait", "60")
    assert done.returncode == 3
    assert "nobody tells this machine anything" in done.stderr
    assert instance.metadata.asked == []
    assert (instance.dir / "token").read_text() == "an administrator's"
    assert instance.enrol("--source", "openstack").returncode == 0  # it has a token, so what


def test_an_instance_that_is_told_nothing_says_so(instance: Instance) -> None:
    for answer in ({}, {"other": 1}, {"sluice": None}):
        instance.metadata.says(answer)
        done = instance.enrol("--wait", "30")
        assert done.returncode == 3, done.stderr
        assert "vendor_data2.json has no sluice" in done.stderr


def good(**changed: Any) -> dict[str, Any]:
    values = {
        "reservation": "r1",
        "controller": "127.0.0.1:1",
        "enrolment": SECRET,
        "expires": "2040-01-01T00:00:00Z",
    }
    return {"sluice": {**values, **changed}}


HOSTILE = [
    (b"x" * ((1 << 20) + 1), "longer than 1024 KiB"),
    (b"", "is no JSON"),
    (b"<html>", "is no JSON"),
    (b"[" * 100_000, "is no JSON"),
    (b"\xff\xfe{}", "is no JSON"),
    (b"[]", "is no JSON object"),
    (b'"sluice"', "is no JSON object"),
    ({"sluice": []}, "sluice is no JSON object"),
    ({"sluice": "x"}, "sluice is no JSON object"),
    (good(reservation=7), "sluice.reservation"),
    (good(reservation="r" * 121), "sluice.reservation"),
    (good(controller=None), "sluice.controller"),
    (good(controller="host; rm -rf /"), "sluice.controller"),
    (good(controller="file:///etc/passwd"), "sluice.controller"),
    (good(controller="a:1\n[client]"), "sluice.controller"),
    (good(controller=["a:1"]), "sluice.controller"),
    (good(enrolment=SECRET + "\nX: y"), "sluice.enrolment"),
    (good(enrolment={"a": 1}), "sluice.enrolment"),
    (good(enrolment=None), "sluice.enrolment"),
    (good(expires="soon"), "sluice.expires"),
    (good(expires=[1]), "sluice.expires"),
    (good(expires="2040-01-01T00:00:00"), "sluice.expires"),
    (good(), "no controller answers"),
]


@pytest.mark.parametrize(("document", "said"), HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
@pytest.mark.parametrize("place", ["metadata", "config drive"])
def test_what_openstack_says_is_checked(
    instance: Instance, place: str, document: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if place == "metadata":
        instance.metadata.says(document)
    else:
        instance.config_drive(document)
    assert enrol(instance.words()) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert SECRET not in out + err
    assert len(err) < 1000
    assert not list(instance.dir.glob("*"))


def test_a_redirect_is_not_followed(instance: Instance, plane: ControlPlane) -> None:
    target = Metadata()
    try:
        target.says(good())
        instance.metadata.status = 302
        instance.metadata.headers = {"Location": target.url + PATH}
        done = instance.enrol()
        assert done.returncode == 1
        assert "redirects to another place" in done.stderr
        assert target.asked == []
    finally:
        target.close()


def test_a_service_that_drips_is_left(instance: Instance) -> None:
    instance.metadata.says({})
    instance.metadata.slow_seconds = 0.2
    done = instance.enrol()
    assert done.returncode == 1
    assert "takes more than 5 s" in done.stderr


def test_no_proxy_is_asked(instance: Instance, plane: ControlPlane, reservation: str) -> None:
    instance.metadata.says(told(plane, reservation))
    done = instance.enrol(http_proxy="http://127.0.0.1:1", HTTP_PROXY="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("copy", ["", "{", "[]", '{"ds": 5}', '{"ds": {"vendordata2": "x"}}'])
def test_a_broken_copy_of_cloud_init_is_passed_over(
    instance: Instance, plane: ControlPlane, reservation: str, copy: str
) -> None:
    instance.cloud_init(copy)
    instance.metadata.says(told(plane, reservation))
    done = instance.enrol()
    assert done.returncode == 0, done.stderr


def test_it_waits_for_a_reservation_and_for_the_service(
    instance: Instance, plane: ControlPlane, reservation: str
) -> None:
    instance.metadata.says(good(reservation="", enrolment=""))
    done = instance.enrol()
    assert done.returncode == 1
    assert "sluice.reservation is empty" in done.stderr
    instance.metadata.says(b"busy", 503)
    later = threading.Thread(target=lambda: _later(instance, plane, reservation))
    later.start()
    done = instance.enrol("--wait", "60")
    later.join()
    assert done.returncode == 0, done.stderr
    assert_enrolled(plane, instance)


def _later(instance: Instance, plane: ControlPlane, reservation: str) -> None:
    wait_for(lambda: len(instance.metadata.asked) >= 3, message="it to ask again")
    instance.metadata.says(told(plane, reservation))


def test_a_secret_of_an_operator_works_anywhere(
    plane: ControlPlane, reservation: str, instance: Instance, tmp_path: Path
) -> None:
    instance.firmware(VM, "bare")
    secret = tmp_path / "secret"
    secret.write_text(told(plane, reservation)["sluice"]["enrolment"] + "\n")
    words = ("--controller", f"127.0.0.1:{plane.rest_port}", "--secret-file", str(secret))
    done = instance.enrol(*words)
    assert done.returncode == 0, done.stderr
    assert_enrolled(plane, instance)
    before = instance.token()
    again = instance.enrol(*words)
    assert (again.returncode, instance.token()) == (0, before), again.stderr
    assert "enrolled already" in again.stdout
    stale = instance.enrol(*words, "--again")
    assert stale.returncode == 1
    assert "not good any more" in stale.stderr
    assert "is used" in stale.stderr
    assert instance.token() == before
    secret.write_text("hello")
    assert "--secret-file is not what it should be" in instance.enrol(*words).stderr
    assert instance.enrol("--controller", "a:1").returncode == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="a group's file is made by root")
def test_a_group_may_read_the_token(
    instance: Instance, plane: ControlPlane, reservation: str
) -> None:
    instance.metadata.says(told(plane, reservation))
    assert instance.enrol("--group", "daemon").returncode == 0
    path = instance.dir / "token"
    assert (stat.S_IMODE(path.stat().st_mode), path.group()) == (0o640, "daemon")
