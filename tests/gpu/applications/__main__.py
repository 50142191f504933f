# SPDX-License-Identifier: Apache-2.0
"""The command line: see the package's own words."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

from . import __doc__ as about
from .carried import ARCHITECTURE, notes
from .comparing import both, by_file, compare
from .details import logged, write_cases, write_said
from .entries import ENTRIES
from .entry import Entry, Place, Programs, Suite
from .packages import (
    MIB,
    PIECE_BYTES,
    PackageError,
    lock,
    other_suites,
    place_of,
    prepare,
    unpack,
    versions,
)
from .results import (
    KEPT,
    MOST_NAMED,
    RAN,
    ROOT,
    FileCounts,
    Result,
    ResultError,
    keep,
    known,
    write,
)
from .running import FileRun, Way, run_part, size_of
from .slices import SliceError

sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "dev"), str(ROOT / "tests" / "harness")]

#: Folders of a home in which programs keep what they compiled for a GPU.
COMPILED = (".cupy", ".triton", ".cache")
INTO = ROOT / "build" / "applications" / "entries"
PIECES = ROOT / "dist" / "applications"


def chosen(names: list[str]) -> list[Entry]:
    """The entries of those names; all where none is named."""
    if unknown := set(names) - set(ENTRIES):
        raise PackageError(f"no such entry: {', '.join(sorted(unknown))}; `list` names them")
    return [ENTRIES[name] for name in names or ENTRIES]


def list_entries(options: argparse.Namespace) -> int:
    """What there is."""
    for entry in chosen(options.names):
        parts = ", ".join(part.name for part in entry.parts) or entry.not_run
        print(f"{entry.name:18} {entry.title}: {entry.what} ({parts}; {entry.gibibytes:g} GiB)")
    return 0


def lock_entries(options: argparse.Namespace) -> int:
    """New hashes in the lists."""
    for entry in chosen(options.names):
        if entry.requirements.exists():
            lock(entry, options.python)
    return 0


def prepare_entries(options: argparse.Namespace) -> int:
    """Archives in pieces, with their sizes."""
    for entry in chosen(options.names):
        if not entry.parts:
            print(f"{entry.name}: {entry.not_run}")
            continue
        pieces = prepare(
            entry,
            options.python,
            options.repositories,
            options.pieces,
            installed=options.also if options.installed else None,
            piece_bytes=options.piece_mib * MIB,
            architecture=options.architecture,
        )
        size = sum(piece.stat().st_size for piece in pieces) / MIB
        print(f"{entry.name}: {size:.1f} MiB in {len(pieces)} pieces in {options.pieces}")
    return 0


def unpack_entries(options: argparse.Namespace) -> int:
    """On the machine with a GPU."""
    for entry in chosen(options.names or [p.stem for p in options.pieces.glob("*.json")]):
        place = unpack(entry, options.pieces, options.torch_python, options.into)
        found = versions(place, entry.versions)
        said = ", ".join(f"{name} {version}" for name, version in found.items())
        print(f"{entry.name}: {place.python}: {said or 'no package named'}")
        for name, version in other_suites(entry, place).items():
            print(
                f"  the suite is that of {name} {version}, {found.get(name, 'none')} is installed"
            )
    return 0


def software_native(folder: Path) -> dict[str, str]:
    """What stands for the native run where there is no card: the software GPU's own driver."""
    from run import built

    library = folder / "softgpu"
    library.mkdir()
    (library / "libcuda.so.1").symlink_to(built("libsluice-softgpu.so.1").resolve())
    return {"LD_LIBRARY_PATH": str(library)}


def our_commands(folder: Path) -> Path:
    """A folder with the nvidia-smi that a guest has: programs ask it for the GPU's name."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    command = place / "nvidia-smi"
    python, ours = shlex.quote(sys.executable), shlex.quote(str(ROOT / "python"))
    script = f"PYTHONPATH={ours} exec {python} -m sluice.guest_runtime smi"
    command.write_text(f'#!/bin/sh\n{script} "$@"\n')
    command.chmod(0o755)
    return place


def machine_of(options: argparse.Namespace) -> str:
    """Where it runs, as results have it."""
    from measurements import Run

    name = Run("", gpu=not options.softgpu).machine
    return f"software GPU, {name}" if options.softgpu else name


def earlier_of(
    entry: Entry, part: Suite | Programs, options: argparse.Namespace, channel: str
) -> dict[str, FileCounts]:
    """What is known of a part's files, of what was kept and of earlier runs here."""
    key = (entry.name, part.name, channel, machine_of(options))
    return known(key, (KEPT, options.results))


