# SPDX-License-Identifier: Apache-2.0
"""The application matrix: what is the same, what dies is found, what is packed comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

GPU_TESTS = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU_TESTS))

from applications import details, packages, results, running  # noqa: E402
from applications.comparing import both as both_of  # noqa: E402
from applications.comparing import by_file, compare  # noqa: E402
from applications.entries import ENTRIES  # noqa: E402
from applications.entry import Entry, Place, Programs, Snapshot, Suite  # noqa: E402
from applications.packages import (  # noqa: E402
    PackageError,
    other_suites,
    prepare,
    unpack,
    versions,
)
from applications.results import (  # noqa: E402
    FileCounts,
    Result,
    ResultError,
    joined,
    keep,
    read,
    write,
)
from applications.running import Case, FileRun, Way, ordered, run_part  # noqa: E402

TESTS = """\
import os, pytest, signal
def test_passes(): pass
def test_fails(): assert os.environ["WHERE"] == "native", "not here"
def test_dies():
    if os.environ["WHERE"] != "native": os.kill(os.getpid(), signal.SIGSEGV)
def test_after_it(): pass
@pytest.mark.skip(reason="never")
def test_skipped(): pass
@pytest.mark.xfail(strict=False)
def test_wrong_everywhere(): assert False
"""
RESULT = Result(
    entry="numba-cuda",
    part="tests",
    channel="shm",
    native_of="NVIDIA's driver",
    same=3,
    different={"test_a": "failed: no"},
    more_different=0,
    skipped=1,
    failed=0,
    files=1,
    of_files=1,
    native_seconds=1.0,
    seconds=1.5,
    machine="1 NVIDIA H200, 16 cores",
    software={"driver": "580"},
    date="2026-11-26",
    commit="0123456789ab",
    command="python -m applications run numba-cuda",
)


def place(folder: Path) -> Place:
    """This interpreter's, which has pytest."""
    return Place(Path(sys.executable), folder, folder)


def both(entry: Entry, folder: Path) -> tuple[dict[str, Case], dict[str, Case]]:
    """Its one part here and elsewhere; neither is Sluice's, what differs is a variable."""
    ways = [Way(name, {"WHERE": name}, ours=False) for name in ("native", "shm")]
    native, ours = (run_part(entry, entry.parts[0], place(folder), w, 1, "") for w in ways)
    assert all(way.seconds > 0 for way in ways)
    assert all(each.whole for each in by_file(native, ours, "c").values())
    return both_of(native, ours)


def test_a_suite_is_compared_test_by_test_and_goes_on_behind_one_that_dies(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TESTS)
    suite = Suite("tests", lambda _: [file], left_out={"test_after": "it is told apart"})
    native, ours = both(Entry("e", "E", "it", parts=(suite,)), tmp_path)
    found = compare(native, ours)
    assert (found.same, found.skipped, found.failed) == (1, 2, 0)
    assert set(found.different) == {"test_it.py::test_fails", "test_it.py::test_dies"}
    assert "not here" in found.different["test_it.py::test_fails"]
    assert "died of signal 11" in found.different["test_it.py::test_dies"]
    assert not any("test_after_it" in case for case in ours), "what is left out is not counted"


def test_programs_are_compared_by_what_they_print(tmp_path: Path) -> None:
    def program(text: str) -> list[str]:
        return [sys.executable, "-c", f"import os; w = os.environ['WHERE']; {text}"]

    part = Programs(
        "programs",
        lambda _: {
            "same": program("print('# on', w); print(1)"),
            "prints": program("print(w)"),
            "ends": program("exit(w != 'native')"),
            "never": program("exit(3)"),
        },
    )
    found = compare(*both(Entry("e", "E", "it", parts=(part,)), tmp_path))
    assert (found.same, found.failed) == (1, 1)
    assert set(found.different) == {"prints", "ends"}


def test_what_was_not_run_here_is_different() -> None:
    found = compare({"a": Case("passed"), "b": Case("failed")}, {})
    assert found.different == {"a": "it was not run"}
    assert found.failed == 1


