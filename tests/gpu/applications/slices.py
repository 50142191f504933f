# SPDX-License-Identifier: Apache-2.0
"""A folder of gibibytes in pieces that travel one by one and are unpacked as each arrives.

    python slices.py take NAME FROM INTO      # the pieces that are in FROM; again when more came
    python slices.py finish NAME FROM INTO    # the rest, and every file checked by its digest

`pack` cuts large files into slices, each compressed by itself, and puts small ones into one tar
that is cut likewise; a slice of zeros is not stored at all. A piece is some slices one behind
another. NAME.slices.json says which file each is of, and at what offset, so that pieces may come in
any order, whatever was left of them is unpacked by many processors at once, and nobody waits for
the last one with the whole work. Needs nothing but Python, as the machine that unpacks has little
else; packages.py packs with it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import lzma
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
SLICE = 32 * MIB
#: Files below this (bytes) are in the tar.
SMALL = MIB
BLOCK = MIB
#: Half of what 6 takes, for two hundredths more bytes.
PRESET = 4
TAR = "small-files.tar"


class SliceError(Exception):
    """A piece that is missing or is not what was packed; the text names it."""


@dataclass(frozen=True)
class Slice:
    """Part of a file."""

    file: str
    offset: int  #: in the file
    size: int  #: in the file
    piece: str
    start: int  #: in the piece
    packed: int  #: in the piece


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compressed(path: str, offset: int) -> bytes:
    """A slice of a file; nothing where all of it is zeros."""
    with Path(path).open("rb") as file:
        data = os.pread(file.fileno(), SLICE, offset)
    if data.count(0) == len(data):
        return b""
    return lzma.compress(data, preset=PRESET)


def pack_small(folder: Path, files: list[Path], archive: Path) -> None:
    """Small files into one tar, the same each time."""
    with tarfile.open(archive, "w") as tar:
        for path in files:
            said = tar.gettarinfo(path, str(path.relative_to(folder)))
            said.uid = said.gid = said.mtime = 0
            said.uname = said.gname = ""
            with path.open("rb") as file:
                tar.addfile(said, file)


def described(path: Path) -> dict[str, Any]:
    """What the list says of a file."""
    said = path.stat()
    return {"size": said.st_size, "mode": said.st_mode & 0o777, "sha256": digest(path)}


def pack(folder: Path, name: str, out: Path, piece_bytes: int, jobs: int) -> list[Path]:
    """The pieces of all files below `folder`, in `out`, and the list of their slices."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}.[0-9][0-9][0-9]"):
        old.unlink()
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    with tempfile.TemporaryDirectory(prefix="slices-") as temporary:
        archive = Path(temporary) / TAR
        pack_small(folder, [p for p in files if p.stat().st_size < SMALL], archive)
        large = {str(p.relative_to(folder)): p for p in files if p.stat().st_size >= SMALL}
        large[TAR] = archive
        work = [(n, at) for n, p in large.items() for at in range(0, p.stat().st_size, SLICE)]
        slices, pieces = [], Pieces(out, name, piece_bytes)
        with ProcessPoolExecutor(jobs) as pool:
            paths = [str(large[file]) for file, _ in work]
            done = pool.map(compressed, paths, [at for _, at in work])
            for (file, offset), data in zip(work, done, strict=True):
                if not data:
                    continue
                piece, start = pieces.add(data)
                size = min(SLICE, large[file].stat().st_size - offset)
                slices.append(Slice(file, offset, size, piece, start, len(data)))
        listed = {
            "files": {
                file: {
                    "size": p.stat().st_size,
                    "mode": p.stat().st_mode & 0o777,
                    "sha256": digest(p),
                }
                for file, p in large.items()
            },
            "pieces": {path.name: digest(path) for path in pieces.paths},
            "slices": [asdict(each) for each in slices],
        }
    (out / f"{name}.slices.json").write_text(json.dumps(listed, indent=1) + "\n")
    return pieces.paths


