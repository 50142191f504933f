# SPDX-License-Identifier: Apache-2.0
"""sluice-controller: reads controller.conf, runs the controller until SIGTERM or SIGINT.

With a command it looks after the store instead: check, backup, restore, upgrade. Exit status: 0
after a signal or when the command is done, 1 when it cannot start or the command failed, 2 for a
wrong configuration.
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
from sluice.controller.service import Controller, ListenError
from sluice.controller.store import maintenance
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
    except (StoreError, ListenError) as error:
        print(f"sluice-controller: {error}", file=sys.stderr)
        return 1
    await stop.wait()
    await controller.stop()
    return 0


def look_after_store(config: ControllerConfig, command: str, file: Path | None) -> int:
    """One of the store's commands; returns the exit status."""
    path = config.controller.store
    try:
        if config.store.kind != "sqlite":
            raise StoreError(
                f"`{command}` is for [store] kind = sqlite; etcd has `etcdctl snapshot save` and "
                "`etcdctl snapshot restore`, and a controller upgrades its records when it leads"
            )
        if command == "check":
            line = maintenance.check(path)
        elif command == "upgrade":
            line = maintenance.upgrade(path)
        elif command == "backup":
            assert file
            line = maintenance.backup(path, file)
        else:
            assert file
            line = maintenance.restore(path, file)
    except StoreError as error:
        print(f"sluice-controller: {error}", file=sys.stderr)
        return 1
    print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sluice-controller", description="Runs the GPU pool.")
    parser.add_argument("--config", type=Path, help="controller.conf to read")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="the store")
    commands.add_parser("check", help="read the whole store and say what is in it")
    for name, help_text in (
        ("backup", "copy the store into FILE, while the controller runs or not"),
        ("restore", "put a backup in the store's place; the controller must be stopped"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("file", type=Path, metavar="FILE")
    commands.add_parser("upgrade", help="bring the store to this version, as a start would")
    return parser


def main() -> int:
    """The console command."""
    arguments = _parser().parse_args()
    try:
        config = read_controller_config(arguments.config)
    except ConfigError as error:
        print(f"sluice-controller: {error}", file=sys.stderr)
        return 2
    if arguments.command:
        return look_after_store(config, arguments.command, getattr(arguments, "file", None))
    set_up_logging(config.log, "controller")
    return asyncio.run(serve(config))


if __name__ == "__main__":
    sys.exit(main())
