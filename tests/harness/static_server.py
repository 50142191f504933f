# SPDX-License-Identifier: Apache-2.0
"""A sluice-server with static grants, where the control plane is not what is measured or tested.

The server is the real one; in the place of its controller is static_grants.py, in this process.
Every session gets the same vGPUs, as many as it asks for up to `--vgpus`. With `--http-port`
clients on the network get sessions too, and with `--relay` those of SOCKET.relay get theirs through
a second server, which has no GPU, and its relays. SIGUSR1 suspends whatever runs, SIGUSR2 resumes
it, SIGHUP on another GPU than it was on (--movable on). Whoever waits for SOCKET finds the rest.

It needs what sluice-server imports (dev/pack_gpu_host.py packs that) and finds workers as
sluice-server does (SLUICE_NATIVE_DIR). `python static_server.py --help` lists the options.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import pwd
import signal
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).resolve().parent
sys.path[:0] = [str(HARNESS), str(HARNESS.parents[1] / "python")]

from standing_processes import end_standing_processes  # noqa: E402
from static_grants import NODE, RelayLink, StaticLink, StaticTickets  # noqa: E402

from sluice.config.logs import set_up_logging  # noqa: E402
from sluice.config.server import ServerConfig  # noqa: E402
from sluice.server.controller.orders import ServerSide  # noqa: E402
from sluice.server.listeners.addresses import StartError  # noqa: E402
from sluice.server.service import Server  # noqa: E402


@dataclass(frozen=True)
class StaticOptions:
    """What is granted, on which GPUs, and who can ask."""

    socket: Path
    log_dir: Path
    driver: str = "softgpu"
    libraries: str = ""  # folders, with colons; none: as the server looks
    vgpus: int = 1
    memory_mib: int = 1024
    visible_devices: str = ""
    arena_mib: int = 1024
    sandbox: str = "on"
    prestart: int = 1
    uid: int | None = None  # of all workers; none: one of its own for each grant
    http_port: int = 0
    relay: bool = False
    network_grace_seconds: int = 60
    bulk_connections: int = 4
    run_together: bool = False  # as in control_plane.py
    concurrent_headroom: float = 2.0
    rdma: bool = False
    metrics_port: int = 0
    tls: Path | None = None  # folder of a pool's CA with the node's certificate; none: no TLS
    bind: str = "127.0.0.1"
    data_port: int = 0
    swap_mib: int = 0
    ready_mib: int = 0
    idle_seconds: float = 10.0
    checkpoint_contexts: str = "auto"
    movable: str = "off"
    ways: tuple[tuple[int, str], ...] = ()  # (HTTP port, address that its tickets name)

    def config(
        self, run_dir: Path, log_dir: Path, *, metrics: bool = False, **more: Any
    ) -> ServerConfig:
        """A server's configuration; its other folders are in `run_dir`."""
        users = {}
        if self.uid is not None:
            users = {"worker_uids": None, "worker_user": pwd.getpwuid(self.uid).pw_name}
        tls: dict[str, Any] = {}
        if self.tls:
            tls["data_ca_file"] = self.tls / "ca.crt"
        if self.tls and more.get("node_name", NODE) == NODE:
            tls["data_plane"] = True
            tls["data_cert_file"] = self.tls / f"{NODE}.crt"
            tls["data_key_file"] = self.tls / f"{NODE}.key"
        server = {
            "node_name": NODE,
            "run_dir": run_dir,
            "state_dir": run_dir / "state",
            "socket_path": run_dir / "s",
            "listen_port": self.data_port,
            "driver": self.driver,
            "cuda_libraries": self.libraries,
            "visible_devices": self.visible_devices,
            "arena_mib": self.arena_mib,
            "prestart_workers": self.prestart,
            "worker_sandbox": self.sandbox == "on",
            "enable_kvm": False,
            "enable_relay": False,
            "network_grace_seconds": self.network_grace_seconds,
            "bulk_connections": self.bulk_connections,
            "enable_rdma": self.rdma,
            "bind_addr": self.bind,
            **users,
            **more,
        }
        return ServerConfig.model_validate(
            {
                "log": {"log_dir": log_dir, "log_to_screen": False},
                "server": server,
                "tls": tls,
                "throttle": {
                    "run_together": self.run_together,
                    "concurrent_headroom": self.concurrent_headroom,
                },
                "suspend": {
                    "swap_mib": self.swap_mib,
                    "ready_mib": self.ready_mib,
                    "idle_seconds": self.idle_seconds,
                    "checkpoint_contexts": self.checkpoint_contexts,
                    "movable": self.movable,
                },
                "projects": {"users": f"{os.getuid()} = default other"},
                # the card is the test's, which says itself what is wrong with it
                **({"metrics": {"listen": f"127.0.0.1:{self.metrics_port}"}} if metrics else {}),
                "health": {"gpu_acceptance": "off", "watch": False},
            }
        )