def share_compiled(homes: Path, kept: Path) -> None:
    """What programs compile and keep is in one folder for every way, and there the next time."""
    for name in COMPILED:
        (kept / name).mkdir(parents=True, exist_ok=True)
        (homes / name).symlink_to(kept / name)


def run_entry(entry: Entry, options: argparse.Namespace, ways: list[Way]) -> list[Result]:
    """Every part natively and then through Sluice, and what is different."""
    place = place_of(entry, options.into)
    results = []
    for part in entry.parts:
        if options.part and part.name != options.part:
            continue
        ran: dict[str, dict[str, FileRun]] = {}
        earlier = earlier_of(entry, part, options, ways[-1].name)
        for way in ways:
            way.seconds = 0.0
            native = ran["native"] if way.ours and not options.all else None
            ran[way.name] = run_part(
                entry, part, place, way, options.jobs, options.only, native, earlier
            )
        for way in ways[1:]:
            results.append(judged(entry, part, place, options, (ways[0], way), ran))
            name = f"{entry.name}.{part.name}.{way.name}"
            write_cases(options.results.parent / "details", name, ran["native"], ran[way.name])
    return results


def command_of(entry: Entry, options: argparse.Namespace) -> str:
    """What was called, as it can be called again."""
    said = f"python -m applications run {entry.name}"
    said += f" --jobs {options.jobs}" if options.jobs > 1 else ""
    said += f" --budget {options.budget:g}" if options.budget else ""
    said += " --compiled FOLDER" if options.compiled else ""
    return said + (" --softgpu" if options.softgpu else "")


def judged(
    entry: Entry,
    part: Suite | Programs,
    place: Place,
    options: argparse.Namespace,
    ways: tuple[Way, Way],
    ran: dict[str, dict[str, FileRun]],
) -> Result:
    """A part over one channel beside what it did natively; says what is different."""
    from measurements import Run

    native, way = ways
    found = compare(*both(ran["native"], ran[way.name]))
    run = Run(command_of(entry, options), gpu=not options.softgpu)
    files = by_file(ran["native"], ran[way.name], run.commit or "unknown")
    whole, of = sum(each.whole for each in files.values()), size_of(part, place)
    different = dict(sorted(found.different.items()))
    print(
        f"{entry.name}, {part.name}, {way.name}: {found.same} of {found.compared} as natively; "
        f"natively {found.skipped} skipped, {found.failed} failed; {whole} of {of} files to their "
        f"end; {native.seconds:.0f} s natively, {way.seconds:.0f} s here"
    )
    for name, why in different.items():
        print(f"  {name}\n      {why}")
    if found.compared == 0:
        cases = {n: c for run in ran["native"].values() for n, c in run.cases.items()}
        for name, case in list(cases.items())[:5]:
            print(f"  natively: {name}: {case.outcome}: {case.reason}")
    named = dict(list(different.items())[:MOST_NAMED])
    suites = {f"suite of {n}": v for n, v in other_suites(entry, place).items()}
    return Result(
        entry=entry.name,
        part=part.name,
        channel=way.name,
        native_of=f"{'the software GPU' if options.softgpu else 'NVIDIA'}'s driver",
        same=found.same,
        different=named,
        more_different=len(different) - len(named),
        skipped=found.skipped,
        failed=found.failed,
        files=whole,
        of_files=of,
        native_seconds=round(native.seconds, 1),
        seconds=round(way.seconds, 1),
        machine=machine_of(options),
        software=run.software | versions(place, entry.versions) | suites | notes(place.packages),
        date=time.strftime("%Y-%m-%d"),
        commit=run.commit or "unknown",
        command=run.command,
        by_file=files,
    )


