# SPDX-License-Identifier: Apache-2.0
"""Writes the matrix of docs/applications.md from docs/applications.jsonl.

Called by `make docs`, and by tests/docs/test_applications.py, which holds the page against what
would be written. The table stands between `<!-- applications -->` and `<!-- end -->`: a row for
each entry of tests/gpu/applications, in its order, whether it was run or not.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CHECKOUT / "dev"), str(CHECKOUT / "tests" / "gpu")]

from applications.entries import ENTRIES  # noqa: E402
from applications.entry import Entry  # noqa: E402
from applications.results import KEPT, Result, read  # noqa: E402
from measurement_tables import COLUMNS, day, times  # noqa: E402
from measurements import Measurement, read_kept  # noqa: E402

PAGE = CHECKOUT / "docs" / "applications.md"
PLACE = re.compile(r"(?<=<!-- applications -->\n).*?(?=<!-- end -->)", re.DOTALL)
#: Cases that differ and are named in the page; the data has more of them.
MOST_SHOWN = 12
CHANNELS = {"shm": "shared memory", "tcp": "TCP", "relay": "a relay"}

Figures = Mapping[str, Sequence[Measurement]]


def counted(result: Result) -> str:
    """How many cases are as natively, and what was not compared."""
    text = f"{result.same:,} of {result.compared:,} as natively"
    apart = [
        f"{n:,} {what}"
        for n, what in ((result.skipped, "skipped"), (result.failed, "failing"))
        if n
    ]
    text = f"{text} ({', '.join(apart)} natively)" if apart else text
    if result.files < result.of_files:
        text += f"; {result.files:,} of {result.of_files:,} files to their end in the time given"
    earlier = Counter(
        each.commit for each in result.by_file.values() if each.commit != result.commit
    )
    for commit, files in sorted(earlier.items()):
        text += f"; {files:,} of the files at {commit}"
    return text


def rates(entry: Entry, figures: Figures) -> Iterator[str]:
    """What docs/measurements has of the entry: ratios to native or shares, where and of what."""
    for path in entry.figures:
        subject, _, name = path.partition("/")
        for each in figures.get(subject, ()):
            if each.name == name and each.channel == "shm" and each.setting is None:
                where = each.commit or each.recorded
                found = f"{times(each.ratio)} × native" if each.ratio else times(each.value)
                yield f"`{name}` {found} ({each.machine}, {where})"


def rows(results: Sequence[Result], figures: Figures) -> Iterator[list[str]]:
    """The cells of each row."""
    for entry in ENTRIES.values():
        title, what = entry.title, entry.what
        found = [r for r in results if r.entry == entry.name]
        said = [(r.machine, f"{r.part}, {CHANNELS[r.channel]}: {counted(r)}") for r in found]
        said += [("", text) for text in rates(entry, figures)]
        if not found:
            said.insert(0, ("", f"not run{f': {entry.not_run}' if entry.not_run else ''}"))
        for machine, text in said:
            yield [title, what, machine, text]
            title = what = ""


def written(results: Sequence[Result], figures: Figures) -> str:
    """The table, what its results are of, and which cases differ."""
    lines = [["application", "what is run", "on", "result"], ["---"] * 4, *rows(results, figures)]
    table = "".join(
        "|" + "|".join(f" {each} " if each else " " for each in line) + "|\n" for line in lines
    )
    paragraphs = [wrapped(text) for text in sources(results)]
    lists = [different(r) for r in results if r.different]
    return "\n".join([table, *paragraphs, *lists])


def wrapped(text: str) -> str:
    """A paragraph in lines."""
    lines = textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def sources(results: Sequence[Result]) -> Iterator[str]:
    """Where each result is from, those of one origin in one paragraph."""
    said: dict[str, list[str]] = {}
    for r in results:
        software = ", ".join(f"{name} {version}" for name, version in r.software.items())
        origin = f"{r.machine}; {software}; {day(r.date)}; commit {r.commit}; `{r.command}`"
        said.setdefault(f"{origin}; natively: {r.native_of}.", []).append(r.part)
    for origin in said:
        yield origin


#: Where a machine has its packages.
INSTALLED = re.compile(r"/\S*/site-packages/")


def different(result: Result) -> str:
    """The cases of a result that are not as natively."""
    title = ENTRIES[result.entry].title if result.entry in ENTRIES else result.entry
    head = f"Of {title} over {CHANNELS[result.channel]} on {result.machine} these differ:\n"
    lines = []
    for case, why in list(result.different.items())[:MOST_SHOWN]:
        short = INSTALLED.sub("", why)
        clean = " ".join(short.replace("|", "/").replace("`", "'").split())[:160]
        lines += textwrap.wrap(
            f"- `{case}`: {clean}",
            COLUMNS,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    more = len(result.different) + result.more_different - MOST_SHOWN
    if more > 0:
        lines.append(f"- and {more} more")
    return head + "\n" + "\n".join(lines) + "\n"


def page(text: str, results: Sequence[Result], figures: Figures) -> str:
    """The page with its table as the results have it."""
    return PLACE.sub(lambda _: written(results, figures), text)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(), read(KEPT), read_kept()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
