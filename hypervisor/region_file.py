# SPDX-License-Identifier: Apache-2.0
"""The shared file behind a domain's ivshmem device: made before QEMU opens it, deleted by us alone.

Used by channel_devices.py (attach, detach) and service.py (boot of the host, undefine). QEMU
creates a missing file itself, readable by others, and never deletes one. libvirt looks for it in
/dev/shm and nowhere else (a <shmem>'s name has no slash), where every user of the host may make
files. So one is made exclusively, with all its memory, and one that is there already is taken only
from root or QEMU's account: whoever else made it could read and write what the guest says.

Beside each file a record names the libvirt that the domain lives in, so that one libvirt's server
never deletes what belongs to another's domain, the run of the domain that was seen last, so that a
server that was away knows a guest that ended meanwhile, and the file that was made. Records live in
the run folder, where only root writes and which a reboot empties like /dev/shm.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.hypervisor.domain_document import REGION_PREFIX
from sluice.hypervisor.errors import HypervisorError

log = logging.getLogger(__name__)

REGION_FOLDER = Path("/dev/shm")
RUN_FOLDER = Path("/run/sluice")

_OURS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OFF = "-1"  # libvirt's number of a domain that does not run
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's are


class ForeignRegion(HypervisorError):
    """What lies in a region's place is nobody's from whom a region is taken."""


def open_region(path: Path, account: tuple[int, int] | None, flags: int = os.O_RDWR) -> int:
    """A descriptor of a region that root or QEMU's `account` owns; raises HypervisorError.

    In /dev/shm nobody else can put another file in its place.
    """
    descriptor = _open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "is no regular file"
    elif found.st_nlink > 1:
        why = "has another name as well"
    elif found.st_uid not in {os.geteuid(), account[0] if account else 0}:
        why = f"belongs to uid {found.st_uid}, and neither to root nor to QEMU's account"
    if why:
        os.close(descriptor)
        raise ForeignRegion(
            f"{path} {why}, so it is not taken as a guest's region: power the domain off if it "
            "runs, remove the file as root, and see who made it"
        )
    return descriptor


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            what = {errno.ELOOP: "a link", errno.EISDIR: "a folder"}.get(error.errno, "a socket")
            raise ForeignRegion(
                f"{path} is {what} and no region: remove it as root, and see who made it"
            ) from error
        raise


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

        Its folder is the domain's own.
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

    def ensure(
        self, uuid: str, size: int, owner: tuple[int, int] | None = None, *, in_use: bool = True
    ) -> bool:
        """Makes the file with mode 0600 and exactly `size` bytes; True if it was not there.

        `owner` is the uid and gid that QEMU runs as, where that is not root; `in_use` says that a
        VM may map what is there. A file of another size or of anybody else is refused, and one of
        QEMU's account that is not the one made here is made anew unless a VM may map it. Takes the
        time that its memory takes to clear, about a second for 1 GiB. Under `locked`.
        """
        path = self.path(uuid)
        descriptor = self._make(path, size)
        created = descriptor is not None
        if descriptor is None:
            descriptor = self._open(path, uuid, owner)
            if not in_use and self._noted(uuid) != os.fstat(descriptor).st_ino:
                log.warning("%s is not the one that was made for its domain: made anew", path)
                os.close(descriptor)
                path.unlink(missing_ok=True)
                descriptor = self._make(path, size)
                if descriptor is None:
                    raise HypervisorError(f"{path} appears as often as it is removed: see who does")
                created = True
        try:
            found = os.fstat(descriptor)
            if not created:
                self._take(path, descriptor, size)
            os.fchmod(descriptor, 0o600)
            if owner is not None and (found.st_uid, found.st_gid) != owner:
                os.fchown(descriptor, *owner)
        finally:
            os.close(descriptor)
        record = self._record(uuid)
        record.parent.mkdir(parents=True, exist_ok=True)
        ours = self._owner(record) == self.libvirt
        run = self._line(uuid, 1) if ours else ""
        if not ours or self._noted(uuid) != found.st_ino:
            record.write_text(f"{self.libvirt}\n{run or _OFF}\n{found.st_ino}\n")
        return created

    def _make(self, path: Path, size: int) -> int | None:
        """A new file with all its memory, its descriptor; None where there is one."""
        try:
            descriptor = os.open(path, _OURS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return None
        try:
            # what has no memory yet would be a SIGBUS in worker and QEMU once /dev/shm is full
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise HypervisorError(
                f"a region of {size >> 20} MiB cannot be made: {self.folder}: {error.strerror}; "
                "choose a smaller --region-mib, free some, or remount it larger "
                "(mount -o remount,size=… /dev/shm)"
            ) from error
        return descriptor

    def _open(self, path: Path, uuid: str, owner: tuple[int, int] | None) -> int:
        try:
            return open_region(path, owner)
        except ForeignRegion:
            # the account may be another one today
            descriptor = _open(path, _OURS)
            if self._noted(uuid) == os.fstat(descriptor).st_ino:
                return descriptor
            os.close(descriptor)
            raise

    def _take(self, path: Path, descriptor: int, size: int) -> None:
        """One that is there already; it keeps what it has, and gets the memory that it lacks."""
        found = os.fstat(descriptor)
        if found.st_size not in (0, size):
            raise HypervisorError(
                f"{path} has {found.st_size >> 20} MiB and {size >> 20} MiB were asked for: "
                "`sluice vm detach` the domain first"
            )
        if found.st_size == size and found.st_blocks * _BLOCK_BYTES >= size:
            return
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if found.st_size == 0:
                raise HypervisorError(f"{path} gets no memory: {error.strerror}") from error
            # its VM runs with it, and has done so until now
            log.warning(
                "%s has not all of its memory, and %s has no more (%s): its VM and its sessions "
                "end when they need it; free some, or remount it larger",
                *(path, self.folder, error.strerror),
            )

    def remove(self, uuid: str) -> bool:
        """Deletes file and record; True if the file was there."""
        self._record(uuid).unlink(missing_ok=True)
        self._ended(uuid).unlink(missing_ok=True)
        try:
            self.path(uuid).unlink()
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def renew(self, uuid: str, size: int, owner: tuple[int, int] | None, *, in_use: bool) -> bool:
        """As `ensure`, with room for it; one of another size goes first, unless a VM may map it."""
        if not in_use and self._size(uuid) not in (None, 0, size):
            self.remove(uuid)
        self.check_room(uuid, size)
        return self.ensure(uuid, size, owner, in_use=in_use)

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
            made = self._line(uuid, 2)
            self._record(uuid).write_text(f"{self.libvirt}\n{run}\n{made}\n")
        self._ended(uuid).unlink(missing_ok=True)

    def ended_since(self, uuid: str, run: int) -> bool:
        """Whether the guest that was noted last is gone, though the domain may run again.

        libvirt's numbers begin again when libvirtd restarts; the hook's word does not.
        """
        if self._ended(uuid).exists():
            return True
        return self._line(uuid, 1) not in ("", _OFF, str(run))

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

    def _line(self, uuid: str, number: int) -> str:
        """Of the record: the libvirt, its number of the run, the file's inode; "" for none."""
        try:
            lines = self._record(uuid).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return ""
        return lines[number] if number < len(lines) else ""

    def _noted(self, uuid: str) -> int | None:
        """The inode of the file that was made for the domain, or taken from 0.1.0."""
        made = self._line(uuid, 2)
        return int(made) if made.isdecimal() else None

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
