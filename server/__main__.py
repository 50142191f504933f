# SPDX-License-Identifier: Apache-2.0
"""sluice-server: reads server.conf, runs the server until SIGTERM or SIGINT.

`--check` says instead what sessions of this host would run on. Exit status: 0 after a signal, 1
when it cannot start, 2 for a wrong configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path

from sluice.config.descriptors import allow_many
from sluice.config.ini import ConfigError
from sluice.config.logs import set_up_logging
from sluice.config.server import ServerConfig, read_server_config
from sluice.server.check import check
from sluice.server.listeners.addresses import StartError
from sluice.server.service import Server


async def serve(config: ServerConfig) -> int:
    """Runs until a signal; returns the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(config)
    try:
        await server.start()
    except StartError as error:
        print(f"sluice-server: {error}", file=sys.stderr)
        return 1
    # what start-up made stays: a client that waits must not pay for looking through it again
    gc.freeze()
    await stop.wait()
    await server.stop()
    return 0


def main() -> int:
    """The console command."""
    parser = argparse.ArgumentParser(prog="sluice-server", description="Serves this host's GPUs.")
    parser.add_argument("--config", type=Path, help="server.conf to read")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say which driver and which of NVIDIA's libraries sessions would get, and end",
    )
    arguments = parser.parse_args()
    try:
        config = read_server_config(arguments.config)
    except ConfigError as error:
        print(f"sluice-server: {error}", file=sys.stderr)
        return 2
    if arguments.check:
        return check(config)
    set_up_logging(config.log, "server")
    allow_many()  # a session holds about five descriptors
    return asyncio.run(serve(config))


if __name__ == "__main__":
    sys.exit(main())
