# SPDX-License-Identifier: Apache-2.0
"""What native files ask of CUDA: which of it our libraries serve, and what cannot work.

Used by program_check.py for a program and the libraries that come with it, by python_check.py for
the native parts of Python packages. Reads files, loads none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .elf_file import ElfError, ElfFile, read_elf
from .findings import Finding, bad, note, ok
from .installation import find_installation
from .installation_check import relink_advice
from .static_runtime import StaticRuntime, known_runtime, our_runtimes, wanted
from .substitution import CUDA, LOCAL, Served

#: What our own static runtime says of itself (native/client/cudart/static_driver.cc).
_OUR_MARK = b"sluice: the CUDA runtime, relinked\0"
#: Strings of the runtime's error tables, which survive stripping; together nothing else has them.
_STATIC_MARKS = (
    b"cudaErrorCudartUnloading\0",
    b"CUDA driver version is insufficient for CUDA runtime version\0",
)
_REGISTER = "__cudaRegisterFatBinary"
_MOST_NAMED = 3
_DIVERT = (
    "start it by `sluice run --static-runtime divert` (client.conf: static_runtime = divert), "
    "which changes its code in the memory of your own process"
)


@dataclass
class Seen:
    """What some files need of CUDA."""

    #: What they need → the file of ours that it gets.
    replaced: dict[str, Path] = field(default_factory=dict)
    #: What they need → ours, which is of another major version, and who needs it.
    other_version: dict[str, tuple[str, Path]] = field(default_factory=dict)
    #: NVIDIA's own, which no library of this installation stands for, and which were not looked at.
    theirs: set[str] = field(default_factory=set)
    #: Compilers and the like, which work as they are.
    local: set[str] = field(default_factory=set)
    #: Files that carry the CUDA runtime inside → which, where it is known.
    static: dict[Path, StaticRuntime | None] = field(default_factory=dict)
    #: Major version of CUDA → the first file that needs a library of it, or carries its runtime.
    versions: dict[str, Path] = field(default_factory=dict)

    def add(self, elf: ElfFile, served: Served) -> None:
        """Takes in one file."""
        for name in elf.needed:
            ours = served.replacement(name)
            other = served.other_version(name)
            if ours is not None:
                self.replaced[name] = ours
                if version := served.cuda_version(ours.name):
                    self.versions.setdefault(version, elf.path)
            elif LOCAL.fullmatch(name):
                self.local.add(name)
            elif other is not None:
                self.other_version.setdefault(name, (other, elf.path))
            elif CUDA.fullmatch(name):
                self.theirs.add(name)
        if has_static_runtime(elf):
            runtime = self.static[elf.path] = known_runtime(elf.path)
            if runtime is not None:
                self.versions.setdefault(str(runtime.major), elf.path)

    @property
    def anything(self) -> bool:
        """Whether any of it has to do with CUDA."""
        return bool(self.replaced or self.other_version or self.theirs or self.static)

    @property
    def has_choice(self) -> bool:
        """Whether there are files for several versions of CUDA, and for one that is served."""
        return bool(self.versions) and (len(self.versions) > 1 or bool(self.other_version))

    def findings(self, subject: str, who: str, package: bool = False) -> list[Finding]:
        """What `sluice check` says of it; `who` needs it all.

        A `package` was built by others, and chooses among its files as it is loaded.
        """
        results = []
        if package and self.has_choice:
            results.append(self._of_choice(subject, who))
        else:
            for name, (ours, path) in sorted(self.other_version.items()):
                results.append(
                    bad(
                        subject,
                        f"{path} needs {name}, and this installation has {ours}",
                        f"rebuild or install it for the CUDA version of {ours}, or install the "
                        "bundle of its own",
                    )
                )
            if len(self.versions) > 1:
                results.append(mixes(subject, who, self.versions))
        results += self._of_static_runtimes(subject, package)
        if self.replaced:
            results.append(
                ok(
                    subject,
                    f"{who} needs {', '.join(sorted(self.replaced))}: these are replaced"
                    + (
                        f", for CUDA {next(iter(self.versions))}" if len(self.versions) == 1 else ""
                    ),
                )
            )
        if self.theirs:
            results.append(
                note(
                    subject,
                    f"{who} needs {', '.join(sorted(self.theirs))} too, which this installation "
                    "has not and which were not found here: they work as far as their own CUDA "
                    "calls do, which `sluice check` says of a library, too",
                )
            )
        return results

    def _of_choice(self, subject: str, who: str) -> Finding:
        """Of files for several versions of CUDA, one of which is loaded."""
        others: dict[str, list[str]] = {}
        for name, (_, path) in sorted(self.other_version.items()):
            others.setdefault(path.name, []).append(name)
        lacking = "; ".join(f"{file} needs {', '.join(names)}" for file, names in others.items())
        return note(
            subject,
            f"{who} has files for CUDA {' and '.join(sorted(self.versions))}, of which it loads "
            f"those that it chooses itself{lacking and f'; not served here: {lacking}'}",
        )

    def _of_static_runtimes(self, subject: str, package: bool) -> list[Finding]:
        """By what would become of each: diverted, diverted if it is asked for, or not known."""
        ours, diverts = our_runtimes(find_installation()), wanted(os.environ)
        known: dict[str, list[Path]] = {}
        unknown = []
        for path, runtime in self.static.items():
            if runtime is not None and runtime.major in ours:
                known.setdefault(runtime.version, []).append(path)
            else:
                unknown.append(path)
        named = _some if package else _all
        results = []
        for version, files in sorted(known.items()):
            inside = f"{named(files)} {_carry(files)} the CUDA runtime inside ({version})"
            if diverts:
                results.append(
                    ok(subject, f"{inside}: its functions lead to ours (static_runtime = divert)")
                )
            else:
                results.append(
                    bad(
                        subject,
                        f"{inside}, which talks to NVIDIA's driver by private tables",
                        f"{_DIVERT}; or build it so: {relink_advice()}"
                        if package
                        else f"{relink_advice()}; or {_DIVERT}",
                    )
                )
        if unknown:
            results.append(
                bad(
                    subject,
                    f"{named(unknown)} {_carry(unknown)} the CUDA runtime inside "
                    "(libcudart_static), which talks to NVIDIA's driver by private tables, of a "
                    "version that cannot be diverted here",
                    relink_advice(),
                )
            )
        return results


def mixes(subject: str, who: str, versions: Mapping[str, Path]) -> Finding:
    """That `who` has libraries of several CUDA versions, each needed by a file."""
    needed = (f"{path} needs CUDA {v}'s" for v, path in sorted(versions.items()))
    return bad(
        subject,
        f"{who} mixes libraries of several CUDA versions: {', '.join(needed)}",
        "install packages that are for one of them: their structures differ, and a program has one",
    )


def _all(files: list[Path]) -> str:
    return ", ".join(map(str, files))


def _some(files: list[Path]) -> str:
    """The first of them, and how many more there are: a package may have hundreds."""
    more = len(files) - _MOST_NAMED
    return _all(files[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _carry(files: list[Path]) -> str:
    return "carries" if len(files) == 1 else "carry"


def has_static_runtime(elf: ElfFile) -> bool:
    """By symbols where there are any, else by what stripping leaves."""
    if (elf.soname or "").startswith("libcudart") or _REGISTER in elf.undefined:
        return False
    if elf.data.find(_OUR_MARK) >= 0:
        return False
    return _REGISTER in elf.defined or all(elf.data.find(mark) >= 0 for mark in _STATIC_MARKS)


def look_at(paths: Iterable[Path], served: Served) -> Seen:
    """Takes in files; those that are no loadable libraries are passed over."""
    seen = Seen()
    names = set()
    for path in paths:
        try:
            seen.add(read_elf(path, symbols=(_REGISTER,)), served)
        except ElfError:
            continue
        names.add(path.name)
    seen.theirs -= names
    return seen
