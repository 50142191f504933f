# SPDX-License-Identifier: Apache-2.0
"""`sluice init`: makes this host a working part of a pool, its first or a further one.

Mounted by cli.application. It asks on a terminal only, shows what it would change of what somebody
left, and ends with what to do next. Run again it changes nothing, and says so.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.rest import CommandError
from sluice.cli.setup import host
from sluice.cli.setup.answers import Answers, Role, ask_for, recorded, settled
from sluice.cli.setup.join_file import JoinFile, read_join_file
from sluice.cli.setup.pool_files import Places, controller_addresses
from sluice.cli.setup.steps import Plan, own_controller, plan
from sluice.cli.units import write_units
from sluice.config.ini import ConfigError
from sluice.resources.first_tokens import hash_of

DEFAULT_FOLDER = Path("/etc/sluice")
SERVICES = {Role.BOTH: ("controller", "server"), Role.CONTROLLER: ("controller",)}
ANSWERS_SECONDS = 30.0


def init(
    role: Annotated[
        Role | None, typer.Option(help="what this host is: a controller, a server, or both")
    ] = None,
    node_name: Annotated[
        str | None, typer.Option(help="its name in the pool (default: the host name)")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="its IP address for other hosts (default: 127.0.0.1, there are none)"),
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option("--tls/--no-tls", help="by a CA of its own (default: unless it is alone)"),
    ] = None,
    join: Annotated[
        Path | None, typer.Option(help="the file that `sluice invite` wrote for this host")
    ] = None,
    controller: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT of the pool's controller, without --join; may be repeated"),
    ] = None,
    node_token_file: Annotated[
        Path | None, typer.Option(help="the file with this node's token or enrolment, with it")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="the CA of that controller's certificate, if it has one")
    ] = None,
    driver: Annotated[
        str | None, typer.Option(help="its GPUs: auto, softgpu, none, or a driver library's path")
    ] = None,
    project: Annotated[
        list[str] | None, typer.Option(help="a project that gets a token; may be repeated")
    ] = None,
    config_dir: Annotated[Path, typer.Option(help="the folder of the settings")] = DEFAULT_FOLDER,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="start the services, where systemd runs")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="ask nothing, and change what differs")
    ] = False,
) -> None:
    """Makes a working pool of this host, or joins it to one."""
    given: dict[str, object] = {
        "role": role.value if role else None,
        "node_name": node_name,
        "address": address,
        "tls": tls,
        "driver": driver,
        "controllers": [each.rpartition("/")[2] for each in controller] if controller else None,
        "projects": project,
    }
    given = {key: value for key, value in given.items() if value is not None}
    try:
        before = recorded(config_dir)
        joins = _joining(join, node_token_file, ca_file, given, before)
        if joins:
            _fill_in(given, joins, from_file=join is not None)
        if not yes and not before and not joins and sys.stdin.isatty():
            given = ask_for(given, before, lambda text, default: str(_ask(text, default)))
        answers = settled(given, before)
        host.check_address(answers.address)
        as_root = config_dir == DEFAULT_FOLDER
        made = plan(config_dir, answers, joins, as_root=as_root)
    except ConfigError as error:
        raise CommandError(str(error), 2) from None
    lines = made.lines()
    if lines:
        _agree(made, lines, yes=yes)
        made.carry_out()
    else:
        print("everything is as it was told to be: nothing was changed")
    started = start and as_root and host.has_systemd()
    if started:
        _start(made)
    _say_what_next(made, started=started)


def _joining(
    join: Path | None,
    token_file: Path | None,
    ca_file: Path | None,
    given: dict[str, object],
    before: dict[str, str],
) -> JoinFile | None:
    """What there is to join with; from options it is a join file without a certificate."""
    if join:
        for option, value in (("--node-token-file", token_file), ("--ca-file", ca_file)):
            if value:
                raise CommandError(f"{option}: the join file has it; leave it out", 2)
        return read_join_file(join)
    if token_file is None:
        if ca_file:
            raise CommandError("--ca-file: goes with --node-token-file; give both", 2)
        if given.get("role") == Role.SERVER and "joined" not in before:
            raise CommandError(
                "--role server: joins a pool: give --join FILE (of `sluice invite` on the "
                "controller's host), or --controller and --node-token-file",
                2,
            )
        return None
    controllers = given.get("controllers")
    if not controllers:
        raise CommandError("--node-token-file: goes with --controller HOST:PORT; give both", 2)
    text = {"--node-token-file": token_file, "--ca-file": ca_file}
    read: dict[str, str] = {}
    for option, path in text.items():
        try:
            read[option] = path.read_text().strip() if path else ""
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{option} {path}: cannot be read ({error})", 2) from None
    answers = settled({**given, "role": "server"}, before)
    try:
        return JoinFile(
            controllers=answers.controllers,
            node=answers.node_name,
            address=answers.address,
            secret=read["--node-token-file"],
            ca=f"{read['--ca-file']}\n" if read["--ca-file"] else "",
        )
    except ValueError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in getattr(error, "errors", list)()
        )
        raise CommandError(
            f"--node-token-file or --ca-file: {wrong}: give a token or an enrolment of "
            "`sluice token create --role node`, and a PEM certificate",
            2,
        ) from None


def _fill_in(given: dict[str, object], joins: JoinFile, *, from_file: bool) -> None:
    """What a join says of this host, as if it had been given. Raises CommandError."""
    said: dict[str, object] = {
        "role": Role.SERVER.value,
        "node_name": joins.node,
        "controllers": joins.controllers,
    }
    if from_file:
        said |= {"address": joins.address, "tls": bool(joins.ca)}
    for key, value in said.items():
        if given.get(key) not in (None, value):
            option = "controller" if key == "controllers" else key.replace("_", "-")
            raise CommandError(
                f"--{option} {given[key]}: is {value} in the join file; leave the option out, or "
                "have `sluice invite` write another file",
                2,
            )
        given[key] = value
    given["tls"] = bool(joins.ca)
    given["joined"] = hash_of(joins.secret)


def _ask(text: str, default: str) -> object:
    return typer.prompt(text, default=default, show_default=bool(default))


def _agree(made: Plan, lines: list[str], *, yes: bool) -> None:
    """Shows what will be done; asks where something of somebody's would be replaced."""
    replaced = made.replaces
    if replaced and not yes:
        print("This would change what is there:\n")
        print("\n".join(replaced))
        if not sys.stdin.isatty():
            raise CommandError("nothing was changed; --yes changes it")
        if not typer.confirm("Change it?", default=False):
            raise CommandError("nothing was changed")
    for line in lines:
        print(line)


