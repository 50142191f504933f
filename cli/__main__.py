# SPDX-License-Identifier: Apache-2.0
"""The command `sluice`: mounts every part's commands and turns their errors into exit statuses.

Exit status: 0 done; 1 refused or failed; 2 wrong usage; 3 no such thing; 4 the controller does not
answer; 5 not allowed (no valid token, or another role is needed); 130 Ctrl-C. `sluice run` has the
status of the program that it runs. Parts that are not installed here (the hypervisor part needs
libvirt-python, the vSphere part pyvmomi) are simply not mounted.
"""

from __future__ import annotations

import importlib
import sys

import typer

from sluice.cli import (
    ca_commands,
    cdi_commands,
    completion,
    event_commands,
    health_commands,
    native_commands,
    operation_commands,
    options,
    pool_commands,
    share_commands,
    suspension_commands,
    token_commands,
    top_command,
    vgpu_commands,
)
from sluice.cli.rest import CommandError
from sluice.cli.setup.init_command import init
from sluice.cli.setup.invite_command import invite
from sluice.cli.units import units
from sluice.support import commands as support_commands

app = typer.Typer(
    name="sluice",
    callback=options.take_credentials,
    epilog=(
        "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no such thing, "
        "4 the controller does not answer, 5 not allowed."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("status")(pool_commands.status)
app.add_typer(pool_commands.node_app, name="node")
pool_commands.gpu_app.command("attach")(native_commands.attach_gpu)
pool_commands.gpu_app.command("detach")(native_commands.detach_gpu)
pool_commands.gpu_app.command("attachments")(native_commands.list_attachments)
pool_commands.gpu_app.command("health")(health_commands.health)
pool_commands.gpu_app.command("check")(health_commands.check)
pool_commands.gpu_app.command("clear")(health_commands.clear)
app.add_typer(pool_commands.gpu_app, name="gpu")
app.add_typer(vgpu_commands.app, name="vgpu")
pool_commands.grant_app.command("suspend")(suspension_commands.suspend_grant)
pool_commands.grant_app.command("resume")(suspension_commands.resume_grant)
pool_commands.grant_app.command("move")(suspension_commands.move_grant)
app.add_typer(pool_commands.grant_app, name="grant")
pool_commands.session_app.command("suspend")(suspension_commands.suspend_session)
pool_commands.session_app.command("resume")(suspension_commands.resume_session)
app.add_typer(pool_commands.session_app, name="session")
app.add_typer(share_commands.reservation_app, name="reservation")
app.add_typer(share_commands.quota_app, name="quota")
app.command("queue")(share_commands.queue)
app.command("move")(share_commands.move)
app.command("usage")(share_commands.usage)
app.add_typer(operation_commands.pool_app, name="pool")
app.command("drain")(operation_commands.drain)
app.command("undrain")(operation_commands.undrain)
app.add_typer(token_commands.app, name="token")
app.add_typer(ca_commands.app, name="ca")
app.add_typer(cdi_commands.app, name="cdi")
app.command("top")(top_command.top)
app.command("events")(event_commands.events)
app.command("alerts")(event_commands.alerts)
app.command("audit")(event_commands.audit)
app.command("logs")(pool_commands.logs)
app.command("doctor")(support_commands.doctor)
app.command("support-bundle")(support_commands.support_bundle)
app.command("init")(init)
app.command("invite")(invite)
app.command("units")(units)
app.command("completion")(completion.script)


def mount(module: str, name: str) -> bool:
    """Mounts another part's `app` under a name."""
    try:
        part = importlib.import_module(module)
    except ImportError:
        return False
    app.add_typer(part.app, name=name)
    return True


def guest_main(words: list[str]) -> int:
    """`run`, `check` and `enrol` belong to the guest's part, which reads its own arguments."""
    try:
        guest = importlib.import_module("sluice.guest_runtime.main")
    except ImportError as error:
        raise CommandError(f"`sluice {words[0]}` is not installed here: {error}") from None
    return int(guest.main(words))


def run_program(ctx: typer.Context) -> None:
    """Starts a program on a vGPU of the pool: sluice run CMD [ARGUMENT...]."""
    raise typer.Exit(guest_main(["run", *ctx.args]))


def check_program(ctx: typer.Context) -> None:
    """Says whether a program would work here, and if not, what to do: sluice check [PROGRAM]."""
    raise typer.Exit(guest_main(["check", *ctx.args]))


def show_own(ctx: typer.Context) -> None:
    """Shows the vGPUs of one's own programs as nvidia-smi does: sluice smi [OPTION...]."""
    raise typer.Exit(guest_main(["smi", *ctx.args]))


def enrol_vm(ctx: typer.Context) -> None:
    """Gets this VM's token from what vSphere or OpenStack tells it: sluice enrol [OPTIONS]."""
    raise typer.Exit(guest_main(["enrol", *ctx.args]))


GUEST_ARGUMENTS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
    "allow_interspersed_args": False,
}
app.command("run", context_settings=GUEST_ARGUMENTS)(run_program)
app.command("check", context_settings=GUEST_ARGUMENTS)(check_program)
app.command("smi", context_settings=GUEST_ARGUMENTS)(show_own)
app.command("enrol", context_settings=GUEST_ARGUMENTS)(enrol_vm)


def main() -> int:
    """The console command."""
    mount("sluice.hypervisor.cli", "vm")
    mount("sluice.hypervisor.vsphere.cli", "vsphere")
    mount("sluice.nova_driver.commands", "openstack")
    try:
        app(prog_name="sluice")
    except CommandError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