class Pieces:
    """Files of at most so many bytes; each slice into the first that has room."""

    def __init__(self, out: Path, name: str, most: int) -> None:
        self.paths: list[Path] = []
        self._out, self._name, self._most = out, name, most

    def add(self, data: bytes) -> tuple[str, int]:
        """Name of the piece that has these bytes now, and where in it."""
        if len(data) > self._most:
            raise SliceError(
                f"a slice of {len(data)} bytes needs pieces of more than {self._most} bytes"
            )
        room = (p for p in self.paths if p.stat().st_size + len(data) <= self._most)
        path = next(room, None)
        if path is None:
            path = self._out / f"{self._name}.{len(self.paths):03}"
            path.write_bytes(b"")
            self.paths.append(path)
        start = path.stat().st_size
        with path.open("ab") as file:
            file.write(data)
        return path.name, start


def listing(name: str, pieces: Path) -> dict[str, Any]:
    """What was packed."""
    path = pieces / f"{name}.slices.json"
    if not path.exists():
        raise SliceError(f"{path} is not there: it is written beside the pieces")
    said: dict[str, Any] = json.loads(path.read_text())
    return said


def place(into: Path, file: str) -> Path:
    """Where a file of the list belongs; SliceError for one that leads out of the folder."""
    path = into / file
    if not path.resolve().is_relative_to(into.resolve()):
        raise SliceError(f"{file!r} does not lie in the folder")
    return path


def write_slice(into: Path, each: Slice, packed: bytes) -> None:
    """Puts a slice where it belongs; blocks of zeros stay holes."""
    data = lzma.decompress(packed)
    if len(data) != each.size:
        raise SliceError(f"a slice of {each.file} has {len(data)} bytes, not {each.size}")
    with place(into, each.file).open("r+b") as file:
        for at in range(0, len(data), BLOCK):
            block = data[at : at + BLOCK]
            if block.count(0) != len(block):
                os.pwrite(file.fileno(), block, each.offset + at)


def take(name: str, pieces: Path, into: Path) -> list[str]:
    """Unpacks the pieces that are there and were not taken before; returns those still missing."""
    said = listing(name, pieces)
    into.mkdir(parents=True, exist_ok=True)
    with (into / f".{name}.taken").open("a+") as taken, ThreadPoolExecutor() as pool:
        fcntl.flock(taken, fcntl.LOCK_EX)
        taken.seek(0)
        done = set(taken.read().split())
        for file, about in said["files"].items():
            path = place(into, file)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                os.truncate(path, about["size"])
        slices = [Slice(**each) for each in said["slices"]]
        for piece, expected in said["pieces"].items():
            path = pieces / piece
            if piece in done or not path.exists():
                continue
            if digest(path) != expected:
                raise SliceError(f"{piece} is not the piece that was packed")
            data = path.read_bytes()
            of_piece = [each for each in slices if each.piece == piece]
            parts = [data[each.start : each.start + each.packed] for each in of_piece]
            list(pool.map(write_slice, [into] * len(parts), of_piece, parts))
            taken.write(f"{piece}\n")
            taken.flush()
            done.add(piece)
    return [piece for piece in said["pieces"] if piece not in done]


def wrong_files(into: Path, files: dict[str, Any]) -> Iterator[str]:
    """Those that are not what was packed."""
    with ThreadPoolExecutor() as pool:
        found = pool.map(digest, [place(into, file) for file in files])
        for file, is_now in zip(files, found, strict=True):
            if is_now != files[file]["sha256"]:
                yield file


def finish(name: str, pieces: Path, into: Path) -> None:
    """Takes what is left, checks all and unpacks the small files."""
    if missing := take(name, pieces, into):
        raise SliceError(f"{name}: these pieces have not come: {', '.join(missing)}")
    files = listing(name, pieces)["files"]
    if wrong := list(wrong_files(into, files)):
        raise SliceError(f"{name}: not as packed: {', '.join(wrong)}")
    for file, about in files.items():
        place(into, file).chmod(about["mode"])
    if TAR in files:
        with tarfile.open(into / TAR) as tar:
            tar.extractall(into, filter="data")
        (into / TAR).unlink()
    (into / f".{name}.taken").unlink()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Pieces of a large folder, unpacked.")
    parser.add_argument("call", choices=("take", "finish"))
    parser.add_argument("name")
    parser.add_argument("pieces", type=Path)
    parser.add_argument("into", type=Path)
    options = parser.parse_args()
    try:
        if options.call == "take":
            missing = take(options.name, options.pieces, options.into)
            print(f"{options.name}: {len(missing)} pieces to come")
        else:
            finish(options.name, options.pieces, options.into)
            print(f"{options.name}: whole in {options.into}")
    except SliceError as error:
        print(f"slices: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
