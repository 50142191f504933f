# SPDX-License-Identifier: Apache-2.0
"""A support bundle: a tar.gz of texts without secrets, with a manifest of what is in and what not.

Used by support_bundle.py here and by support/ on hosts. Everything passes SecretRemoval, names and
reasons too. Files are opened without following links and only if they are plain ones, since users
and sessions write into folders that root collects from; each has a bound, and so has the whole.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .secret_removal import SecretRemoval

FORMAT = 1
MOST_BYTES = 256 << 20
MOST_COMMAND_BYTES = 2 << 20
COMMAND_SECONDS = 20


_PLAIN = {"LC_ALL": "C", "SYSTEMD_PAGER": "", "PAGER": "cat"}


class _Member(NamedTuple):
    name: str
    data: bytes
    source: str
    note: str


class BundleFile:
    """What was collected, in memory until it is written."""

    def __init__(self, secrets: SecretRemoval, most_bytes: int = MOST_BYTES) -> None:
        self.secrets = secrets
        self._most_bytes = most_bytes
        self._members: list[_Member] = []
        self._left_out: list[dict[str, str]] = []
        self._bytes = 0

    @property
    def names(self) -> list[str]:
        """Of the files that are in it so far."""
        return [member.name for member in self._members]

    def add_text(self, name: str, text: str, source: str, note: str = "") -> None:
        """A file of the bundle; `source` is where the text is from."""
        data = self.secrets.clean(text).encode("utf-8", "replace")
        if self._bytes + len(data) > self._most_bytes:
            self.leave_out(source, f"the bundle would have more than {self._most_bytes >> 20} MiB")
            return
        self._bytes += len(data)
        self._members.append(_Member(_safe(name), data, source, note))

    def add_json(self, name: str, value: Any, source: str) -> None:
        """A value as JSON; what is secret by its field's name is taken out as well."""
        self.add_text(name, json.dumps(value, indent=1, sort_keys=True, default=str), source)

    def add_file(
        self,
        name: str,
        path: Path,
        most_bytes: int,
        change: Callable[[str], str] = str,
    ) -> bool:
        """The end of a plain file, after `change`; else says why it is left out."""
        try:
            text, size = read_end(path, most_bytes)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.leave_out(str(path), str(error.strerror or error))
            return False
        note = ""
        if size > most_bytes:
            note = f"the last {most_bytes} of {size} bytes"
            self.leave_out(str(path), f"all but {note}")
        self.add_text(name, change(text), str(path), note)
        return True

    def add_command(
        self, name: str, words: Sequence[str], seconds: float = COMMAND_SECONDS
    ) -> None:
        """What a program prints; nothing where there is no such program."""
        shown = " ".join(words)
        try:
            done = subprocess.run(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                env={**os.environ, **_PLAIN, "PATH": _search_path()},
            )
        except FileNotFoundError:
            self.leave_out(shown, "there is no such program here")
            return
        except subprocess.TimeoutExpired:
            self.leave_out(shown, f"it did not end within {seconds:.0f} s")
            return
        except OSError as error:
            self.leave_out(shown, str(error.strerror))
            return
        text = done.stdout[-MOST_COMMAND_BYTES:].decode("utf-8", "replace")
        self.add_text(name, f"$ {shown}\n{text}(status {done.returncode})\n", shown)

    def leave_out(self, what: str, why: str) -> None:
        """Notes that something is not in it."""
        self._left_out.append({"what": what, "why": why})

    def manifest(self, **about: Any) -> dict[str, Any]:
        """What is in the bundle and what is not."""
        return {
            "format": FORMAT,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **about,
            "secrets_taken_out": self.secrets.removed,
            "files": [
                {
                    "name": member.name,
                    "bytes": len(member.data),
                    "sha256": hashlib.sha256(member.data).hexdigest(),
                    "from": member.source,
                    **({"note": member.note} if member.note else {}),
                }
                for member in self._members
            ],
            "left_out": self._left_out,
        }

    def write(self, target: Path, **about: Any) -> int:
        """Writes it, for its owner only, in one step; its size. Raises OSError, FileExistsError."""
        text = json.dumps(self.manifest(**about), indent=1)
        members = [_Member("manifest.json", self.secrets.clean(text).encode(), "", "")]
        members += self._members
        folder = target.name.removesuffix(".tar.gz")
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                _pack(raw, folder, members)
            os.link(partial, target)  # which refuses a file that is there already
        finally:
            partial.unlink()
        return target.stat().st_size


def _pack(raw: BinaryIO, folder: str, members: Sequence[_Member]) -> None:
    # closed in turn: a tar's end is written before the gzip's
    with contextlib.ExitStack() as opened:
        zipped = opened.enter_context(gzip.GzipFile("", "wb", 6, raw))
        archive = opened.enter_context(
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT)
        )
        for member in members:
            entry = tarfile.TarInfo(f"{folder}/{member.name}")
            entry.size, entry.mode, entry.mtime = len(member.data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(member.data))


def _search_path() -> str:
    """A user's PATH need not have where ldconfig is."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def read_end(path: Path, most_bytes: int) -> tuple[str, int]:
    """The end of a plain file from the start of a line on, and its whole size; raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, "it is a link, and links are not followed") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "it is no plain file")
        if about.st_nlink > 1 and about.st_uid != os.geteuid():
            raise OSError(0, "it has several names and is another user's")
        size = about.st_size
        if size > most_bytes:
            file.seek(size - most_bytes)
            file.readline()  # the rest of a line that began before; a secret in it would be cut
        # files of /proc have no size
        data = file.read(most_bytes)
    return data.decode("utf-8", "replace"), max(size, len(data))


def _safe(name: str) -> str:
    """A path inside of the bundle, whatever names the files had."""
    parts = [re.sub(r"[^A-Za-z0-9._@+-]", "_", part)[:120] for part in name.split("/")]
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "unnamed"