def run_entries(options: argparse.Namespace) -> int:
    """All that was asked for; the results are written as each entry is done."""
    from free_ports import free_port
    from run import Server, built, find_driver

    failed = 0
    with tempfile.TemporaryDirectory(prefix="matrix-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # the worker is another user
        driver = str(built("libsluice-softgpu.so.1")) if options.softgpu else find_driver()
        if not driver:
            raise PackageError("no NVIDIA GPU here: `--softgpu` runs on the software GPU")
        most = max(entry.gpu_mib for entry in chosen(options.names))
        server = Server(
            driver,
            folder,
            memory_mib=min(most, 1024) if options.softgpu else most,
            uid=None if options.softgpu else 65534,
            options=[
                *(["--sandbox", "off"] if options.softgpu else []),
                *("--prestart", str(options.jobs)),
            ],
            http_port=free_port(),
        )
        native = software_native(folder) if options.softgpu else {}
        ways = [Way("native", native, ours=False, budget=options.budget)]
        for channel in options.channels:
            # Twice the time: nothing that ran natively is to be missed for want of it.
            environment = server.under_run(channel)
            ways.append(Way(channel, environment, ours=True, budget=2 * options.budget))
            environment["PATH"] = f"{our_commands(folder)}:{os.environ.get('PATH', '')}"
        for way in ways:  # what is compiled and kept is each way's own
            home = folder / f"home-{way.name}"
            home.mkdir()
            way.environment["HOME"] = str(home)
            if options.compiled:
                share_compiled(home, options.compiled)
        try:
            for entry in chosen(options.names):
                if not entry.parts:
                    print(f"{entry.name}: not run: {entry.not_run}")
                    continue
                results = run_entry(entry, options, ways)
                write_said(options.results.parent / "details", entry.name, logged(folder))
                if not options.only:
                    write(options.results, results)
                failed += sum(result.compared - result.same for result in results)
        finally:
            server.close()
    return 1 if failed else 0


def keep_results(options: argparse.Namespace) -> int:
    """Into the documents."""
    for result in keep(options.results, commit=options.commit):
        print(f"kept: {result.entry}, {result.part}, {result.channel}, {result.machine}")
    return 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m applications",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)

    def command(name: str, call: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text)
        added.add_argument("names", nargs="*", help="entries; none: all")
        added.set_defaults(call=call)
        return added

    command("list", list_entries, "what there is")
    preparer = command("prepare", prepare_entries, "fetch and pack, in pieces")
    preparer.add_argument("--python", default="3.12", help="of the other machine")
    preparer.add_argument("--repositories", type=Path, default=ROOT / "build" / "repositories")
    preparer.add_argument("--pieces", type=Path, default=PIECES)
    preparer.add_argument("--piece-mib", type=int, default=PIECE_BYTES // MIB, help="at most")
    preparer.add_argument(
        "--installed",
        action="store_true",
        help="the other machine has the packages: only sources travel, compiled there",
    )
    preparer.add_argument("--also", nargs="*", default=[], help="packages that it has not")
    preparer.add_argument(
        "--architecture",
        type=int,
        default=ARCHITECTURE,
        help="of the other machine's GPU, 90 for sm_90, where code for others is left out",
    )
    locker = command("lock", lock_entries, "write the hashes of lists whose versions changed")
    locker.add_argument("--python", nargs="*", default=["3.12"])
    unpacker = command("unpack", unpack_entries, "install what was packed")
    unpacker.add_argument("--pieces", type=Path, default=PIECES)
    unpacker.add_argument("--into", type=Path, default=INTO)
    unpacker.add_argument(
        "--torch-python",
        type=Path,
        default=Path(sys.executable),
        help="the interpreter beside whose packages they are installed",
    )
    runner = command("run", run_entries, "natively and through Sluice, compared")
    runner.add_argument("--into", type=Path, default=INTO)
    runner.add_argument("--channels", nargs="*", default=["shm"], choices=["shm", "tcp", "relay"])
    runner.add_argument("--jobs", type=int, default=1, help="processes at once")
    runner.add_argument(
        "--budget",
        type=float,
        default=0.0,
        help="seconds that a part may take natively, and twice as many through Sluice; 0: no bound",
    )
    runner.add_argument(
        "--compiled",
        type=Path,
        help="a folder for what programs compile and keep, of all ways together and of later runs; "
        "else each way compiles for itself",
    )
    runner.add_argument("--part", default="", help="this part of the entries alone")
    runner.add_argument("--only", default="", help="cases with this in their names; not kept")
    runner.add_argument("--all", action="store_true", help="also what nothing passes of natively")
    runner.add_argument("--softgpu", action="store_true", help="on the software GPU")
    runner.add_argument("--results", type=Path, default=RAN)
    keeper = commands.add_parser("keep", help="results into docs/applications.jsonl")
    keeper.add_argument("--results", type=Path, default=RAN)
    keeper.add_argument("--commit", help="what ran, where it was a copy without Git")
    keeper.set_defaults(call=keep_results)
    options = parser.parse_args()
    try:
        return int(options.call(options))
    except (PackageError, ResultError, SliceError) as error:
        print(f"applications: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