def _start(made: Plan) -> None:
    """Enables and starts what this host runs; restarts what has new settings."""
    places, answers = made.places, made.answers
    files = {"controller": places.controller_conf, "server": places.server_conf}
    services = SERVICES.get(answers.role, ("server",))
    if not all(host.has_unit(f"sluice-{name}.service") for name in services):
        write_units(Path("/etc/systemd/system"), places.folder, host.WORKER_USER)
    host.systemctl("daemon-reload")
    for name in services:
        unit = f"sluice-{name}.service"
        host.systemctl("enable", unit)
        host.systemctl("restart" if made.changes(files[name]) else "start", unit)
    if answers.runs_controller:
        _wait_for_controller(made)


def _wait_for_controller(made: Plan) -> None:
    deadline = time.monotonic() + ANSWERS_SECONDS
    while True:
        try:
            own_controller(made.places, made.answers).get("/pool")
        except CommandError as error:
            if time.monotonic() > deadline:
                raise CommandError(
                    f"{error}\nsluice-controller was started and does not serve: "
                    "journalctl -u sluice-controller says why",
                    error.status,
                ) from None
            time.sleep(0.5)
        else:
            return


def _say_what_next(made: Plan, *, started: bool) -> None:
    """What the operator does now."""
    answers, places = made.answers, made.places
    services = SERVICES.get(answers.role, ("server",))
    print("\nNext:")
    if not started:
        for name in services:
            print(f"  start it:         sluice-{name} --config {places.folder}/{name}.conf")
    if answers.runs_controller:
        token = f"--token-file {places.folder}/accounts/admin.token"
        print(f"  look at it:       sluice {token} status")
        scheme = "https" if answers.tls else "http"
        print(f"  in a browser:     {scheme}://{controller_addresses(answers, places)[0]}/console")
        if answers.is_alone:
            print("  add more hosts:   sluice init --address ADDRESS, and then sluice invite")
        else:
            print("  add a host:       sluice invite NAME --address ITS-ADDRESS")
        for project in answers.projects:
            print(f"  {project + ':':<17} its token is {places.folder}/accounts/{project}.token")
    if answers.runs_server:
        print("  run a program:    SLUICE_GMEM=1024 sluice run ./program")
        print("  look for trouble: sluice doctor")
    _warn(answers, places)


def _warn(answers: Answers, places: Places) -> None:
    if not answers.tls and not answers.is_alone:
        print("  Without TLS everybody on this network reads tokens and data: trust it, or --tls.")
    if answers.tls and answers.runs_server and not places.node_pair[0].exists():
        print(
            "  This host has no certificate: its data port has no TLS. `sluice invite` gives one."
        )
    if answers.tls and answers.runs_controller:
        print(f"  {places.authority}/ca.key issues certificates: keep a copy elsewhere.")
