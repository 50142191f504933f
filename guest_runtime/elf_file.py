# SPDX-License-Identifier: Apache-2.0
"""Reads of an ELF file what tells whether a program's CUDA calls can be redirected.

Used by program_check.py. 64-bit little-endian x86-64 files only; every offset is checked against
the file, since a user may point it at anything. ElfError says what is wrong with a file.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_EM_X86_64 = 62
_MOST_SYMBOLS = 4_000_000


class ElfError(Exception):
    """A file that is no ELF file that this machine could load."""


@dataclass
class ElfFile:
    """The parts of an ELF file that matter here."""

    path: Path
    interpreter: str | None = None
    soname: str | None = None
    needed: list[str] = field(default_factory=list)
    rpath: str | None = None
    runpath: str | None = None
    #: Names of the symbols that the file defines, dynamic or not; a stripped file has few.
    defined: set[str] = field(default_factory=set)
    #: Names that it takes from elsewhere.
    undefined: set[str] = field(default_factory=set)
    #: The bytes, for marks that survive stripping; a map of the file, so a large one costs little.
    data: bytes | mmap.mmap = b""

    @property
    def is_static(self) -> bool:
        """Whether no dynamic loader has a part in it."""
        return self.interpreter is None and not self.needed


def is_elf(path: Path) -> bool:
    """Whether the file starts like an ELF file."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def read_elf(path: Path, symbols: tuple[str, ...] | None = None) -> ElfFile:
    """Parses `path`; ElfError if it is no loadable x86-64 ELF file.

    With `symbols`, the symbol tables are read only if the file holds one of these names anywhere.
    """
    data: bytes | mmap.mmap
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        raise ElfError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if data[:4] != b"\x7fELF":
        raise ElfError(f"{path} is no ELF file")
    if len(data) < 64 or data[4] != 2 or data[5] != 1:
        raise ElfError(f"{path} is no 64-bit little-endian program")
    if struct.unpack_from("<H", data, 18)[0] != _EM_X86_64:
        raise ElfError(f"{path} is not for x86-64")
    found = ElfFile(path, data=data)
    try:
        _read_segments(found)
        if symbols is None or any(data.find(name.encode() + b"\0") >= 0 for name in symbols):
            _read_symbols(found)
    except (struct.error, IndexError, ValueError) as error:
        raise ElfError(f"{path} is damaged: {error}") from error
    return found


def _read_segments(elf: ElfFile) -> None:
    data = elf.data
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for index in range(count):
        kind, _, at, address, _, in_file, _, _ = struct.unpack_from(
            "<IIQQQQQQ", data, offset + index * size
        )
        if kind == _PT_LOAD:
            loads.append((address, at, in_file))
        elif kind == _PT_DYNAMIC:
            dynamic = (at, in_file)
        elif kind == _PT_INTERP:
            elf.interpreter = _text(data, at)
    if dynamic is None:
        return
    entries = list(_dynamic_entries(data, *dynamic))
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        return
    table = _file_offset(loads, strings)
    for tag, value in entries:
        if tag == _DT_NEEDED:
            elf.needed.append(_text(data, table + value))
        elif tag == _DT_SONAME:
            elf.soname = _text(data, table + value)
        elif tag == _DT_RPATH:
            elf.rpath = _text(data, table + value)
        elif tag == _DT_RUNPATH:
            elf.runpath = _text(data, table + value)


def _dynamic_entries(data: bytes | mmap.mmap, at: int, size: int) -> Iterator[tuple[int, int]]:
    for offset in range(at, at + size - 15, 16):
        tag, value = struct.unpack_from("<QQ", data, offset)
        if tag == 0:
            return
        yield tag, value


def _read_symbols(elf: ElfFile) -> None:
    data = elf.data
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, _ = struct.unpack_from("<HHH", data, 58)
    if offset == 0:
        return
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    for header in headers:
        kind, at, length, link = header[1], header[4], header[5], header[6]
        if kind not in (_SHT_SYMTAB, _SHT_DYNSYM):
            continue
        if link >= count or length // 24 > _MOST_SYMBOLS:
            raise ValueError("its symbol table cannot be right")
        strings, strings_end = headers[link][4], headers[link][4] + headers[link][5]
        for entry in range(at, at + length - 23, 24):
            name, _, _, section = struct.unpack_from("<IBBH", data, entry)
            if name == 0 or strings + name >= strings_end:
                continue
            text = _text(data, strings + name)
            (elf.defined if section else elf.undefined).add(text)


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, at, size in loads:
        if start <= address < start + size:
            return at + address - start
    raise ValueError(f"address {address:#x} is in no segment")


def _text(data: bytes | mmap.mmap, at: int) -> str:
    if not 0 <= at < len(data):
        raise ValueError(f"offset {at} is outside the file")
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError("a name has no end")
    return data[at:end].decode("utf-8", "replace")
