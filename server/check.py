# SPDX-License-Identifier: Apache-2.0
"""`sluice-server --check`: what sessions of this host would run on, and what is missing.

Called by server.__main__, and by support.server_check for `sluice doctor`. Reads the configuration
and looks at files; starts nothing and loads nothing. Exit status 0 if sessions would find a driver,
and RDMA where that is wanted, whatever libraries are missing: only the programs that need those
fail.
"""

from __future__ import annotations

import sys
from typing import TextIO

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.config.server import ServerConfig, ServerSection
from sluice.guest_runtime.check import SIGNS
from sluice.guest_runtime.findings import Finding, Verdict, bad, note, ok
from sluice.server.gpus.cuda_libraries import cuda_12_line, find_libraries, search_folders
from sluice.server.gpus.discovery import Driver, find_driver
from sluice.server.rdma.ports import RdmaError, choose, read_ports


def check(config: ServerConfig, out: TextIO | None = None) -> int:
    """Prints the findings, each with what to do about it."""
    stream = out or sys.stdout
    found = findings(config)
    for each in found:
        print(f"{SIGNS[each.verdict]}  {each.subject}: {each.text}", file=stream)
        if each.remedy:
            print(f"      -> {each.remedy}", file=stream)
    return 1 if any(each.verdict is Verdict.BAD for each in found) else 0


def findings(config: ServerConfig) -> list[Finding]:
    """Programs, driver, RDMA and NVIDIA's libraries, as the configuration wants them."""
    section = config.server
    found: list[Finding] = []
    driver: Driver | None = None
    try:
        found.append(ok("worker", str(find_native("sluice-worker"))))
        if section.enable_relay:
            found.append(ok("relay", str(find_native("sluice-relay"))))
        driver = find_driver(section.driver)
    except NativeFileMissing as error:
        found.append(bad("native part", str(error), "install Sluice anew: a file of it is gone"))
    except FileNotFoundError as error:
        # the text says what to do
        found.append(Finding(Verdict.BAD, "driver", str(error)))
    if section.enable_rdma:
        found.append(_rdma(section))
    if driver and driver.is_none:
        found.append(
            note("driver", "none: this host gives no GPU, and its guests' are other hosts'")
        )
        return found
    if driver:
        software = "the software GPU, for trying Sluice out: " if driver.software else ""
        say = note if driver.software else ok
        found.append(say("driver", f"{software}{driver.path}"))
    return found + _libraries(section, software=driver is not None and driver.software)


def _rdma(section: ServerSection) -> Finding:
    try:
        chosen = choose(section, read_ports())
    except RdmaError as error:
        return bad("rdma", str(error), "sessions go over TCP until then; docs/rdma.md")
    return ok("rdma", f"{chosen.describe()}; the node's label rdma is {chosen.reach}")


def _libraries(section: ServerSection, *, software: bool) -> list[Finding]:
    left_out: list[str] = []
    folders = search_folders(section.cuda_libraries, left_out)
    libraries = find_libraries(folders)
    found = [note("libraries", line) for line in left_out]
    for library in libraries:
        if library.path:
            version = library.version or "unknown version"
            found.append(ok(library.title, f"{version}, {library.path}"))
        else:
            found.append(note(library.title, f"{library.soname} is not on this host"))
    if any(library.path for library in libraries):
        found.append(note("libraries", cuda_12_line(folders)))
    if missing := [library.title for library in libraries if not library.path]:
        found.append(
            note(
                "libraries",
                f"programs that call {', '.join(missing)} are told that the node lacks it",
                "install CUDA 13 (cuDNN and NCCL are packages of their own), or name the folder in "
                "server.conf, [server] cuda_libraries",
            )
        )
    if software and len(missing) < len(libraries):
        found.append(
            note("libraries", "the software GPU does not run them; they need an NVIDIA GPU")
        )
    return found
