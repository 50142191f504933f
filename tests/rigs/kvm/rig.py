# SPDX-License-Identifier: Apache-2.0
"""The way in to the KVM rig: a private libvirt and guests that boot in two seconds without KVM.

Called by the demo and by tests/hypervisor (``from tests.rigs.kvm.rig import Rig``), or by hand with
``python -m tests.rigs.kvm.rig smoke``. Owns the guests it defined: ``stop()`` destroys and
undefines them and ends the daemon. ``SLUICE_RIG`` names another folder than ``build/rig``; two
folders do not disturb each other.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import shlex
import sys
import time
import uuid as uuids
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TextIO

import jinja2
import libvirt

from . import agent, images
from .agent import Finished, GuestProcess
from .private_libvirt import PrivateLibvirt

CHECKOUT = Path(__file__).resolve().parents[3]

_KERNEL_WORDS = (
    "console=ttyS0 panic=-1 quiet loglevel=1 mitigations=off nokaslr tsc=reliable audit=0 "
    "apparmor=0 "
    "cryptomgr.notests random.trust_cpu=on 8250.nr_uarts=1"
)

Progress = Callable[[str], None]


def print_progress(line: str) -> None:
    """Shows a line with the time of day on standard error."""
    print(f"{time.strftime('%H:%M:%S')} rig: {line}", file=sys.stderr, flush=True)


class Guest:
    """A defined domain and the agent inside it. Made by :meth:`Rig.define_guest`."""

    def __init__(self, rig: Rig, domain: libvirt.virDomain, console: Path) -> None:
        self._rig = rig
        self.domain = domain
        self.console = console
        self.name: str = domain.name()
        self.uuid: str = domain.UUIDString()

    @property
    def active(self) -> bool:
        return bool(self.domain.isActive())

    @property
    def qemu_pid(self) -> int:
        """The process that runs it."""
        return int((self._rig.root / "run" / "qemu" / f"{self.name}.pid").read_text())

    def start(self) -> None:
        """Powers on; returns at once, see :meth:`wait_ready`."""
        self._rig.progress(f"starting guest {self.name}")
        self.domain.create()

    def wait_ready(self, timeout: float = 60) -> float:
        """Waits until commands can be run; returns the seconds it took."""
        began = time.monotonic()
        while True:
            try:
                agent.call(self.domain, "guest-ping", timeout=1)
                break
            except libvirt.libvirtError as error:
                if time.monotonic() - began > timeout:
                    raise TimeoutError(
                        f"{self.name}: no agent after {timeout} s: {error}\n{self.console_tail()}"
                    ) from error
                if not self.active:
                    raise RuntimeError(
                        f"{self.name}: ended while booting\n{self.console_tail()}"
                    ) from error
                time.sleep(0.05)
        waited = time.monotonic() - began
        self._rig.progress(f"guest {self.name} ready after {waited:.1f} s")
        return waited

    def run(
        self, command: str, timeout: float = 60, environment: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """Runs ``command`` by bash in the guest; its exit code (minus the signal's number), output,
        errors.

        After ``timeout`` seconds the command and all it started are killed and TimeoutError is
        raised.
        """
        finished = self.spawn(command, environment).wait(timeout)
        return finished.code, finished.out, finished.err

    def check(
        self, command: str, timeout: float = 60, environment: dict[str, str] | None = None
    ) -> str:
        """Runs ``command`` and returns its output; RuntimeError with all it said if it fails."""
        code, out, err = self.run(command, timeout, environment)
        if code:
            raise RuntimeError(f"in {self.name}: {command!r} ended with {code}\n{out}{err}")
        return out

    def spawn(self, command: str, environment: dict[str, str] | None = None) -> GuestProcess:
        """Starts ``command`` by bash in the guest, in a session of its own, and returns at once."""
        return GuestProcess(self.domain, command, environment or {})

    def put(self, source: Path, target: str, timeout: float = 60) -> None:
        """Copies a file or folder of the host (not below /dev or /proc) to ``target`` in the guest.

        The guest also sees the host's whole root, read-only, below ``/host``.
        """
        inside = shlex.quote("/host" + str(source.resolve()))
        goal = shlex.quote(target)
        self.check(f"mkdir -p $(dirname {goal}) && cp -a -T {inside} {goal}", timeout)

    def write(self, target: str, content: bytes) -> None:
        """Writes ``content`` to the file ``target`` in the guest, or to a FIFO that is read."""
        handle = agent.call(self.domain, "guest-file-open", path=target, mode="wb")
        try:
            for start in range(0, len(content), 1 << 20):
                piece = base64.b64encode(content[start : start + (1 << 20)]).decode()
                agent.call(self.domain, "guest-file-write", handle=handle, buf_b64=piece)
        finally:
            agent.call(self.domain, "guest-file-close", handle=handle)

    def read(self, source: str) -> bytes | None:
        """What the file ``source`` of the guest holds; None where there is none.

        Much cheaper than a ``cat``: a process takes a guest without KVM a quarter of a second.
        """
        try:
            handle = agent.call(self.domain, "guest-file-open", path=source, mode="rb")
        except libvirt.libvirtError as error:
            if "No such file" in str(error):
                return None
            raise
        found = b""
        try:
            while True:
                got = agent.call(self.domain, "guest-file-read", handle=handle, count=1 << 20)
                found += base64.b64decode(got["buf-b64"])
                if got["eof"] or not got["count"]:
                    return found
        finally:
            agent.call(self.domain, "guest-file-close", handle=handle)

    def pause(self) -> None:
        self.domain.suspend()

    def resume(self) -> None:
        self.domain.resume()

    def destroy(self) -> None:
        """Pulls the plug; nothing happens if the guest is off."""
        _power_off(self.domain)

    def reboot(self) -> None:
        """The guest's kernel starts anew without a shutdown; returns before it does."""
        with contextlib.suppress(libvirt.libvirtError):  # the agent may not live to answer
            self.spawn("sleep 0.2; exec busybox reboot -f")

    def restart(self, timeout: float = 60) -> None:
        """Pulls the plug, powers on, waits."""
        self.destroy()
        self.start()
        self.wait_ready(timeout)

    def undefine(self) -> None:
        """Powers off and removes the definition."""
        self.destroy()
        self.domain.undefineFlags(
            libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        )

    def console_tail(self, characters: int = 3000) -> str:
        try:
            return self.console.read_text(errors="replace")[-characters:]
        except FileNotFoundError:
            return "(no console output)"


def _power_off(domain: libvirt.virDomain) -> None:
    try:
        if domain.isActive():
            domain.destroy()
    except libvirt.libvirtError:
        if domain.isActive():  # it may have ended by itself meanwhile
            raise


class Rig:
    """A private libvirt with its guests. Usable as a context manager."""

    def __init__(
        self,
        name: str = "default",
        progress: Progress = print_progress,
        *,
        own_shm: bool = False,
    ) -> None:
        base = Path(os.environ.get("SLUICE_RIG", CHECKOUT / "build/rig"))
        worker = os.environ.get("PYTEST_XDIST_WORKER")  # each has its own beside the other's
        self.root = base / (f"{name}-{worker}" if worker else name)
        self.progress = progress
        self._images_folder = base / "images"
        self._daemon = PrivateLibvirt(self.root, own_shm=own_shm)
        self._connection: libvirt.virConnect | None = None
        self._images: images.Images | None = None
        self._lock: TextIO | None = None
        self._guests: dict[str, Guest] = {}

    @property
    def uri(self) -> str:
        """What libvirt clients, ``virsh -c`` and ``sluice vm --connect`` take."""
        return self._daemon.uri

    @property
    def shm(self) -> Path:
        """Where its guests' regions lie: /dev/shm, or with ``own_shm`` a folder of its own."""
        return self._daemon.shm

    @property
    def connection(self) -> libvirt.virConnect:
        if self._connection is None:
            raise RuntimeError("the rig is not started")
        return self._connection

    def start(self) -> None:
        """Installs and builds what is missing, starts libvirtd, removes an earlier run's guests."""
        began = time.monotonic()
        images.install_packages(self.progress)
        self._images = images.prepare(self._images_folder, self.progress)
        self.root.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        self._daemon.start()
        libvirt.registerErrorHandler(lambda *_: None, None)
        self._connection = libvirt.open(self.uri)
        self._clear()
        self.progress(f"libvirt at {self.uri} after {time.monotonic() - began:.1f} s")

    def stop_daemon(self) -> None:
        """Ends libvirtd while guests keep running; :meth:`restart_daemon` brings it back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._daemon.stop()

    def restart_daemon(self) -> None:
        """Ends and starts libvirtd while guests keep running; their objects stay usable."""
        self.stop_daemon()
        self._daemon.start()
        self._connection = libvirt.open(self.uri)
        present = {domain.UUIDString(): domain for domain in self._connection.listAllDomains()}
        # A guest that somebody undefined stays with its dead connection.
        for guest in self._guests.values():
            guest.domain = present.get(guest.uuid, guest.domain)

    def stop(self) -> None:
        """Destroys and undefines every guest and ends the daemon."""
        try:
            if self._connection is not None:
                self._clear()
                self._connection.close()
        finally:
            self._connection = None
            self._daemon.stop()
            if self._lock is not None:
                self._lock.close()
                self._lock = None
        self.progress("stopped")

    def define_guest(
        self,
        name: str,
        mem_mib: int = 512,
        vcpus: int = 2,
        *,
        machine: str = "q35",
        spare_ports: int = 4,
        network: bool = False,
        uuid: str | None = None,
        devices: str = "",
        alone: bool = False,
        on_crash: str = "destroy",
    ) -> Guest:
        """Defines a persistent guest with ``spare_ports`` free root ports (q35, microvm).

        ``devices`` is raw XML that is put among its devices. One that is ``alone`` has nothing of
        the host's file system, so that libvirt can save and migrate it: busybox, bash, the agent.
        """
        console = self.root / f"console-{name}.log"
        domain = self.connection.defineXML(
            self.guest_xml(
                name,
                mem_mib,
                vcpus,
                machine=machine,
                spare_ports=spare_ports,
                network=network,
                uuid=uuid,
                devices=devices,
                alone=alone,
                on_crash=on_crash,
            )
        )
        guest = Guest(self, domain, console)
        self._guests[name] = guest
        return guest

    def find_guest(self, name: str) -> Guest:
        """A guest that came by itself, as by a migration."""
        guest = Guest(self, self.connection.lookupByName(name), self.root / f"console-{name}.log")
        self._guests[name] = guest
        return guest

    def guest_xml(
        self,
        name: str,
        mem_mib: int = 512,
        vcpus: int = 2,
        *,
        machine: str = "q35",
        spare_ports: int = 4,
        network: bool = False,
        uuid: str | None = None,
        devices: str = "",
        alone: bool = False,
        on_crash: str = "destroy",
    ) -> str:
        """The XML that :meth:`define_guest` defines."""
        if self._images is None:
            raise RuntimeError("the rig is not started")
        words = (
            f"{_KERNEL_WORDS} rig_host={name} rig_agent={self._images.agent} "
            f"rig_modules={self._images.modules} rig_checkout={CHECKOUT}"
        )
        if machine == "microvm":  # without KVM it has no timer to measure the TSC by
            words += " tsc_early_khz=2500000"
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined
        )
        return environment.get_template("guest.xml.j2").render(
            name=name,
            uuid=uuid or str(uuids.uuid4()),
            mem_mib=mem_mib,
            vcpus=vcpus,
            machine=machine,
            # Two file systems, the agent's port and the network sit on root ports of their own.
            ports=3 + int(network) + spare_ports,
            kernel=self._images.kernel,
            initramfs=self._images.alone if alone else self._images.initramfs,
            alone=alone,
            on_crash=on_crash,
            cmdline=words,
            console=self.root / f"console-{name}.log",
            network=network,
            devices=devices,
        )

    def _take_lock(self) -> None:
        """Two processes in one folder would destroy each other's guests."""
        self._lock = (self.root / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise RuntimeError(
                f"{self.root} is in use by another process: choose another name, or SLUICE_RIG"
            ) from None

    def _clear(self) -> None:
        for domain in self.connection.listAllDomains():
            # A guest of a rig may have had a vGPU, and no server may be there to clean up.
            region = self.shm / f"sluice-{domain.UUIDString()}"
            _power_off(domain)
            try:
                domain.undefineFlags(
                    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
                    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
                )
            except libvirt.libvirtError as error:
                # A transient domain is gone already.
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise
            region.unlink(missing_ok=True)
        self._guests.clear()

    def __enter__(self) -> Rig:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


__all__ = ["Finished", "Guest", "GuestProcess", "Rig", "print_progress"]


def main() -> None:
    """``smoke`` boots one guest and runs a command in it; ``stop`` ends what runs there."""
    verb = sys.argv[1] if len(sys.argv) > 1 else "smoke"
    rig = Rig(sys.argv[2] if len(sys.argv) > 2 else "default")
    rig.start()
    try:
        if verb == "smoke":
            guest = rig.define_guest("smoke")
            guest.start()
            guest.wait_ready()
            print(
                guest.check(
                    "uname -r; cat /proc/uptime; id; ls /host | head -3; free -m; pgrep -a udevd"
                )
            )
    finally:
        rig.stop()


if __name__ == "__main__":
    main()
