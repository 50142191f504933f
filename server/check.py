# SPDX-License-Identifier: Apache-2.0
"""`sluice-server --check`: what sessions of this host would run on, and what is missing.

Called by server.__main__. Reads the configuration and looks at files; starts nothing and loads
nothing. Exit status 0 if sessions would find a driver, and RDMA where that is wanted, whatever
libraries are missing: only the programs that need those fail.
"""

from __future__ import annotations

import sys
from typing import TextIO

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.config.server import ServerConfig
from sluice.server.gpus.cuda_libraries import cuda_12_line, find_libraries, search_folders
from sluice.server.gpus.discovery import find_driver
from sluice.server.rdma.ports import RdmaError, choose, read_ports


def check(config: ServerConfig, out: TextIO | None = None) -> int:
    """Prints the findings, each with what to do about it."""
    stream = out or sys.stdout
    bad = 0

    def say(sign: str, subject: str, text: str, remedy: str = "") -> None:
        print(f"{sign:4}  {subject}: {text}", file=stream)
        if remedy:
            print(f"      -> {remedy}", file=stream)

    section = config.server
    try:
        say("ok", "worker", str(find_native("sluice-worker")))
        if section.enable_relay:
            say("ok", "relay", str(find_native("sluice-relay")))
        driver = find_driver(section.driver)
    except (NativeFileMissing, FileNotFoundError) as error:
        say("BAD", "driver", str(error))
        bad, driver = 1, None
    if section.enable_rdma:
        try:
            chosen = choose(section, read_ports())
            say("ok", "rdma", f"{chosen.describe()}; the node's label rdma is {chosen.reach}")
        except RdmaError as error:
            say("BAD", "rdma", str(error), "sessions go over TCP until then; docs/rdma.md")
            bad = 1
    if driver and driver.is_none:
        say("note", "driver", "none: this host gives no GPU, and its guests' are other hosts'")
        return bad
    if driver:
        software = "the software GPU, for trying Sluice out: " if driver.software else ""
        say("note" if software else "ok", "driver", f"{software}{driver.path}")
    left_out: list[str] = []
    folders = search_folders(section.cuda_libraries, left_out)
    for line in left_out:
        say("note", "libraries", line)
    found = find_libraries(folders)
    for library in found:
        if library.path:
            say("ok", library.title, f"{library.version or 'unknown version'}, {library.path}")
        else:
            say("note", library.title, f"{library.soname} is not on this host")
    if len(found) > sum(library.path is None for library in found):
        say("note", "libraries", cuda_12_line(folders))
    if missing := [library.title for library in found if not library.path]:
        print(
            f"      -> programs that call {', '.join(missing)} are told that the node lacks it; "
            "install CUDA 13 (cuDNN and NCCL are packages of their own), or name the folder in "
            "server.conf, [server] cuda_libraries",
            file=stream,
        )
    if driver and driver.software and len(missing) < len(found):
        say("note", "libraries", "the software GPU does not run them; they need an NVIDIA GPU")
    return bad
