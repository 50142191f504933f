# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi`, and `sluice smi`: what a requester has of the pool, in NVIDIA's layout.

Called by the bundle's bin/nvidia-smi and by main.py. It asks our libnvidia-ml.so.1 and prints; it
opens no session, so it takes nothing from the pool and waits for nobody. NVIDIA's own program does
not run on our library, as it asks it for private tables.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

from . import VERSION, smi_log, smi_table
from .installation import candidate_folders
from .smi_facts import Gpu, System, read_gpu, read_system
from .smi_nvml import Nvml, NvmlError
from .smi_options import HELP, BadUsage, Options, parse
from .smi_query import (
    ALIASES,
    APP_ALIASES,
    APP_FIELDS,
    GPU_FIELDS,
    BadQuery,
    app_rows,
    gpu_row,
    header,
    read_fields,
    read_format,
    shown,
)

LIBRARY = "libnvidia-ml.so.1"
NO_DEVICES = "No devices were found"
NOT_FOUND, NO_DRIVER, INTERRUPTED, NO_LIBRARY, LOST, OTHER = 6, 9, 10, 12, 15, 255


class NothingToShow(Exception):
    """The line for the user, and the exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def smi(words: Sequence[str]) -> int:
    """Runs the command line and returns its exit status."""
    try:
        options = parse(words)
        _check_query(options)
        return _run(options)
    except (BadUsage, NothingToShow) as why:
        print(why)
        return why.status
    except BadQuery as why:
        print(f"{why}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read has enough; nothing more may be written when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _check_query(options: Options) -> None:
    """What is wrong with a query is said before anything is asked; raises BadQuery."""
    if options.what in ("gpu", "apps"):
        _fields(options)
        read_format(options.form)


def _fields(options: Options) -> list[str]:
    if options.what == "gpu":
        return read_fields(options.fields, GPU_FIELDS, ALIASES)
    return read_fields(options.fields, APP_FIELDS, APP_ALIASES)


def _run(options: Options) -> int:
    if options.what.startswith("help"):
        print(_help(options.what), end="")
        return 0
    with contextlib.ExitStack() as closing:
        out = sys.stdout if options.file is None else closing.enter_context(_file(options.file))
        nvml = _open()
        closing.callback(nvml.close)
        return _loop(nvml, options, out)


def _file(name: str) -> TextIO:
    """Where -f says; raises NothingToShow."""
    try:
        return Path(name).open("w", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise NothingToShow(f"Failed to open {shown(name)}: {error}", OTHER) from None


def _open() -> Nvml:
    """Our library, wherever this is installed; raises NothingToShow."""
    found = [folder / LIBRARY for folder in candidate_folders() if (folder / LIBRARY).exists()]
    try:
        if found:
            return Nvml(found[0])
        why = f"it is not in {', '.join(str(f) for f in candidate_folders())}"
    except OSError as error:
        why = str(error)
    except NvmlError as error:
        raise NothingToShow(f"NVIDIA-SMI (Sluice) does not start: {error}", NO_DRIVER) from None
    raise NothingToShow(
        f"NVIDIA-SMI (Sluice) couldn't find {LIBRARY} of Sluice: {why}. Install the guest bundle "
        "again.",
        NO_LIBRARY,
    )


def _loop(nvml: Nvml, options: Options, out: TextIO) -> int:
    first = True
    while True:
        begun = time.monotonic()
        try:
            for line in _lines(nvml, options, first=first):
                print(line, file=out)
        except NothingToShow as why:
            # one that was shown ended just now: the next round shows what there is
            if first or why.status not in (NOT_FOUND, LOST):
                raise
        out.flush()
        if options.loop is None:
            return 0
        first = False
        time.sleep(max(0.0, options.loop - (time.monotonic() - begun)))


def _lines(nvml: Nvml, options: Options, *, first: bool) -> Iterator[str]:
    now = datetime.now().astimezone()
    try:
        system = read_system(nvml)
        gpus = [read_gpu(nvml, index) for index in range(system.gpus)]
    except NvmlError as error:
        raise _nothing(error) from None
    chosen = _chosen(gpus, options.ids)
    if options.what == "version":
        yield f"NVIDIA-SMI version  : {system.driver_version or 'N/A'} (Sluice {VERSION})"
        yield f"NVML version        : {system.nvml_version or 'N/A'}"
        yield f"DRIVER version      : {system.driver_version or 'N/A'}"
        yield f"CUDA Version        : {system.cuda_version or 'N/A'}"
    elif not chosen:
        raise NothingToShow(NO_DEVICES, NOT_FOUND)
    elif options.what == "list":
        yield from (
            f"GPU {gpu.number}: {gpu.value('name') or 'N/A'} (UUID: {gpu.value('uuid')})"
            for gpu in chosen
        )
    elif options.what == "log":
        log = smi_log.xml if options.xml else smi_log.text
        yield from log(system, chosen, options.sections, now)
    elif options.what == "table":
        yield from smi_table.table(system, chosen, now)
    else:
        yield from _csv(options, system, chosen, now, first=first)


def _csv(
    options: Options, system: System, gpus: Sequence[Gpu], now: datetime, *, first: bool
) -> Iterator[str]:
    fields, form = _fields(options), read_format(options.form)
    if form.header and first:
        yield header(fields)
    for gpu in gpus:
        if options.what == "gpu":
            yield gpu_row(fields, gpu, system, form, now)
        else:
            yield from app_rows(fields, gpu, form, now)


def _chosen(gpus: Sequence[Gpu], ids: str | None) -> Sequence[Gpu]:
    """By index, UUID or bus id; none where one of them is not there."""
    if ids is None:
        return gpus
    found: list[Gpu] = []
    for wanted in (each.strip().lower() for each in ids.split(",")):
        matching = [
            gpu
            for gpu in gpus
            if wanted in (str(gpu.number), (gpu.value("uuid") or "").lower())
            or (":" in wanted and _place(gpu.value("pci.bus_id") or "") == _place(wanted))
        ]
        if not matching:
            return []
        found += [gpu for gpu in matching if gpu not in found]
    return found


def _place(bus_id: str) -> str:
    """A bus id, however many digits its domain is written with."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}" if rest.count(":") else f":{bus_id.lower()}"


def _nothing(error: NvmlError) -> NothingToShow:
    if error.status == NO_DRIVER:
        return NothingToShow(
            "NVIDIA-SMI (Sluice) has failed because it can show no vGPU of the pool: the line that "
            "begins with `sluice:` says why.",
            NO_DRIVER,
        )
    status = error.status if error.status in range(2, 16) else OTHER
    return NothingToShow(f"NVIDIA-SMI (Sluice) has failed: {error}", status)


def _help(what: str) -> str:
    if what == "help":
        return HELP
    query, fields = ("--query-gpu", GPU_FIELDS)
    aliases = ALIASES
    if what == "help-apps":
        query, fields, aliases = "--query-compute-apps", APP_FIELDS, APP_ALIASES
    lines = [f"List of valid properties to query for the switch {query}:", ""]
    for field in fields:
        others = [f'"{alias}"' for alias, meant in aliases.items() if meant == field]
        lines.append(" or ".join([f'"{field}"', *others]))
    lines.append("\nWhat a vGPU has not, or nobody here knows, is [N/A].")
    return "\n".join(lines) + "\n"
