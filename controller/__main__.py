# SPDX-License-Identifier: Apache-2.0
"""sluice-controller: reads controller.conf, runs the controller until SIGTERM or SIGINT.

Exit status: 0 after a signal, 1 when it cannot start, 2 for a wrong configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from sluice.config.controller import ControllerConfig, read_controller_config
from sluice.config.ini import ConfigError
from sluice.config.logs import set_up_logging
from sluice.controller.service import Controller, DoorError
from sluice.controller.store.store import StoreError


async def serve(config: ControllerConfig) -> int:
    """Runs until a signal; returns the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    controller = Controller(config)
    try:
        await controller.start()
    except (StoreError, DoorError) as error:
        print(f"sluice-controller: {error}", file=sys.stderr)
        return 1
    await stop.wait()
    await controller.stop()
    return 0


def main() -> int:
    """The console command."""
    parser = argparse.ArgumentParser(prog="sluice-controller", description="Runs the GPU pool.")
    parser.add_argument("--config", type=Path, help="controller.conf to read")
    arguments = parser.parse_args()
    try:
        config = read_controller_config(arguments.config)
    except ConfigError as error:
        print(f"sluice-controller: {error}", file=sys.stderr)
        return 2
    set_up_logging(config.log, "controller")
    return asyncio.run(serve(config))


if __name__ == "__main__":
    sys.exit(main())
