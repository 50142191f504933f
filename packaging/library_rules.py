# SPDX-License-Identifier: Apache-2.0
"""What a library of the guest bundle may need and export, read from its ELF file.

Used by guest_bundle.py before it packs, and by tests/guest_runtime. Needs pyelftools.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

NEWEST_GLIBC = (2, 28)
#: Part of every glibc; nothing else may be needed in a guest.
ALLOWED_NEEDS = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
}
#: These must load where nothing else of the bundle is wanted.
ALONE = ("libcuda", "libcufile", "libcupti", "libcusparseLt", "libnvidia-ml", "libnvshmem_host")
#: What NVIDIA's libraries export, where the registry lists it: the forwarding libraries.
#: What the static runtime may leave to the program that is linked with it: functions that every
#: glibc from 2.28 on and every libstdc++ from GCC 7 on have.
EVERYWHERE = re.compile(
    r"_GLOBAL_OFFSET_TABLE_|_Unwind_Resume|__cxa_\w+|__gxx_personality_v0|__once_proxy"
    r"|__tls_get_addr|__stack_chk_fail|__dso_handle|_Zn[aw]m\w*|_Zd[al]Pv\w*"
    r"|_ZSt\d+__(once_call|once_callable|throw_\w+)"
    r"|dl(open|sym|error|close)|pthread_\w+|v?f?printf|v?snprintf|f(write|puts|putc|flush)"
    r"|getenv|mem(cpy|move|set|cmp|chr)|str(len|n?cmp|chr|rchr|tol|toul|toull)|std(err|out)"
    r"|abort|malloc|free|calloc|realloc"
)
LISTS = Path(__file__).resolve().parent.parent / "native" / "api" / "imported" / "libraries"
#: Library without its version → what the names that it exports look like, for the others.
EXPORTS = {
    "libcuda": r"cu[A-Z]\w*|sluice_\w+",  # the latter for the libraries beside it
    "libcudart": r"cuda[A-Z]\w*|__cuda\w+",
    "libcufile": r"cuFile\w+",
    "libcupti": r"cupti\w+|InitializeInjectionNvtx\w*|sluice_cupti",
    "libcusparseLt": r"cusparseLt\w+",
    "libnvidia-ml": r"nvml\w+",
    "libnvshmem_host": r"nvshmem\w+",
    "libsluice-audit": r"la_(version|objsearch|objopen|activity)|sluice_static_runtime_of",
}


def violations(path: Path, name: str, bundled: Collection[str] = ()) -> list[str]:
    """Every rule that the file breaks, a line each; `bundled` names the bundle's libraries."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        found = [*_needs(elf, name, bundled), *_versions(elf, name), *_search_path(elf, name)]
        if ".so" in name:
            found += _exports(elf, name)
        if name.endswith(tuple("0123456789")):
            found += _soname(elf, name)
    return found


def archive_violations(path: Path) -> list[str]:
    """The same for libcudart_static.a: what it leaves to whoever links it."""
    listed = subprocess.run(
        ["nm", "--undefined-only", "--format=posix", str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {line.split()[0] for line in listed.stdout.splitlines() if line.split()[1:2] == ["U"]}
    return [
        f"{path.name} needs {name}, which an old toolchain may not have"
        for name in sorted(names)
        if not EVERYWHERE.fullmatch(name)
    ]


def _dynamic(elf: ELFFile, tag: str, attribute: str) -> list[str]:
    # pyelftools names the attribute of a tag's string after the tag.
    return [
        str(getattr(entry, attribute))
        for section in elf.iter_sections()
        if isinstance(section, DynamicSection)
        for entry in section.iter_tags(tag)
    ]


def _stem(name: str) -> str:
    return name.partition(".so")[0]


def _needs(elf: ELFFile, name: str, bundled: Collection[str]) -> list[str]:
    allowed = ALLOWED_NEEDS | (set() if _stem(name) in ALONE else set(bundled))
    return [
        f"{name} needs {needed}, which a guest may not have"
        for needed in _dynamic(elf, "DT_NEEDED", "needed")
        if needed not in allowed
    ]


def _search_path(elf: ELFFile, name: str) -> list[str]:
    """A search path of the build machine would come before what the user set up."""
    return [
        f"{name} has a search path of its own: {path}"
        for tag, attribute in (("DT_RPATH", "rpath"), ("DT_RUNPATH", "runpath"))
        for path in _dynamic(elf, tag, attribute)
    ]


def _soname(elf: ELFFile, name: str) -> list[str]:
    names = _dynamic(elf, "DT_SONAME", "soname")
    return [] if names == [name] else [f"{name} has SONAME {names}"]


def _versions(elf: ELFFile, name: str) -> list[str]:
    found = []
    for section in elf.iter_sections():
        if not isinstance(section, GNUVerNeedSection):
            continue
        for library, versions in section.iter_versions():
            for version in versions:
                match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version.name)
                if match is None or (int(match[1]), int(match[2])) > NEWEST_GLIBC:
                    found.append(f"{name} needs {version.name} of {library.name}")
    return found


def _listed(name: str) -> set[str] | None:
    for path in LISTS.glob("*.json"):
        library = json.loads(path.read_text())
        exports = {row["name"] for row in library["exports"]}
        if library["soname"] == name:
            return exports
        for older in LISTS.parent.glob("cuda*/libraries.json"):
            for row in json.loads(older.read_text()):
                if (row["library"], row["soname"]) == (path.stem, name):
                    own = {function["name"] for function in row["functions"]}
                    return (exports | own) - set(row["lacks"])
    return None


def _exports(elf: ELFFile, name: str) -> list[str]:
    listed = _listed(name)
    if listed is None and _stem(name) not in EXPORTS:
        return [f"{name} is unknown: say in library_rules.EXPORTS which names it may export"]
    wanted = re.compile(EXPORTS.get(_stem(name), ""))
    exported = [
        symbol.name
        for section in elf.iter_sections()
        if isinstance(section, SymbolTableSection) and section.name == ".dynsym"
        for symbol in section.iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
    ]
    if not exported:
        return [f"{name} exports nothing"]
    foreign = [
        symbol
        for symbol in exported
        if not (symbol in listed if listed is not None else wanted.fullmatch(symbol))
    ]
    return (
        [f"{name} exports {', '.join(foreign[:5])}, which is none of its names"] if foreign else []
    )
