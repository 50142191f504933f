# SPDX-License-Identifier: Apache-2.0
"""sluice-vsphere: reads vsphere.conf, follows the vCenter until SIGTERM or SIGINT.

Exit status: 0 after a signal, 2 for a wrong configuration. A vCenter or a controller that does not
answer, or refuses the credentials, is waited for: that is logged, and may pass.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from sluice.config.ini import ConfigError
from sluice.config.logs import set_up_logging
from sluice.config.vsphere import read_credentials, read_vsphere_config
from sluice.hypervisor.vsphere.controller_line import ControllerLine
from sluice.hypervisor.vsphere.service import VsphereService


async def serve(service: VsphereService, line: ControllerLine) -> int:
    """Runs until a signal."""
    loop = asyncio.get_running_loop()
    stops: set[asyncio.Task[None]] = set()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stops.add(asyncio.ensure_future(service.stop())))
    await service.run()
    await line.close()
    return 0


def main() -> int:
    """The console command."""
    parser = argparse.ArgumentParser(prog="sluice-vsphere", description="Follows one vCenter.")
    parser.add_argument("--config", type=Path, help="vsphere.conf to read")
    parser.add_argument(
        "--accept-removals",
        action="store_true",
        help="believe that VMs are gone even if most are, all at once",
    )
    arguments = parser.parse_args()

    async def begin() -> int:
        config = read_vsphere_config(arguments.config)
        credentials = read_credentials(config.vcenter)
        line = ControllerLine(config.controller)
        set_up_logging(config.log, "vsphere")
        service = VsphereService(
            config, credentials, line, accept_removals=arguments.accept_removals
        )
        return await serve(service, line)

    try:
        return asyncio.run(begin())
    except ConfigError as error:
        print(f"sluice-vsphere: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