def test_what_differs_is_written_down_with_what_was_logged(tmp_path: Path) -> None:
    native = {"f": FileRun({"a": Case("passed"), "b": Case("failed", "no"), "c": Case("passed")})}
    ours = {
        "f": FileRun({"a": Case("passed"), "b": Case("failed", "neither"), "d": Case("passed")})
    }
    details.write_cases(tmp_path / "d", "e.tests of it.shm", native, ours)
    [file] = (tmp_path / "d").iterdir()
    assert file.name == "e.tests-of-it.shm.jsonl"
    found = {each["case"]: each for each in map(json.loads, file.read_text().splitlines())}
    assert set(found) == {"b", "c", "d"}
    assert found["b"]["here"] == "failed: neither"
    assert found["c"]["here"] == found["d"]["native"] == "not run"
    logs = tmp_path / "home" / ".sluice" / "log"
    logs.mkdir(parents=True)
    (logs / "1.log").write_text("sluice: cuA is not supported (7)\nall is well\n")
    (logs / "2.log").write_text("sluice: cuA is not supported (8)\n")
    assert details.logged(tmp_path) == {"sluice: cuA is not supported (#)": 2}
    details.write_said(tmp_path, "e", details.logged(tmp_path))
    assert (tmp_path / "e.said.txt").read_text().split()[0] == "2"


