# SPDX-License-Identifier: Apache-2.0
"""`sluice openstack`: the adapter's service, its differences, and flavors with vGPUs.

Mounted by cli.application. What needs openstacksdk is imported when a command runs: other commands
neither wait for it nor need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli import output
from sluice.cli.options import Output
from sluice.cli.output import Format
from sluice.cli.rest import CommandError, command_error
from sluice.config.ini import ConfigError
from sluice.nova_driver.compute.extra_specs import MODES, InvalidSpecs, VgpuSpecs, parse
from sluice.pool_client.errors import PoolError

if TYPE_CHECKING:
    from sluice.nova_driver.configuration import OpenStackConfig
    from sluice.nova_driver.synchronising import Sides

app = typer.Typer(help="OpenStack: flavors with vGPUs, Placement, grants.", no_args_is_help=True)
flavor_app = typer.Typer(help="Flavors whose instances have vGPUs.", no_args_is_help=True)
app.add_typer(flavor_app, name="flavor")

Config = Annotated[
    Path | None,
    typer.Option("--config", help="openstack.conf to read (/etc/sluice/openstack.conf)"),
]
COLUMNS = {
    "KIND": "kind",
    "SUBJECT": "subject",
    "WANTED": "wanted",
    "FOUND": "found",
    "MENDED BY": "mended_by",
    "EXPLANATION": "explanation",
}


@app.command()
def serve(config: Config = None) -> None:
    """Keep Placement and instances' grants true, until a signal ends it."""
    from sluice.config.logs import set_up_logging

    settings = _read(config)
    set_up_logging(settings.log, "openstack")
    with _sides(settings) as sides:
        asyncio.run(_serve(sides))


@app.command()
def check(config: Config = None, output_format: Output = Format.TABLE) -> None:
    """Explain every difference of pool, Placement, flavors and instances; 1 if there is any."""
    with _sides(_read(config)) as sides:
        rows = [each.as_row() for each in sides.check()]
    if not output.show_data({"differences": rows}, output_format):
        output.show_table(COLUMNS, rows, "no difference")
    if rows:
        raise typer.Exit(1)


@app.command()
def sync(config: Config = None, output_format: Output = Format.TABLE) -> None:
    """Mend once what `check` finds, as far as it is the adapter's; 1 if something is left."""
    with _sides(_read(config)) as sides:
        mended = [each.as_row() for each in sides.mend_provider()]
        steps = sides.grants.reconcile()
        left = [each.as_row() for each in sides.check()]
    answer = {"mended": mended, "grants_changed": steps, "left": left}
    if not output.show_data(answer, output_format):
        output.show_table(COLUMNS, mended, "Placement was as it should be")
        print(f"{steps} grant(s) changed")
        if left:
            print("left:")
            output.show_table(COLUMNS, left, "")
    if left:
        raise typer.Exit(1)


@flavor_app.command("create")
def create_flavor(
    name: Annotated[str, typer.Argument(help="the flavor's name")],
    memory_mib: Annotated[int, typer.Option(help="GPU memory of each vGPU, in MiB")],
    compute: Annotated[int, typer.Option(help="share of a GPU's time of each vGPU, in percent")],
    count: Annotated[int, typer.Option(help="how many vGPUs")] = 1,
    mode: Annotated[str, typer.Option(help=" or ".join(MODES))] = MODES[0],
    priority: Annotated[int, typer.Option(help="in the pool's queue; higher goes first")] = 0,
    vcpus: Annotated[int, typer.Option(min=1, help="virtual CPUs")] = 2,
    ram: Annotated[int, typer.Option(min=1, help="memory of the instance, in MiB")] = 4096,
    disk: Annotated[int, typer.Option(min=0, help="root disk, in GiB")] = 20,
    channel: Annotated[
        bool,
        typer.Option(
            help="only on hosts whose virt driver gives a channel; without: by network only"
        ),
    ] = True,
    private: Annotated[bool, typer.Option("--private", help="for no project yet")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="although no GPU of the pool could hold it")
    ] = False,
    config: Config = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Create a flavor whose resources: and vgpu: extra specs belong together."""
    specs = VgpuSpecs(memory_mib, compute, count, mode, priority)
    try:
        parse(specs.extra_specs())
    except InvalidSpecs as error:
        raise CommandError(str(error), 2) from None
    with _sides(_read(config)) as sides:
        from sluice.nova_driver import flavors
        from sluice.nova_driver.differences import Kind

        gpus = sides.controller.every("/gpus", "gpus")["gpus"]
        if not force and (why := flavors.misfit(specs, gpus)):
            raise CommandError(f"{why} (--force makes the flavor all the same)")
        # a flavor that names an unknown class or trait makes every scheduling of it fail
        vocabulary = (Kind.RESOURCE_CLASS, Kind.TRAIT)
        wanted, _, found = sides.provider_differences()
        if missing := [each for each in found if each.kind in vocabulary]:
            sides.placement.mend(missing, wanted)
        made = flavors.create(
            sides.cloud,
            name,
            specs,
            vcpus=vcpus,
            ram_mib=ram,
            disk_gib=disk,
            channel=channel,
            public=not private,
        )
    if not output.show_data(made, output_format):
        output.show_record(made)


@flavor_app.command("list")
def list_flavors(config: Config = None, output_format: Output = Format.TABLE) -> None:
    """List the flavors that have to do with the pool, with what is wrong with them."""
    with _sides(_read(config)) as sides:
        from sluice.nova_driver import flavors

        rows = []
        for flavor in sides.cloud.flavors():
            specs = flavor.get("extra_specs") or {}
            ours = {k: v for k, v in sorted(specs.items()) if k.startswith("vgpu:")}
            wrong = flavors.differences([flavor])
            if ours or wrong:
                problems = [f"{d.wanted}, found {d.found}" for d in wrong]
                rows.append(
                    {"id": flavor["id"], "name": flavor["name"], **ours, "problems": problems}
                )
    if not output.show_data({"flavors": rows}, output_format):
        columns = {
            "FLAVOR": "name",
            "VGPUS": "vgpu:count",
            "MIB": "vgpu:memory_mib",
            "PERCENT": "vgpu:compute",
            "MODE": "vgpu:mode",
            "PROBLEMS": "problems",
        }
        output.show_table(columns, rows, "no flavor has to do with the pool")


async def _serve(sides: Sides) -> None:
    from sluice.nova_driver.service import OpenStackService

    task = asyncio.ensure_future(OpenStackService(sides).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _read(path: Path | None) -> OpenStackConfig:
    from sluice.nova_driver.configuration import read_openstack_config

    try:
        return read_openstack_config(path)
    except ConfigError as error:
        raise CommandError(str(error), 2) from None


@contextlib.contextmanager
def _sides(config: OpenStackConfig) -> Iterator[Sides]:
    try:
        from sluice.nova_driver.cloud import CloudError
        from sluice.nova_driver.synchronising import connect
    except ImportError as error:
        raise CommandError(
            f"the OpenStack adapter is not installed here ({error}): pip install "
            "'sluice-gpu[openstack]'"
        ) from None
    try:
        yield connect(config)
    except CloudError as error:
        raise CommandError(str(error)) from None
    except PoolError as error:
        raise command_error(error) from None
