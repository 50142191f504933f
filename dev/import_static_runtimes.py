# SPDX-License-Identifier: Apache-2.0
"""Writes native/api/static_runtimes.lock: where NVIDIA's static CUDA runtimes have their functions.

    python dev/import_static_runtimes.py [VERSION ...]

Each `libcudart_static.a` of NVIDIA's wheels on PyPI (from 12.9 on; older wheels have none) is one
object with one `.text`, which linkers place whole. Of each version the file says how large that is,
at which offset each public function begins, and what its first bytes are, up to the first that a
linker fills in; and which functions of other libraries all of them import. Versions whose text is
the same are one entry. No code of NVIDIA's is in the file but those bytes' checksums. Of older
versions it says which functions they have, as their shared library exports them: in 12.9 and later
it has the same.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import iter_unpack, unpack_from

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "native" / "api" / "static_runtimes.lock"
VERSIONS = (
    *("12.9.37", "12.9.79", "13.0.48", "13.0.88", "13.0.96", "13.1.80", "13.2.51", "13.2.75"),
    *("13.2.86", "13.3.29", "13.4.49", "13.4.92", "13.5.37"),
)
#: Of which the wheels have the shared library alone.
OLDER = (
    *("12.0.107", "12.0.146", "12.1.55", "12.1.105", "12.2.53", "12.2.128", "12.2.140", "12.3.52"),
    *("12.3.101", "12.4.99", "12.4.127", "12.5.39", "12.5.82", "12.6.37", "12.6.68", "12.6.77"),
    *("12.8.57", "12.8.90"),
)
#: How much of a function is compared, at most; and how many bytes before a relocation a linker may
#: change with it.
MOST_BYTES, BEFORE_RELOCATION = 16, 4
JUMP_BYTES = 13  #: that have room at the beginning of each function
KEY_BYTES = 8

HEADER = """\
# Written by dev/import_static_runtimes.py: where NVIDIA's static CUDA runtimes have functions.
#
# imports NAME...: undefined symbols of all of them
# release VERSION,... NAME...: has the functions of the first runtime but these
# runtime VERSION,... TEXT_BYTES FUNCTION HEAD: that function's first 8 bytes are looked for
# NAME OFFSET BYTES CHECKSUM: a public function: the checksum (FNV-1a, 32 bits) of so many bytes
"""


@dataclass
class Runtime:
    """One text: `functions` by name (offset, bytes compared, checksum)."""

    versions: list[str]
    text_bytes: int
    key: str
    key_bytes: str = ""  #: in hexadecimal digits
    functions: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)


def fetch(version: str, folder: Path, file: str = "libcudart_static.a") -> bytes:
    """A library of a version's wheel: the archive."""
    name = "nvidia-cuda-runtime" + ("-cu12" if version.startswith("12.") else "")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*command, f"{name}=={version}"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (inside,) = (n for n in opened.namelist() if n.endswith(f"/{file}"))
        return opened.read(inside)


def members(archive: bytes) -> Iterator[bytes]:
    """The files in an ar archive."""
    stream = io.BytesIO(archive)
    assert stream.read(8) == b"!<arch>\n"
    while head := stream.read(60):
        size = int(head[48:58])
        yield stream.read(size)
        stream.read(size & 1)


def checksum(data: bytes) -> int:
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def read(version: str, archive: bytes) -> Runtime:
    """What there is to know of a version; AssertionError where it is not as all others are."""
    (data,) = (m for m in members(archive) if m[:4] == b"\x7fELF")

    def text_at(table: tuple[int, ...], offset: int) -> str:
        start = table[4] + offset
        return data[start : data.index(b"\0", start)].decode()

    (at,) = unpack_from("<Q", data, 40)
    count, of_names = unpack_from("<HH", data, 60)
    sections = [unpack_from("<IIQQQQIIQQ", data, at + 64 * i) for i in range(count)]
    by_name = {text_at(sections[of_names], s[0]): i for i, s in enumerate(sections)}
    text, moved, symbols = (sections[by_name[n]] for n in (".text", ".rela.text", ".symtab"))
    code = data[text[4] : text[4] + text[5]]
    relocations = sorted(
        row[0] for row in iter_unpack("<QQq", data[moved[4] : moved[4] + moved[5]])
    )
    names = sections[symbols[6]]
    known = [
        (text_at(names, row[0]), row[1] >> 4, row[3], row[4])
        for row in iter_unpack("<IBBHQQ", data[symbols[4] : symbols[4] + symbols[5]])
    ]
    public = {
        name: offset
        for name, binding, section, offset in known
        if binding == 1 and section == by_name[".text"] and name.startswith(("cuda", "__cuda"))
    }
    begins = sorted({*(o for _, _, section, o in known if section == by_name[".text"]), len(code)})
    found = Runtime([version], len(code), "")
    found.imports = {name for name, binding, section, _ in known if binding == 1 and section == 0}
    assert len(set(public.values())) == len(public), "two functions are one"
    for name, offset in sorted(public.items()):
        end = next(b for b in begins if b > offset)
        assert offset % 16 == 0, name
        assert end - offset >= JUMP_BYTES, name
        filled = next((r for r in relocations if r >= offset), end) - BEFORE_RELOCATION
        compared = min(MOST_BYTES, end - offset, max(filled - offset, 0))
        found.functions[name] = (offset, compared, checksum(code[offset : offset + compared]))
    # What is looked for begins as few other functions do.
    heads = Counter(code[i : i + KEY_BYTES] for i in range(0, len(code) - KEY_BYTES, 16))
    found.key = min(
        (n for n, (_, compared, _) in found.functions.items() if compared >= KEY_BYTES),
        key=lambda n: (heads[code[public[n] : public[n] + KEY_BYTES]], n),
    )
    found.key_bytes = code[public[found.key] : public[found.key] + KEY_BYTES].hex()
    return found


def exported(library: bytes) -> set[str]:
    """The public functions of a shared runtime."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        command = ["nm", "--dynamic", "--defined-only", "--format=posix", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in said.splitlines())
    return {row[0].partition("@")[0] for row in rows if row[1] == "T"}


def releases(first: Runtime) -> list[str]:
    """The lines of older versions."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for version in OLDER:
        with tempfile.TemporaryDirectory() as folder:
            names = exported(fetch(version, Path(folder), "libcudart.so.12"))
        assert names <= first.functions.keys(), version
        lacking.setdefault(tuple(sorted(first.functions.keys() - names)), []).append(version)
    return [" ".join(["release", ",".join(v), *lacked]) for lacked, v in lacking.items()]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Imports NVIDIA's static CUDA runtimes.")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    all_of_them: list[Runtime] = []
    for version in parser.parse_args().versions:
        with tempfile.TemporaryDirectory() as folder:
            one = read(version, fetch(version, Path(folder)))
        same = [r for r in all_of_them if r.functions == one.functions]
        if same:
            same[0].versions.append(version)
        else:
            all_of_them.append(one)
        print(f"{version}: {len(one.functions)} functions{' as before' if same else ''}")
    imports = set.intersection(*(r.imports for r in all_of_them))
    lines = [HEADER, f"imports {' '.join(sorted(imports))}", *releases(all_of_them[0])]
    for r in all_of_them:
        lines.append(f"runtime {','.join(r.versions)} {r.text_bytes} {r.key} {r.key_bytes}")
        lines += [f"{n} {o:x} {c} {s:08x}" for n, (o, c, s) in r.functions.items()]
    TABLE.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
