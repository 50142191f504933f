# SPDX-License-Identifier: Apache-2.0
"""The socket for what defines and moves VMs on this host: Nova's driver, `sluice vm`, the hook.

Started by server.service. One line of JSON is a request, one is the answer, one request a
connection. `prepare` names a VM that is about to be defined and the vGPUs that it is to have; the
region's file is made, and the answer holds the metadata that belongs into the definition, with the
device where the caller is of 0.1.0 and does not ask for `metadata_only`. `ready`, between define
and start, has the definition follow its metadata now: whoever is answered may start it. From then
on libvirt is followed as for every other domain. `sessions` asks which programs of a VM use its
channel. `unplug` takes the channel out of a VM that runs, as libvirt saves none with it, and says
whether the guest has let it go; `plug` has the metadata followed, which puts it back. `hook` is
what libvirt's hook says of one. Only root and one group of the host may ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.config.peer_lines import OFTEN
from sluice.config.peer_lines import SERVER as PEERS
from sluice.hypervisor.domain_document import REGION_PREFIX
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import VHOST_VSOCK, cids_for
from sluice.resources.vgpu_request import Mode
from sluice.server.listeners.json_line import JsonLineListener

log = logging.getLogger("sluice.server")

SOCKET_NAME = "vms.sock"
#: Of one user: Nova's, whose compute service asks for one VM after another.
MOST_OF_USER = 64
#: So long a region may be without its domain, which is being defined.
DEFINE_SECONDS = 120.0
#: For the socket from which a VM's QEMU gets a region with a doorbell; between two looks for it.
LISTEN_SECONDS, LISTEN_PAUSE_SECONDS = 20.0, 0.05
#: So long a definer may have a guest waited for that releases its channel.
MOST_RELEASE_SECONDS = 600
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: A definer that reserves does so itself, as OpenStack's adapter does: `reserved` is not for here.
_MODES = (Mode.AUTO, Mode.ON_DEMAND)
#: What a definer calls a number, and the field.
_SIZES = {
    "count": "count",
    "memory_mib": "memory_mib",
    "compute": "compute_percent",
    "priority": "priority",
}

#: Makes what the channel of a VM needs, for one that is not defined or off; blocking.
Prepare = Callable[[str, DomainRequest], None]
#: Has a defined VM's channel put into its definition, for a start that comes next; blocking. What
#: has to listen before its QEMU asks there for the region; None: nothing.
Ready = Callable[[str], Path | None]
#: The programs of a VM that use its channel, a line each.
Sessions = Callable[[str], list[str]]
#: Takes the channel out of a VM that runs; whether its guest lets it go in time. Blocking.
Unplug = Callable[[str, float], bool]
#: Puts it back; returns what is wrong, a line each. Blocking.
Plug = Callable[[str], list[str]]
#: Has a VM looked at now.
Look = Callable[[str], None]
#: Writes the devices and the metadata element of a request.
Render = Callable[[str, DomainRequest], tuple[list[str], str]]


class VmListener:
    """Listens on run_dir/vms.sock."""

    def __init__(
        self,
        run_dir: Path,
        *,
        group: str,
        region_mib: int,
        slots: int,
        channel: str = "ivshmem",
        prepare: Prepare,
        render: Render,
        sessions: Sessions,
        look: Look,
        unplug: Unplug,
        plug: Plug,
        ready: Ready,
    ) -> None:
        self._group = group
        self._defaults: dict[str, Any] = {
            "region_mib": region_mib,
            "slots": slots,
            "channel": channel,
        }
        self._prepare = prepare
        self._render = render
        self._sessions = sessions
        self._look = look
        self._unplug = unplug
        self._plug = plug
        self._ready = ready
        self._expected: dict[str, float] = {}
        self._listener = JsonLineListener(
            run_dir / SOCKET_NAME,
            "VMs' socket",
            self._answer,
            (ValueError, HypervisorError, OSError),
            self._let_in,
            most_of_owner=MOST_OF_USER,
        )

    def open(self) -> None:
        """Begins to listen; raises OSError."""
        self._listener.open()
        log.info("definers of VMs: %s", self._listener.path)

    async def close(self) -> None:
        """Stops listening."""
        await self._listener.close()

    def _let_in(self) -> None:
        with contextlib.suppress(KeyError):  # no such group: root alone
            os.chown(self._listener.path, -1, grp.getgrnam(self._group).gr_gid)
            self._listener.path.chmod(0o660)

    def expects(self, uuid: str) -> bool:
        """Whether a region was prepared for a VM that may not be defined yet."""
        now = time.monotonic()
        self._expected = {name: until for name, until in self._expected.items() if until > now}
        return uuid in self._expected

    def defined(self, uuid: str) -> None:
        """The VM is defined, with its channel: what becomes of it decides about the region."""
        self._expected.pop(uuid, None)

    async def _answer(self, line: bytes, _: socket.socket) -> dict[str, Any]:
        asked = _object(line)
        if "sessions" in asked:
            return {"sessions": self._sessions(_uuid(_part(asked, "sessions")))}
        if "unplug" in asked:
            part = _part(asked, "unplug")
            seconds = part.get("seconds")
            if not isinstance(seconds, int) or not 1 <= seconds <= MOST_RELEASE_SECONDS:
                raise ValueError(f"seconds: give a number, 1 to {MOST_RELEASE_SECONDS}")
            return {"unplugged": await asyncio.to_thread(self._unplug, _uuid(part), seconds)}
        if "plug" in asked:
            return {"problems": await asyncio.to_thread(self._plug, _uuid(_part(asked, "plug")))}
        if "ready" in asked:
            uuid = _uuid(_part(asked, "ready"))
            awaited = await asyncio.to_thread(self._ready, uuid)
            log.info("channel %s: in the definition of a VM that is to be started", uuid)
            self._look(uuid)
            if awaited is not None:
                await _listening(awaited)
            return {"ready": True}
        if "hook" in asked:
            return self._hook(_part(asked, "hook"))
        part = _part(asked, "prepare")
        uuid, request = self._parse(part)
        metadata_only = part.get("metadata_only") is True
        if request.has_doorbell and not metadata_only:
            raise HypervisorError(
                f"[nova] channel = {request.channel} wants a newer sluice-nova on this host: 0.1's "
                "puts in the devices itself, and knows no doorbell"
            )
        self._expected[uuid] = time.monotonic() + DEFINE_SECONDS
        try:
            await asyncio.to_thread(self._prepare, uuid, request)
        except BaseException:
            self._expected.pop(uuid, None)
            raise
        devices, metadata = self._render(uuid, request)
        log.info("channel %s: prepared for a VM that is to be defined, %s", uuid, request)
        if metadata_only:
            devices = []  # put in by `ready`, or by whoever looks at the domain before
        return {"devices": devices, "metadata": metadata}

    def _hook(self, said: dict[str, Any]) -> dict[str, Any]:
        """What libvirt does with a VM, for the log; whatever it is, the VM is looked at."""
        uuid = _uuid(said)
        words = " ".join(str(said.get(part, ""))[:80] for part in ("operation", "sub", "extra"))
        text, name = "libvirt: domain %s (%s): %s", ascii(str(said.get("name"))[:80])
        PEERS.info("libvirt's hook", "libvirt", text, name, uuid, words, often=OFTEN)
        self._look(uuid)
        return {}

    def _parse(self, found: dict[str, Any]) -> tuple[str, DomainRequest]:
        """Raises ValueError (InvalidRequest is one) with the field that is wrong."""
        uuid = _uuid(found)
        sizes: dict[str, Any] = {}
        for name, field in _SIZES.items():
            value = found.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name}: give a number")
            sizes[field] = value
        for name in ("memory_mib", "compute"):
            if found.get(name) is None:
                raise ValueError(f"{name} is missing: give a number")
        mode = found.get("mode", Mode.AUTO)
        if mode not in _MODES:
            raise ValueError(f"mode: give {' or '.join(_MODES)}")
        return uuid, DomainRequest(vsock=False, mode=Mode(mode), **sizes, **self._defaults)


def make_regions(uri: str, files: Any) -> Prepare:
    """What makes regions' files on this host's libvirt; `files` are its RegionFiles."""
    from sluice.hypervisor.libvirt_host import connected, host_account, is_active

    def prepare(uuid: str, request: DomainRequest) -> None:
        if not request.has_region:
            if not VHOST_VSOCK.exists():
                raise HypervisorError(
                    f"[nova] channel = vsock, and this host has no {VHOST_VSOCK} "
                    "(modprobe vhost_vsock)"
                )
            return
        with connected(uri) as connection, files.locked():
            account = host_account(connection)
            running = is_active(connection, uuid)
            files.renew(uuid, request.region_bytes, account, in_use=running)

    return prepare


def make_plugs(uri: str, files: Any) -> tuple[Unplug, Plug]:
    """What takes channels out of VMs that run and puts them back; `files` are RegionFiles."""
    from sluice.hypervisor import following
    from sluice.hypervisor.libvirt_host import call, connected, live_document

    def unplug(uuid: str, seconds: float) -> bool:
        with connected(uri) as connection:
            domain = call(lambda: connection.lookupByUUIDString(uuid))
            live = live_document(domain)
            if live is not None and live.region is not None:
                following.take_out(domain, live.region, files)
            return following.await_release(domain, seconds)

    def plug(uuid: str) -> list[str]:
        with connected(uri) as connection:
            domain = call(lambda: connection.lookupByUUIDString(uuid))
            return following.follow(domain, files)

    return unplug, plug


def make_ready(uri: str, files: Any) -> Ready:
    """What has a definition follow its metadata before a start; `files` are RegionFiles."""
    import libvirt

    from sluice.hypervisor import following
    from sluice.hypervisor.libvirt_host import call, connected, persistent_document, words

    def ready(uuid: str) -> Path | None:
        with connected(uri) as connection:
            domain = call(lambda: connection.lookupByUUIDString(uuid))
            try:
                if domain.hasManagedSaveImage():
                    return None  # what starts is the image; the channel is plugged into it then
                problems = following.follow(domain, files)
                definition = persistent_document(domain)
            except libvirt.libvirtError as error:
                raise HypervisorError(words(error)) from error
        if lacking := following.lacking(definition):
            raise HypervisorError("; ".join(problems) or f"{definition.name}: {lacking}")
        region = definition.region
        if region is None or region.server is None:
            return None
        awaited: Path = files.server_socket(definition.uuid)
        return awaited

    return ready


def render(uuid: str, request: DomainRequest) -> tuple[list[str], str]:
    """The channel's device, at a place that libvirt chooses, and the metadata."""
    from sluice.hypervisor.device_xml import region_device, request_metadata, vsock_device

    device = (
        region_device(REGION_PREFIX + uuid, request.region_mib, None)
        if request.has_region
        else vsock_device(next(cids_for(uuid)), None)
    )
    return [device], request_metadata(request, with_namespace=True)


async def _listening(path: Path) -> None:
    try:
        async with asyncio.timeout(LISTEN_SECONDS):
            while not await asyncio.to_thread(path.is_socket):
                await asyncio.sleep(LISTEN_PAUSE_SECONDS)
    except TimeoutError:
        raise HypervisorError(
            f"nobody listens at {path} yet, where the VM's QEMU asks for its region: start the VM "
            "again, and see sluice-server's log if that does not help"
        ) from None


def _object(line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise ValueError("the request is no JSON object in one line")
    return asked


def _part(asked: dict[str, Any], name: str) -> dict[str, Any]:
    found = asked.get(name)
    if not isinstance(found, dict):
        raise ValueError(f'the request has no object "{name}"')
    return found


def _uuid(found: dict[str, Any]) -> str:
    uuid = str(found.get("uuid", "")).lower()
    if not _UUID.fullmatch(uuid):
        raise ValueError("uuid: give the VM's UUID")
    return uuid
