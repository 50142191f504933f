# SPDX-License-Identifier: Apache-2.0
"""What an entry of the matrix is made of. Data only; whoever runs it is running.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .carried import Carried

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Snapshot:
    """Sources that no package holds: folders of a Git repository at one commit.

    Whoever prepares the entry has the repository (`--repositories`, a folder with OWNER+NAME or
    NAME in it).
    """

    repository: str  #: OWNER/NAME
    commit: str  #: a tag, or 40 digits
    folders: tuple[str, ...]  #: what is taken of it
    of: str = ""  #: the package whose test suite this is, in the version that requirements/ pins


@dataclass(frozen=True)
class Place:
    """Where an entry was unpacked."""

    python: Path  #: with the entry's packages
    packages: Path  #: its site-packages
    sources: Path  #: its snapshots, each folder as it is in its repository
    beside: tuple[Path, ...] = ()  #: site-packages of the interpreter beside which it is installed

    def package(self, *parts: str) -> Path:
        """A path in the installed packages, its own before those beside it."""
        found = (folder.joinpath(*parts) for folder in (self.packages, *self.beside))
        return next((path for path in found if path.exists()), self.packages.joinpath(*parts))


def each_part(program: Path, names: Iterable[str]) -> Callable[[Place], dict[str, list[str]]]:
    """The commands of a program that is told which of its parts to run."""
    return lambda place: {name: [str(place.python), str(program), name] for name in names}


@dataclass(frozen=True)
class Suite:
    """Test files of pytest, each in a process of its own; a case is a test.

    `left_out` are tests, by a substring of their names, that tell nothing of a GPU or that no two
    runs agree about, each with the reason.
    """

    name: str
    files: Callable[[Place], list[Path]]
    options: tuple[str, ...] = ()
    conftest: str = ""  #: of the sources, where it is not in a folder above the files
    imports: tuple[str, ...] = ()  #: folders of the sources that its files import from
    left_out: dict[str, str] = field(default_factory=dict)
    #: Variables that name what was built for it.
    environment: Callable[[Place], dict[str, str]] = lambda _: {}


@dataclass(frozen=True)
class Programs:
    """Programs, each a case: it has to end with status 0 and to print natively what it prints here.

    Lines that begin with `# ` are no part of what is compared.
    """

    name: str
    commands: Callable[[Place], dict[str, list[str]]]


@dataclass(frozen=True)
class Entry:
    """An application."""

    name: str  #: as the command line and the results have it
    title: str  #: as the page has it
    what: str  #: what of it is run, a clause
    parts: tuple[Suite | Programs, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    #: What is compiled, of (its snapshots, where to): `prepare` does so, or `unpack` there.
    build: Callable[[Path, Path], None] | None = None
    divert: bool = False  #: NVIDIA's runtime is linked into it (docs/guest.md)
    environment: dict[str, str] = field(default_factory=dict)
    versions: tuple[str, ...] = ()  #: packages whose versions its results name
    gibibytes: float = 0.5  #: what its packages come to, about
    seconds: int = 600  #: for one process
    gpu_mib: int = 16384
    carried: Carried | None = None  #: where its packages are thinned to travel
    figures: tuple[str, ...] = ()  #: of docs/measurements: SUBJECT/NAME, said beside the results
    not_run: str = ""  #: why there is no result yet, where it is not only that nobody ran it

    @property
    def requirements(self) -> Path:
        """Its packages, pinned, with their hashes (`lock` writes them)."""
        return HERE / "requirements" / f"{self.name}.txt"
