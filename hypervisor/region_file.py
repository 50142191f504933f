# SPDX-License-Identifier: Apache-2.0
"""The shared file behind a domain's ivshmem device: made before QEMU opens it, deleted by us alone.

Used by channel_devices.py (attach, detach) and service.py (boot of the host, undefine). QEMU
creates a missing file itself, readable by others, and never deletes one. Beside each file a record
names the libvirt that the domain lives in, so that one libvirt's server never deletes what belongs
to another's domain, and the run of the domain that was seen last, so that a server that was away
knows a guest that ended meanwhile; records live in the run folder, which a reboot empties like
/dev/shm.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.hypervisor.domain_document import REGION_PREFIX
from sluice.hypervisor.errors import HypervisorError

REGION_FOLDER = Path("/dev/shm")
RUN_FOLDER = Path("/run/sluice")


@dataclass(frozen=True)
class RegionFiles:
    """Where regions and their records lie; `libvirt` identifies the libvirt they belong to."""

    libvirt: str
    folder: Path = REGION_FOLDER
    run_folder: Path = RUN_FOLDER

    def path(self, uuid: str) -> Path:
        """The region's file."""
        return self.folder / (REGION_PREFIX + uuid)

    def server_socket(self, uuid: str) -> Path:
        """Where the domain's QEMU is given its region, if the device has a doorbell.

        Its folder is the domain's own, and QEMU's account's.
        """
        return self.run_folder / "ivshmem" / uuid / "server"

    def check_room(self, uuid: str, size: int) -> None:
        """HypervisorError where a region of `size` bytes does not fit beside the rest."""
        volume = os.statvfs(self.folder)
        present = self._size(uuid) or 0
        total, free = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
        if size > total:
            raise HypervisorError(
                f"a region of {size >> 20} MiB is larger than {self.folder} ({total >> 20} MiB): "
                "choose a "
                "smaller --region-mib, or remount it larger (mount -o remount,size=… /dev/shm)"
            )
        if size - present > free:
            raise HypervisorError(
                f"a region of {size >> 20} MiB does not fit: {self.folder} has {free >> 20} MiB "
                "free; choose a "
                "smaller --region-mib, or free some"
            )

    def ensure(self, uuid: str, size: int, owner: tuple[int, int] | None = None) -> bool:
        """Makes the file with mode 0600 and exactly `size` bytes; True if it was not there.

        `owner` is the uid and gid that QEMU runs as, where that is not root. A file of another size
        is refused, since somebody maps it or made it.
        """
        path = self.path(uuid)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            created = True
        except FileExistsError:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            created = False
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise HypervisorError(f"{path} is no regular file: remove it")
            if created or found.st_size == 0:
                os.ftruncate(descriptor, size)
            elif found.st_size != size:
                raise HypervisorError(
                    f"{path} has {found.st_size >> 20} MiB and {size >> 20} MiB were asked for: "
                    "`sluice vm detach` the domain first"
                )
            os.fchmod(descriptor, 0o600)
            if owner is not None and (found.st_uid, found.st_gid) != owner:
                os.fchown(descriptor, *owner)
        finally:
            os.close(descriptor)
        record = self._record(uuid)
        record.parent.mkdir(parents=True, exist_ok=True)
        if self._owner(record) != self.libvirt:
            record.write_text(self.libvirt + "\n")
        return created

    def remove(self, uuid: str) -> bool:
        """Deletes file and record; True if the file was there."""
        self._record(uuid).unlink(missing_ok=True)
        self._ended(uuid).unlink(missing_ok=True)
        try:
            self.path(uuid).unlink()
        except FileNotFoundError:
            return False
        return True

    def renew(self, uuid: str, size: int, owner: tuple[int, int] | None, *, in_use: bool) -> bool:
        """As `ensure`, with room for it; one of another size goes first, unless a VM may map it."""
        if not in_use and self._size(uuid) not in (None, 0, size):
            self.remove(uuid)
        self.check_room(uuid, size)
        return self.ensure(uuid, size, owner)

    def recorded(self) -> set[str]:
        """The UUIDs whose regions belong to this libvirt."""
        folder = self._record("x").parent
        try:
            records = list(folder.iterdir())
        except FileNotFoundError:
            return set()
        return {record.name for record in records if self._owner(record) == self.libvirt}

    def note_run(self, uuid: str, run: int) -> None:
        """Writes down libvirt's number of the domain's run, -1 while it is off."""
        if self._owner(self._record(uuid)) == self.libvirt:
            self._record(uuid).write_text(f"{self.libvirt}\n{run}\n")
        self._ended(uuid).unlink(missing_ok=True)

    def ended_since(self, uuid: str, run: int) -> bool:
        """Whether the guest that was noted last is gone, though the domain may run again.

        libvirt's numbers begin again when libvirtd restarts; the hook's word does not.
        """
        if self._ended(uuid).exists():
            return True
        try:
            lines = self._record(uuid).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return False
        return len(lines) > 1 and lines[1] not in ("-1", str(run))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps making and deleting apart: a file that QEMU has just opened must not be deleted."""
        folder = self._record("x").parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _record(self, uuid: str) -> Path:
        return self.run_folder / "regions" / uuid

    def _owner(self, record: Path) -> str | None:
        try:
            return record.read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError):
            return None

    def _ended(self, uuid: str) -> Path:
        """Left by the hook (hypervisor/hook.py) where no server heard that the domain ended."""
        return self.run_folder / "ended" / uuid

    def _size(self, uuid: str) -> int | None:
        try:
            return self.path(uuid).stat().st_size
        except FileNotFoundError:
            return None
