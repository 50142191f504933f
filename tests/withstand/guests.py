# SPDX-License-Identifier: Apache-2.0
"""Real guests under libvirt with the bundle and a vGPU, and prompted programs inside them.

Used by test_guest*.py. A Fleet owns its guests and takes them, and their regions, away at its end.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import region_slots
from control_plane import ControlPlane, wait_for

from sluice.hypervisor.request import NAMESPACE
from tests.rigs.kvm.rig import Guest, Rig

from .prompted import CHECKOUT, PATIENCE, PROMPTED, SCRIBBLE

BUNDLE = Path(
    os.environ.get("SLUICE_GUEST_BUNDLE", CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz")
)
REGION_MIB, SLOTS = 64, 4


def serving(rig: Rig, **settings: object) -> dict[str, object]:
    """The settings of a server for the guests of this libvirt."""
    return {
        "enable_kvm": "true",
        "libvirt_uri": rig.uri,
        "region_dir": rig.shm,
        **settings,
    }


class Fleet:
    """The guests of a test or a module."""

    def __init__(self, rig: Rig, plane: ControlPlane) -> None:
        self.rig, self.plane = rig, plane
        self._made: list[Guest] = []

    def make(self, name: str) -> Guest:
        """A running guest that can use its vGPU of 64 MiB and 10 %, for four processes at once."""
        guest = self.boot(name)
        self.attach(guest)
        prepare(guest)
        return guest

    def boot(self, name: str) -> Guest:
        """A running guest that has nothing of ours."""
        for earlier in [guest for guest in self._made if guest.name == name]:
            self._end(earlier)  # of the same test, which runs once more
        guest = self.rig.define_guest(name, mem_mib=384, vcpus=1)
        self._made.append(guest)
        guest.start()
        guest.wait_ready()
        return guest

    def adopt(self, guest: Guest) -> None:
        """The fleet takes the guest away at its end."""
        self._made.append(guest)

    def virsh(self, *words: str) -> None:
        """`virsh …` on the rig's libvirt."""
        command = ["virsh", "-q", "-c", self.rig.uri, *words]
        subprocess.run(command, check=True, timeout=300)

    def ask(self, guest: Guest, **attributes: object) -> None:
        """The guest's metadata, as a user of virsh sets it; no attribute: none."""
        words = [guest.name, NAMESPACE, "--live", "--config"]
        written = " ".join(f"{k.replace('_', '-')}='{v}'" for k, v in attributes.items())
        change = ["--key", "sluice", "--set", f"<vgpu {written}/>"] if written else ["--remove"]
        self.virsh("metadata", *words, *change)

    def attach(self, guest: Guest) -> None:
        figures = ("--memory-mib", "64", "--compute", "10")
        channel = ("--region-mib", str(REGION_MIB), "--slots", str(SLOTS))
        assert self.vm("attach", guest.name, *figures, *channel) == 0

    def vm(self, *words: str) -> int:
        """`sluice vm …` in a process of its own."""
        return self.vm_says(*words).returncode

    def vm_says(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same, with what it says."""
        environment = dict(
            os.environ,
            PYTHONPATH=str(CHECKOUT / "python"),
            LIBVIRT_DEFAULT_URI=self.rig.uri,
            SLUICE_RUN_DIR=str(self.plane.folder / "run"),
        )
        command = [sys.executable, "-m", "sluice.hypervisor.cli", *words]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        print(f"sluice vm {' '.join(words)}: {done.returncode} {done.stdout}{done.stderr}", end="")
        return done

    def close(self) -> None:
        for guest in list(self._made):
            self._end(guest)

    def _end(self, guest: Guest) -> None:
        defined = {domain.UUIDString() for domain in self.rig.connection.listAllDomains()}
        if guest.uuid in defined:
            guest.undefine()
        self._made.remove(guest)
        (self.rig.shm / region_file(guest).name).unlink(missing_ok=True)


def prepare(guest: Guest) -> None:
    """Installs the bundle and the programs, and waits until they can be used."""
    install(guest)
    wait_usable(guest)


def install(guest: Guest) -> None:
    """The bundle and the programs: a guest's root is gone with each boot.

    What is plugged in already is set up as install.sh does it. udevd may miss a reload (systemd 252
    leaves out a request that comes before its connection has been told to carry credentials, and
    nobody hears of it): it looks at its rules by itself before an event, but not twice in 3 s.
    """
    guest.check(
        f"tar xf /host{installed()} -C / && groupadd -r sluice && export SYSTEMD_IGNORE_CHROOT=1"
        " && udevadm control --reload"
        " && for device in $(grep -l 0x1110 /sys/bus/pci/devices/*/device); do"
        " /opt/sluice/libexec/sluice-pci-setup ${device%/device}; done"
    )


@functools.cache
def installed() -> Path:
    """An archive of the bundle, as install.sh leaves it in an image's tree, and of the programs.

    Made once: install.sh takes seconds in a guest without KVM, and so do many files by 9p. In
    guests it is run by tests/hypervisor/test_page.py and by the demo.
    """
    folder = Path(tempfile.mkdtemp(prefix="sluice-installed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tree = folder / "tree"
    group = tree / "etc" / "group"
    for made in (group.parent, tree / "root"):
        made.mkdir(parents=True)
    group.write_text("sluice:x:999:\n")  # each guest has its own
    run = functools.partial(subprocess.run, check=True, capture_output=True)
    run(["tar", "xzf", BUNDLE, "-C", folder])
    run([folder / "sluice-guest/install.sh", "--root", tree, "--no-ldconfig"])
    # here, instead of in each guest; by the guests' Python, which is the host's
    run(["/usr/bin/python3", "-m", "compileall", "-q", "-s", tree, tree / "opt"])
    group.unlink()
    for program in (PROMPTED, SCRIBBLE):
        shutil.copy2(program, tree / "root")
    run(
        [
            "tar",
            "cf",
            folder / "tree.tar",
            "-C",
            tree,
            "--owner=0",
            "--group=0",
            "opt",
            "etc",
            "usr",
            "root",
        ]
    )
    return folder / "tree.tar"


def wait_usable(guest: Guest) -> None:
    """Until `sluice check` is content."""
    said = [""]

    def usable() -> bool:
        code, said[0], _ = guest.run("sluice check")
        return code == 0

    def left() -> str:
        kernels = guest.run("dmesg | grep -E 'pci|udev' | tail -n 60; ls /run/sluice-pci")[1]
        return f"{guest.name}: {said[0]}\nits kernel, and what its channel's setup left:\n{kernels}"

    wait_for(usable, message=left)


def region_file(guest: Guest) -> Path:
    return Path(f"/dev/shm/sluice-{guest.uuid}")


def slot_states(guest: Guest) -> list[int]:
    """The state word of each slot, read from the region's file on the host."""
    return region_slots.slot_states(region_file(guest), SLOTS)


class GuestProgram:
    """programs/prompted.cu in a guest, by `sluice run`; speaks through files of the guest."""

    _made = 0

    def __init__(self, guest: Guest, opened: bool = True, **environment: str) -> None:
        GuestProgram._made += 1
        self.guest = guest
        self._base = f"/tmp/prompted-{GuestProgram._made}"
        self._read = 0
        settings = "".join(f"export {k}={shlex.quote(v)}; " for k, v in environment.items())
        self._process = guest.spawn(
            f"mkfifo {self._base}.in; {settings}exec sluice run /root/prompted 0<>{self._base}.in "
            f">{self._base}.out 2>{self._base}.err"
        )
        wait_for(lambda: guest.read(f"{self._base}.err") is not None, message="its shell")
        self.pid = int(self.ask("pid").removeprefix("pid: "))
        if opened:
            assert self.ask("open") == "open: ok", self.errors()

    def say(self, line: str) -> None:
        self.guest.write(f"{self._base}.in", f"{line}\n".encode())

    def answer(self, seconds: float = PATIENCE) -> str:
        """Its next line; fails the test when none comes."""
        deadline = time.monotonic() + seconds
        while not (line := self._next_line()):
            if time.monotonic() > deadline:
                pytest.fail(f"no answer within {seconds:g} s: the program hangs; {self.errors()}")
            time.sleep(0.05)
        self._read += 1
        return line

    def ask(self, line: str, seconds: float = PATIENCE) -> str:
        self.say(line)
        return self.answer(seconds)

    def is_silent(self, seconds: float) -> bool:
        """Whether it has said nothing after so long."""
        time.sleep(seconds)
        return not self._next_line()

    def errors(self) -> str:
        return (self.guest.read(f"{self._base}.err") or b"").decode(errors="replace")

    def signal(self, name: str) -> None:
        self.guest.check(f"kill -{name} {self.pid}")

    def quit(self) -> None:
        """Lets it end by itself; fails the test where it does not."""
        self.say("quit")
        finished = self._process.wait(PATIENCE)
        assert finished.code == 0, self.errors()

    def _next_line(self) -> str:
        out = (self.guest.read(f"{self._base}.out") or b"").decode(errors="replace")
        lines = out.splitlines(keepends=True)
        return lines[self._read].strip() if len(lines) > self._read and out.endswith("\n") else ""
