# SPDX-License-Identifier: Apache-2.0
"""A pool, a vCenter and sluice-vsphere between them, each a real process.

Used by tests/vsphere. A Rig owns its processes; the adapter logs in with a credentials file, checks
the vCenter's certificate by its CA, and calls the controller with an admin's token.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from control_plane import PYTHON_PATH, ControlPlane, wait_for
from vcenter import PASSWORD, USER, Vcenter

from sluice.config.vsphere import read_credentials, read_vsphere_config
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.service import VsphereService


class Rig:
    """Controller, server, vCenter and adapter; close() ends them."""

    def __init__(
        self,
        folder: Path,
        *,
        rate: int = 0,
        fake: bool = True,
        pool: dict[str, Any] | None = None,
        **vcenter: Any,
    ) -> None:
        """With `fake` sessions end at a FakeWorker, and nothing native is needed."""
        self.folder = folder
        node_token = folder / "node.token"
        auth = {"required": "yes", "requests_per_second": rate}
        self.plane = ControlPlane(folder, fake=fake, auth=auth, token_file=node_token, pool=pool)
        self.adapter: subprocess.Popen[bytes] | None = None
        self.vcenter = Vcenter(folder / "vcenter", **vcenter)
        self.plane.start_controller()
        self.plane.rest = self.plane.rest_as(self.plane.first_token())
        node_token.write_text(self.token(role="node", node=self.plane.node))
        self.plane.start_server()
        secret(folder / "adapter.token", self.token(role="admin"))
        self.credentials = folder / "vcenter.credentials"
        secret(self.credentials, f"user = {USER}\npassword = {PASSWORD}\n")
        self.config = folder / "vsphere.conf"
        self.configure()

    def token(self, **wanted: Any) -> str:
        """A new token's secret; asked for again where the controller is asked too often."""
        answer = self.plane.rest.post("/tokens", json=wanted)
        while answer.status_code == 429:
            time.sleep(float(answer.headers["Retry-After"]))
            answer = self.plane.rest.post("/tokens", json=wanted)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["secret"])

    def configure(self, **sections: dict[str, Any]) -> None:
        """Writes vsphere.conf; what is given is added to what it needs, empty values leave out."""
        whole: dict[str, dict[str, Any]] = {
            "log": {"log_to_file": "false"},
            "vcenter": {
                "host": "127.0.0.1",
                "port": self.vcenter.port,
                "credentials_file": self.credentials,
                "ca_file": self.vcenter.ca.file,
                "poll_seconds": 2,
                "tag_seconds": 1,
            },
            "controller": {
                "addresses": f"127.0.0.1:{self.plane.rest_port}",
                "token_file": self.folder / "adapter.token",
            },
            "clients": {"memory_mib": 16, "compute_percent": 1},
        }
        for name, keys in sections.items():
            whole.setdefault(name, {}).update(keys)
        lines = []
        for name, keys in whole.items():
            given = (f"{key} = {value}" for key, value in keys.items() if value != "")
            lines += [f"[{name}]", *given]
        self.config.write_text("\n".join(lines) + "\n")

    # the adapter

    def service(self) -> tuple[VsphereService, ControllerLine]:
        """The adapter as it is configured now, to be run within the test, and its line."""
        config = read_vsphere_config(self.config)
        line = ControllerLine(config.controller)
        return VsphereService(config, read_credentials(config.vcenter), line), line

    def start(self, *arguments: str) -> None:
        """Starts sluice-vsphere."""
        with (self.folder / "vsphere.out").open("ab") as out:
            self.adapter = subprocess.Popen(
                [
                    *(sys.executable, "-m", "sluice.hypervisor.vsphere"),
                    *("--config", str(self.config), *arguments),
                ],
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops it; its exit status."""
        assert self.adapter
        self.adapter.send_signal(number)
        status = self.adapter.wait(60)
        self.adapter = None
        return status

    def log(self) -> str:
        """What it wrote."""
        return (self.folder / "vsphere.out").read_text()

    def wait_log(self, text: str, times: int = 1, seconds: float = 60) -> None:
        """Until it has written that."""
        wait_for(lambda: self.log().count(text) >= times, seconds, f"{text!r} in the log")

    def wait_quiet(self) -> None:
        """Until it only waits for vCenter: a whole pass, between two waits, asked nothing."""

        def quiet() -> bool:
            calls = self.calls_within(5.0)  # of waits of two seconds
            return calls.keys() == {"WaitForUpdatesEx"} and calls["WaitForUpdatesEx"] >= 2

        wait_for(quiet, 120, "it to be quiet")

    def calls_within(self, seconds: float) -> dict[str, int]:
        """What is asked of vCenter in so many seconds."""
        self.vcenter.calls(anew=True)
        time.sleep(seconds)
        return self.vcenter.calls()

    def sluice(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`sluice vsphere …` on this rig."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        return subprocess.run(
            [sys.executable, "-m", "sluice.cli", "vsphere", *words],
            env={
                **clean,
                "PYTHONPATH": str(PYTHON_PATH),
                "SLUICE_VSPHERE_CONF": str(self.config),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    # the controller

    def reservations(self) -> dict[str, dict[str, Any]]:
        """The adapter's, by their owners."""
        listed = self.plane.rest.get("/reservations", params={"origin": "vsphere", "limit": 5000})
        return {each["owner"]: each for each in listed.json()["reservations"]}

    def enrolments(self, state: str = "live") -> list[dict[str, Any]]:
        """Every enrolment."""
        found: list[dict[str, Any]] = self.plane.rest.get(
            "/enrolments", params={"state": state, "limit": 5000}
        ).json()["enrolments"]
        return found

    def events(self, subject: str) -> list[dict[str, Any]]:
        """What the event log says of something."""
        found: list[dict[str, Any]] = self.plane.rest.get(
            "/events", params={"subject": subject}
        ).json()["events"]
        return found

    def close(self) -> None:
        """Ends everything."""
        if self.adapter:
            self.adapter.kill()
            self.adapter.wait()
        self.vcenter.close()
        self.plane.close()


def secret(path: Path, text: str) -> None:
    """A file that only its owner reads."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text(text)
