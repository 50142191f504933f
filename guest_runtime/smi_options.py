# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi's command line, as NVIDIA's program reads it.

Used by smi.py. What changes a GPU, and subcommands that a vGPU has nothing for, are known by name,
so that whoever asks is told that it is not supported instead of that there is no such option.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .smi_log import SECTIONS
from .smi_query import shown, words

LOOP_SECONDS = 5.0
MOST_LOOP_SECONDS = 1_000_000.0
#: Take a value, and change what is not the requester's to change.
_SETTINGS = words("""
    -pm --persistence-mode -e --ecc-config -p --reset-ecc-errors -c --compute-mode --gom -r
    --gpu-reset -lgc --lock-gpu-clocks -lmc --lock-memory-clocks -ac --applications-clocks -pl
    --power-limit -cc --cuda-clocks -am --accounting-mode -mig --multi-instance-gpu -gtt
    --gpu-target-temp -vm --virt-mode -fdm --fb-dm -dm --driver-model -sc -rgc
    --reset-gpu-clocks -rmc -rac --reset-applications-clocks --reset-memory-clocks -caa
    --clear-accounted-apps
""")
_SUBCOMMANDS = words("""
    topo drain nvlink c2c clocks encodersessions fbcsessions mig compute-policy boost-slider
    power-hint conf-compute power-smoothing power-profiles dmon daemon replay pmon stats vgpu
    pci gpm device-monitoring
""")
_QUERIES = {"--query-gpu": "gpu", "--query-compute-apps": "apps"}
_NOT_HERE = words("""
    --query-accounted-apps --query-supported-clocks --query-retired-pages --query-remapped-rows
    -u --unit -B --list-excluded-gpus
""")


class Options(NamedTuple):
    """What is wanted. `what`: table, list, log, gpu, apps, help, help-gpu, help-apps, version."""

    what: str = "table"
    xml: bool = False
    fields: str = ""
    form: str | None = None
    ids: str | None = None
    file: str | None = None
    sections: Sequence[str] = ()
    loop: float | None = None  # seconds


class BadUsage(Exception):
    """The line that says what is wrong, and the exit status."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


def parse(words: Sequence[str]) -> Options:
    """Reads the command line; raises BadUsage."""
    options = Options()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        given = value if equals else None
        if name in _SUBCOMMANDS:
            raise BadUsage(_not_supported(name), 3)
        if name in _SETTINGS or name in _NOT_HERE:
            raise BadUsage(_not_supported(name), 3)
        options = _take(options, name, given, rest)
    if options.what == "table" and options.xml:
        raise _invalid("-x", "is for -q")
    if options.what == "table" and options.sections:
        raise _invalid("-d", "is for -q")
    return options


def _take(options: Options, name: str, given: str | None, rest: list[str]) -> Options:
    simple = {
        "-h": "help",
        "--help": "help",
        "--help-query-gpu": "help-gpu",
        "--help-query-compute-apps": "help-apps",
        "-L": "list",
        "--list-gpus": "list",
        "-q": "log",
        "--query": "log",
        "--version": "version",
    }
    if name in simple and given is None:
        return options._replace(what=simple[name])
    if name in ("-x", "--xml-format") and given is None:
        return options._replace(xml=True)
    if name == "--dtd" and given is None:
        return options  # the document names it; nothing is embedded
    if name in _QUERIES:
        return options._replace(what=_QUERIES[name], fields=_value(name, given, rest))
    if name == "--format":
        return options._replace(form=_value(name, given, rest))
    if name in ("-i", "--id"):
        return options._replace(ids=_value(name, given, rest))
    if name in ("-f", "--filename"):
        return options._replace(file=_value(name, given, rest))
    if name in ("-d", "--display"):
        return options._replace(sections=_sections(_value(name, given, rest)))
    if name in ("-l", "--loop"):
        return options._replace(loop=_seconds(name, given, rest))
    if name in ("-lms", "--loop-ms"):
        return options._replace(loop=_positive(name, _value(name, given, rest)) / 1000)
    raise BadUsage(f'Invalid combination of input arguments: "{shown(name)}" is unknown. {_HINT}')


def _value(name: str, given: str | None, rest: list[str]) -> str:
    value = given if given is not None else (rest.pop(0) if rest else "")
    if not value:
        raise _invalid(name, "needs a value")
    return value


def _seconds(name: str, given: str | None, rest: list[str]) -> float:
    """The number is optional behind -l."""
    if given is None and (not rest or rest[0].startswith("-")):
        return LOOP_SECONDS
    return _positive(name, _value(name, given, rest))


def _positive(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= MOST_LOOP_SECONDS:
        raise _invalid(name, f'wants a number above 0, not "{shown(text)}"')
    return number


def _sections(text: str) -> Sequence[str]:
    sections = [word.strip().upper() for word in text.split(",") if word.strip()]
    for section in sections:
        if section not in SECTIONS:
            raise _invalid("-d", f'has no "{shown(section)}": {", ".join(SECTIONS)}')
    return sections


def _invalid(name: str, why: str) -> BadUsage:
    return BadUsage(f"Invalid argument: {name} {why}. {_HINT}")


def _not_supported(name: str) -> str:
    return (
        f'"{name}" is not supported: this is the nvidia-smi of Sluice, and a vGPU of the pool has '
        "nothing of the kind to show or to change."
    )


_HINT = 'Run "nvidia-smi -h" for help.'
HELP = """\
nvidia-smi of Sluice: shows the vGPUs that your running programs have of the pool or, while none
runs, those that one would get. It takes none itself. Layout and options are those of NVIDIA's.

    nvidia-smi [OPTION]...

    <no arguments>                       Show a summary of GPUs.
    -L,   --list-gpus                    Display a list of GPUs.
    -q,   --query                        Display GPU info.
    -x,   --xml-format                   With -q: produce XML output.
    -d,   --display=                     With -q: only these sections, with commas: MEMORY,
                                         UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE,
                                         PIDS, PERFORMANCE, PAGE_RETIREMENT.
          --query-gpu=                   Fields of GPUs, with commas. --help-query-gpu lists them.
          --query-compute-apps=          Fields of processes. --help-query-compute-apps lists them.
          --format=                      For a query: csv, and noheader and nounits.
    -i,   --id=                          One GPU, or several with commas, by index, UUID or bus id.
    -f,   --filename=                    Log to a file rather than to stdout.
    -l,   --loop=                        Repeat every so many seconds (5), until Ctrl+C.
    -lms, --loop-ms=                     The same in milliseconds.
          --version                      Versions.
    -h,   --help                         This.

Memory and processes are those of your vGPU; temperature, power, clocks and utilization are those of
the whole GPU that it is on. What nobody here knows is N/A. Exit status as NVIDIA's: 0, 2 for a
wrong argument, 3 for what is not supported, 6 for a GPU that is not there, 9 where nothing can be
shown (the line above says why), 12 without libnvidia-ml.so.1.
"""
