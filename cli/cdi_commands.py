# SPDX-License-Identifier: Apache-2.0
"""`sluice cdi`: the CDI specification by which container engines give vGPUs of this host.

Mounted by cli.application. The names are server.conf's [containers]; what they are worth stays with
the server. The same command of the guest bundle (guest_runtime.cdi) is for VMs, which have no
server.conf.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from sluice.cli.rest import CommandError
from sluice.config.ini import ConfigError
from sluice.config.server import read_server_config
from sluice.guest_runtime import cdi, configuration
from sluice.guest_runtime import cdi_specification as specifications
from sluice.guest_runtime.cdi_specification import ALL, DEFAULT, CdiDevice, CdiError

app = typer.Typer(help="vGPUs for containers, by CDI.", no_args_is_help=True)


class SpecificationFormat(StrEnum):
    """What --format takes: the two forms that engines read."""

    YAML = "yaml"
    JSON = "json"


class Channel(StrEnum):
    """What --channel takes."""

    AUTO = "auto"
    SOCKET = "socket"
    IVSHMEM = "ivshmem"
    TCP = "tcp"


@app.command("generate")
def generate(
    output: Annotated[
        str | None,
        typer.Option("--output", help="a .yaml or .json file (- for standard output)"),
    ] = None,
    form: Annotated[
        SpecificationFormat | None,
        typer.Option("--format", help="without it the output's suffix says, else yaml"),
    ] = None,
    channel: Annotated[
        Channel,
        typer.Option(
            help="how containers reach the pool: by this host's server (auto, socket), a VM's "
            "ivshmem region, or the network (client.conf's controllers)"
        ),
    ] = Channel.AUTO,
    bundle: Annotated[
        Path, typer.Option(help="where the guest bundle is installed on this host")
    ] = Path(cdi.BUNDLE),
    config: Annotated[Path | None, typer.Option(help="server.conf, which names the devices")] = (
        None
    ),
) -> None:
    """Writes the specification: libraries, loader hook, channel, and a device for each name.

    As root, after an upgrade of the bundle to another place and after changes of [containers].
    """
    target = output or str(specifications.STATIC_FOLDER / f"{specifications.FILE_NAME}.yaml")
    suffix = Path(target).suffix.removeprefix(".")
    if form is None:
        form = SpecificationFormat.JSON if suffix == "json" else SpecificationFormat.YAML
    if target != "-" and suffix != form.value:
        raise CommandError(
            f"{target}: engines read .yaml and .json files, each by its suffix; name one that ends "
            f"in .{form.value}"
        )
    try:
        specifications.check_bundle(bundle)
        devices = _devices(channel, config)
        found = specifications.specification(str(bundle), devices)
    except (CdiError, ConfigError) as error:
        raise CommandError(str(error)) from None
    json_wanted = form is SpecificationFormat.JSON
    text = specifications.as_json(found) if json_wanted else yaml.safe_dump(found, sort_keys=False)
    if target == "-":
        print(text, end="")
        return
    try:
        specifications.write(Path(target), text)
    except OSError as error:
        raise CommandError(f"{target}: cannot be written ({error.strerror})") from None
    print(target)
    for device in devices:
        print(f"  {specifications.KIND}={device.name}")


def _devices(channel: Channel, config: Path | None) -> list[CdiDevice]:
    """This host's devices; raises CdiError, ConfigError."""
    if channel in (Channel.IVSHMEM, Channel.TCP):
        return cdi.devices_of_machine(channel.value, configuration.read_settings())
    server = read_server_config(config)
    if not server.containers.enable:
        raise CdiError("[containers] enable is false in server.conf: this host serves none")
    run_dir = str(server.server.run_dir)
    bounded = [DEFAULT, *server.containers.devices]
    return [
        specifications.socket_device(ALL, run_dir, bounded=False),
        *(specifications.socket_device(name, run_dir, bounded=True) for name in bounded),
    ]


@app.command("list")
def list_devices(
    folders: Annotated[
        list[Path] | None, typer.Option("--dir", help="instead of /etc/cdi and /var/run/cdi")
    ] = None,
) -> None:
    """Lists the devices that container engines find here, and what is missing of each."""
    where = folders or [specifications.STATIC_FOLDER, specifications.DYNAMIC_FOLDER]
    raise typer.Exit(cdi.show(cdi.offered(where, parse_yaml=yaml.safe_load)))