async def _serve(options: StaticOptions, run_dir: Path) -> None:
    """Until a signal; raises StartError."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    links: list[StaticLink] = []

    def suspend(*, resume: bool, elsewhere: bool = False) -> None:
        links[0].suspend_all(resume=resume, elsewhere=elsewhere)

    for number, what in (
        (signal.SIGUSR1, partial(suspend, resume=False)),
        (signal.SIGUSR2, partial(suspend, resume=True)),
        (signal.SIGHUP, partial(suspend, resume=True, elsewhere=True)),
    ):
        asyncio.get_running_loop().add_signal_handler(number, what)

    def static(config: ServerConfig, side: ServerSide) -> StaticLink:
        del config
        links.append(StaticLink(side, options.vgpus, options.memory_mib))
        return links[0]

    def relayed(config: ServerConfig, side: ServerSide) -> RelayLink:
        del config, side
        return RelayLink(links[0])

    async with contextlib.AsyncExitStack() as running:
        for folder in (run_dir, run_dir / "r"):
            running.callback(end_standing_processes, folder)
        config = options.config(run_dir, options.log_dir, metrics=options.metrics_port > 0)
        await _start(Server(config, static), running)
        if not links[0].side.inventory().gpus:
            raise StartError(f"no GPU was found; {options.log_dir} has the logs")
        sockets = {config.client_socket: options.socket}
        if options.http_port:
            await running.enter_async_context(StaticTickets(links[0]).listening(options.http_port))
        for port, address in options.ways:
            tickets = StaticTickets(links[0], address)
            await running.enter_async_context(tickets.listening(port))
        if options.relay:
            lent: dict[str, Any] = {"node_name": "beside", "driver": "none", "enable_relay": True}
            lent["listen_port"] = 0  # the other has the one that was asked for
            # it has no GPU whose memory could move
            bare = dataclasses.replace(options, swap_mib=0, ready_mib=0, movable="off")
            beside = bare.config(run_dir / "r", options.log_dir / "beside", **lent)
            await _start(Server(beside, relayed), running)
            sockets = {beside.client_socket: Path(f"{options.socket}.relay"), **sockets}
        for made, name in sockets.items():
            name.unlink(missing_ok=True)
            name.symlink_to(made)
            running.callback(name.unlink, missing_ok=True)
        await stop.wait()


async def _start(server: Server, running: contextlib.AsyncExitStack) -> None:
    await server.start()
    running.push_async_callback(server.stop)


def serve(options: StaticOptions) -> None:
    """Until a signal."""
    with tempfile.TemporaryDirectory(prefix="sluice-", ignore_cleanup_errors=True) as name:
        run_dir = Path(name)
        run_dir.chmod(0o755)
        set_up_logging(options.config(run_dir, options.log_dir).log, "server")
        try:
            asyncio.run(_serve(options, run_dir))
        except StartError as error:
            raise SystemExit(f"static_server.py: {error}") from None


def _way(text: str) -> tuple[int, str]:
    port, _, address = text.partition("=")
    return int(port), address


def main() -> None:
    """Reads the options and serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument(
        "--log-dir",
        type=Path,
        required=True,
        help="server.log, and the logs of sessions and workers",
    )
    parser.add_argument("--libraries", default="", help="folders (default: as the server looks)")
    parser.add_argument("--memory-mib", type=int, default=1024)
    parser.add_argument("--vgpus", type=int, default=1)
    parser.add_argument("--visible-devices", default="", help="UUIDs, with commas (default: all)")
    parser.add_argument("--arena-mib", type=int, default=1024)
    parser.add_argument("--sandbox", default="on", choices=("on", "off"))
    parser.add_argument("--prestart", type=int, default=1, help="workers that wait for sessions")
    parser.add_argument("--uid", type=int, help="of all workers (default: one for each grant)")
    parser.add_argument("--http-port", type=int, default=0, help="where clients on the network ask")
    parser.add_argument("--relay", action="store_true", help="SOCKET.relay, for relayed sessions")
    parser.add_argument("--network-grace-seconds", type=int, default=60, help="0: none")
    parser.add_argument("--bulk-connections", type=int, default=4, help="at most, of a session")
    parser.add_argument("--run-together", action="store_true", help="[throttle] run_together")
    parser.add_argument("--concurrent-headroom", type=float, default=2.0, help="[throttle]")
    parser.add_argument("--rdma", action="store_true", help="[server] enable_rdma")
    parser.add_argument("--metrics-port", type=int, default=0, help="of its metrics (0: none)")
    parser.add_argument(
        "--tls",
        type=Path,
        metavar="FOLDER",
        help=f"TLS on the data port: ca.crt, {NODE}.crt and {NODE}.key are there",
    )
    parser.add_argument("--bind", default="127.0.0.1", help="[server] bind_addr")
    parser.add_argument("--data-port", type=int, default=0, help="[server] listen_port")
    parser.add_argument("--swap-mib", type=int, default=0, help="[suspend] swap_mib")
    parser.add_argument("--ready-mib", type=int, default=0, help="[suspend] ready_mib")
    parser.add_argument("--checkpoint-contexts", choices=("auto", "off"), default="auto")
    parser.add_argument("--movable", choices=("on", "off"), default="off", help="[suspend]")
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="[suspend] idle_seconds")
    parser.add_argument(
        "--way",
        dest="ways",
        type=_way,
        action="append",
        default=[],
        metavar="HTTP_PORT=ADDRESS",
        help="another port for clients on the network, whose tickets name this address",
    )
    options = StaticOptions(**vars(parser.parse_args()))
    serve(options)


if __name__ == "__main__":
    main()