def test_a_part_is_stopped_when_its_time_is_up_and_only_what_ran_is_compared(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    text = f"""\
import os, pathlib, time
def test_first(): pass
def test_waits():
    while os.environ["WHERE"] != "native" and not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.05)
def test_last(): pass
"""
    files = [tmp_path / "test_waiting.py", tmp_path / "test_quick.py"]
    files[0].write_text(text)
    files[1].write_text("def test_quick(): pass\n")
    suite = Suite("tests", lambda _: files)
    entry = Entry("e", "E", "it", parts=(suite,))
    native = run_part(
        entry, suite, place(tmp_path), Way("native", {"WHERE": "native"}, False), 1, ""
    )
    way = Way("shm", {"WHERE": "shm"}, ours=False, budget=15)
    ours = run_part(entry, suite, place(tmp_path), way, 2, "")
    found = compare(*both_of(native, ours))
    assert (found.same, found.different) == (2, {}), "what was not come to is not compared"
    counted = by_file(native, ours, "c")
    assert counted["test_quick.py"] == FileCounts(1, 0, 0, 0, whole=True, commit="c")
    assert counted["test_waiting.py"] == FileCounts(1, 0, 0, 0, whole=False, commit="c")
    nothing = run_part(entry, suite, place(tmp_path), Way("shm", {}, False, budget=1e-9), 1, "")
    assert nothing == {}, "nothing is begun once the time is up"
    assert compare(*both_of(native, nothing)).compared == 0


def test_of_a_file_that_natively_was_stopped_only_what_ended_there_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    file = tmp_path / "test_it.py"
    file.write_text(
        f"def test_ended(): open({str(ran)!r}, 'a').write('ended ')\n"
        f"def test_not_come_to(): open({str(ran)!r}, 'a').write('more ')\n"
    )
    suite = Suite("tests", lambda _: [file, tmp_path / "test_not_begun.py"])
    entry = Entry("e", "E", "it", parts=(suite,))
    native = {"test_it.py": FileRun({"test_it.py::test_ended": Case("passed")}, whole=False)}
    ours = run_part(entry, suite, place(tmp_path), Way("shm", {}, False), 1, "", native)
    assert ran.read_text() == "ended "
    assert ours == {"test_it.py": FileRun({"test_it.py::test_ended": Case("passed")})}
    assert by_file(native, ours, "c")["test_it.py"] == FileCounts(1, 0, 0, 0, False, "c")


def test_a_test_that_hangs_until_the_time_is_up_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STUCK_SECONDS", 0)
    file = tmp_path / "test_it.py"
    file.write_text("import time\ndef test_hangs():\n    while True: time.sleep(1)\n")
    suite = Suite("tests", lambda _: [file])
    entry = Entry("e", "E", "it", parts=(suite,))
    ours = run_part(entry, suite, place(tmp_path), Way("shm", {}, False, budget=15), 1, "")
    native = {"test_it.py": FileRun({"test_it.py::test_hangs": Case("passed")})}
    found = compare(*both_of(native, ours))
    assert "took more than" in found.different["test_it.py::test_hangs"]


def test_what_is_packed_in_pieces_comes_back_and_is_checked(tmp_path: Path) -> None:
    repository = tmp_path / "repositories" / "owner+suite"
    (repository / "tests").mkdir(parents=True)
    (repository / "tests" / "test_a.py").write_text("x" * 50_000)
    (repository / "other").write_text("not taken")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    entry = Entry("e", "E", "it", snapshots=(Snapshot("owner/suite", "v1", ("tests",)),))
    folders = (tmp_path / "repositories", tmp_path / "pieces")
    pieces = prepare(entry, "3.12", *folders, piece_bytes=100)
    assert len(pieces) > 2
    assert max(piece.stat().st_size for piece in pieces) <= 100
    base = Path(sys.executable)
    found = unpack(entry, tmp_path / "pieces", base, tmp_path / "there")
    assert (found.sources / "suite" / "tests" / "test_a.py").read_text() == "x" * 50_000
    assert not (found.sources / "suite" / "other").exists()
    assert found.python.exists()
    pieces[1].write_bytes(b"something else")
    with pytest.raises(PackageError, match=r"001 is not the piece"):
        unpack(entry, tmp_path / "pieces", base, tmp_path / "there")
    pieces[1].unlink()
    with pytest.raises(PackageError, match=r"e\.tar\.001 is missing"):
        unpack(entry, tmp_path / "pieces", base, tmp_path / "there")
    with pytest.raises(PackageError, match="clone it there"):
        prepare(entry, "3.12", tmp_path, tmp_path / "pieces")


def venv_with_a_thing(folder: Path) -> tuple[Path, Path]:
    """An interpreter with the package thing 2.0, and its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [there] = (folder / "lib").glob("python3.*/site-packages")
    (there / "thing.py").write_text("")
    (there / "thing-2.0.dist-info").mkdir()
    (there / "thing-2.0.dist-info" / "METADATA").write_text("Name: thing\nVersion: 2.0\n")
    return folder / "bin" / "python", there


def test_an_environment_beside_a_venv_sees_the_packages_of_that_one(tmp_path: Path) -> None:
    """`--system-site-packages` alone does not show them, nor do they stand among site's folders."""
    base, there = venv_with_a_thing(tmp_path / "base")
    packages.make_environment(base, tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    assert there in packages.site_packages(python)
    assert packages.asked(python, "import json, thing; print(json.dumps(thing.__file__))")
    said = packages.asked(python, "import json, site; print(json.dumps(site.getsitepackages()))")
    assert str(there) in said
    with pytest.raises(PackageError, match=r"(?s)does not answer: .*nothing"):
        packages.asked(python, "import nothing")


def test_packages_of_the_other_machine_are_found_and_another_version_of_a_suite_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repositories" / "owner+suite"
    repository.mkdir(parents=True)
    (repository / "test_a.py").write_text("def test_a(): pass")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    base, there = venv_with_a_thing(tmp_path / "base")
    monkeypatch.setattr(packages, "pinned", lambda _: {"thing": "1.0"})
    built: list[Path] = []
    entry = Entry(
        "e",
        "E",
        "it",
        snapshots=(Snapshot("owner/suite", "v1", ("test_a.py",), of="thing"),),
        build=lambda sources, _: built.append(sources),
    )
    pieces = tmp_path / "pieces"
    prepare(entry, "3.12", tmp_path / "repositories", pieces, installed=())
    assert not built, "it is compiled where it was unpacked"
    found = unpack(entry, pieces, base, tmp_path / "there")
    assert built == [found.sources]
    assert versions(found, ("thing", "nothing")) == {"thing": "2.0"}
    assert found.package("thing.py") == there / "thing.py"
    assert other_suites(entry, found) == {"thing": "1.0"}
    with pytest.raises(PackageError, match=r"e\.txt has no filecheck"):
        prepare(entry, "3.12", tmp_path / "repositories", pieces, installed=("filecheck",))


def test_results_are_kept_when_somebody_could_repeat_them(tmp_path: Path) -> None:
    ran, kept = tmp_path / "ran.jsonl", tmp_path / "kept.jsonl"
    write(ran, [RESULT, replace(RESULT, channel="tcp")])
    keep(ran, kept)
    write(ran, [replace(RESULT, same=4)])
    keep(ran, kept)
    assert {(r.channel, r.same) for r in read(kept)} == {("shm", 4), ("tcp", 3)}
    write(ran, [replace(RESULT, commit="unknown")])
    with pytest.raises(ResultError, match="give --commit"):
        keep(ran, kept)
    keep(ran, kept, commit="fedcba987654")
    assert "fedcba987654" in {r.commit for r in read(kept)}
    write(ran, [replace(RESULT, commit="0123456789ab-dirty")])
    for commit in (None, "fedcba987654"):
        with pytest.raises(ResultError, match="changes that no commit has"):
            keep(ran, kept, commit=commit)


def counted(**files: tuple[int, int, bool]) -> Result:
    """A result of those files: as natively, different, whether they came to their end."""
    return replace(
        RESULT,
        same=sum(same for same, _, _ in files.values()),
        different={
            f"{name}::test_{i}": "failed" for name, (_, n, _) in files.items() for i in range(n)
        },
        skipped=0,
        files=sum(whole for _, _, whole in files.values()),
        of_files=9,
        by_file={
            name: FileCounts(same, n, 0, 0, whole, "0123456789ab")
            for name, (same, n, whole) in files.items()
        },
    )


def test_a_later_run_adds_to_what_is_known_file_by_file(tmp_path: Path) -> None:
    old = counted(again=(3, 2, True), gone=(5, 1, True), stops=(9, 1, True), more=(1, 0, False))
    new = counted(again=(5, 0, True), stops=(2, 0, False), more=(2, 0, False), fresh=(4, 1, True))
    ran, kept = tmp_path / "ran.jsonl", tmp_path / "kept.jsonl"
    write(ran, [old])
    keep(ran, kept)
    write(ran, [replace(new, commit="unknown")])
    [found] = read(ran)
    assert {name: (c.same, c.different) for name, c in found.by_file.items()} == {
        "again": (5, 0),
        "gone": (5, 1),
        "stops": (9, 1),
        "more": (2, 0),
        "fresh": (4, 1),
    }
    assert (found.same, found.compared, found.files) == (25, 28, 4)
    assert set(found.different) == {"gone::test_0", "stops::test_0", "fresh::test_0"}
    keep(ran, kept, commit="fedcba987654")
    assert read(kept)[0].by_file == found.by_file
    other = replace(new, software={"driver": "590"})
    assert joined(found, other) is other, "what ran on other software is another result"


def test_what_never_ran_is_first_and_then_what_was_stopped_or_differed(tmp_path: Path) -> None:
    earlier = counted(**{f"test_{n}.py": (1, 0, True) for n in "abc"}).by_file
    earlier |= counted(**{"test_d.py": (1, 1, True), "test_e.py": (1, 0, False)}).by_file
    files = [tmp_path / f"test_{n}.py" for n in "abcdefg"]
    names = [file.name for file in ordered(files, earlier)]
    assert set(names[:2]) == {"test_f.py", "test_g.py"}
    assert names[2:4] == ["test_e.py", "test_d.py"]
    assert names == [file.name for file in ordered(reversed(files), earlier)]


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write(path, [counted(a=(1, 0, True))])
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "same": 2}) + "\n")
    with pytest.raises(ResultError, match="do not add up"):
        read(path)
    line["by_file"]["a"]["same"] = "1"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ResultError, match="a: same is not of type int"):
        read(path)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("channel", "pigeon", "pigeon"),
        ("same", -1, "below 0"),
        ("files", 2, "more files"),
        ("date", "today", "a day"),
    ],
)
def test_a_wrong_result_is_refused(tmp_path: Path, field: str, value: object, said: str) -> None:
    path = tmp_path / "results.jsonl"
    write(path, [RESULT])
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, field: value}) + "\n")
    with pytest.raises(ResultError, match=said):
        read(path)


def test_each_entry_says_what_it_is_made_of() -> None:
    for name, entry in ENTRIES.items():
        assert entry.name == name
        assert bool(entry.parts) != bool(entry.not_run), name
        if entry.requirements.exists():
            lines = entry.requirements.read_text().splitlines()
            pinned = [line for line in lines if not line.startswith("#")]
            assert all(packages.LINE.fullmatch(line)["hashes"] for line in pinned), name  # type: ignore[index]
    assert {r.entry for r in read(results.KEPT)} <= set(ENTRIES)
