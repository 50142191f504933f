# SPDX-License-Identifier: Apache-2.0
"""sluice-kubernetes: the parts of a cluster, until SIGTERM or SIGINT.

`node` and, without DRA, `device-plugin` run on each node; `controller` and, without DRA, `extender`
once for a cluster.

Exit status: 0 after a signal, 2 for a wrong configuration. A pool or a cluster that does not answer
is waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from sluice.config.ini import ConfigError
from sluice.config.logs import set_up_logging
from sluice.kubernetes.allocations import Allocations
from sluice.kubernetes.cdi_files import CdiFiles
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import KubernetesConfig, read_kubernetes_config
from sluice.kubernetes.device_health import DeviceHealth
from sluice.kubernetes.device_plugin import DevicePlugin, Parts
from sluice.kubernetes.device_plugin_socket import DevicePluginSocket
from sluice.kubernetes.extender import Extender
from sluice.kubernetes.https_service import CannotListen, listening, renew_for_ever
from sluice.kubernetes.kubelet import KubeletSockets
from sluice.kubernetes.naming import DRIVER
from sluice.kubernetes.node_plugin import NodePlugin
from sluice.kubernetes.pod_resources import PodResources
from sluice.kubernetes.pods import Pods
from sluice.kubernetes.pool_follower import PoolFollower
from sluice.kubernetes.publishing import KubernetesController, Leftovers, Publisher
from sluice.kubernetes.server_socket import ServerSocket
from sluice.kubernetes.suspended_events import SuspendedEvents
from sluice.kubernetes.waiting import Holdings
from sluice.kubernetes.waiting_events import WaitingEvents
from sluice.pool_client.access import Access, Credentials
from sluice.pool_client.async_client import AsyncPoolClient
from sluice.pool_client.errors import UnusableAccess


def _pool(config: KubernetesConfig, token_file: Path | None) -> AsyncPoolClient:
    section = config.controller
    addresses = ",".join(section.addresses)
    return AsyncPoolClient(
        Access.of(addresses, Credentials(section.ca_file, token_file)), trust_env=False
    )


async def run_node(config: KubernetesConfig) -> None:
    """The kubelet's plugin of this node."""
    section = config.node
    async with (
        await Cluster.connect(config.kubernetes.kubeconfig) as cluster,
        _pool(config, config.controller.token_file) as pool,
    ):
        server = ServerSocket(section.server_run_dir)
        files = CdiFiles(section.cdi_dir, section.bundle)
        plugin = NodePlugin(config.kubernetes, cluster, pool, server, files)
        health = DeviceHealth(cluster, server)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(KubeletSockets(section.kubelet_dir, plugin, health).serve())
            tasks.create_task(plugin.sweep_for_ever())


async def run_controller(config: KubernetesConfig) -> None:
    """Slices and leftovers."""
    section = config.kubernetes
    async with (
        await Cluster.connect(section.kubeconfig) as cluster,
        _pool(config, config.controller.token_file) as pool,
        _pool(config, config.controller.viewer_token_file) as viewer,
    ):
        publisher = Publisher(section, cluster, viewer)
        holdings = Holdings()
        leftovers = Leftovers(section, cluster, viewer, pool, holdings)
        waiting = WaitingEvents(cluster, lambda: publisher.devices, holdings)
        suspended = SuspendedEvents(cluster, viewer)
        await KubernetesController(section, publisher, leftovers, waiting, suspended, viewer).run()


async def run_device_plugin(config: KubernetesConfig) -> None:
    """The kubelet's device plugin of this node."""
    section, node = config.kubernetes, config.node
    async with (
        await Cluster.connect(section.kubeconfig) as cluster,
        _pool(config, config.controller.token_file) as pool,
        _pool(config, config.controller.viewer_token_file) as viewer,
    ):
        pool_follower = PoolFollower(section, viewer, pool, node=node.node_name)
        parts = Parts(
            cluster,
            pool_follower,
            ServerSocket(node.server_run_dir),
            CdiFiles(node.cdi_dir, node.bundle),
            PodResources(node.kubelet_dir),
            Allocations(node.kubelet_dir / "plugins" / DRIVER / "devices"),
        )
        plugin = DevicePlugin(section, node, parts)
        async with asyncio.TaskGroup() as tasks:
            seconds = section.publish_seconds * NODES_PATIENCE
            tasks.create_task(pool_follower.look_for_ever(seconds, parts=False))
            tasks.create_task(plugin.sweep_for_ever())
            tasks.create_task(DevicePluginSocket(node.kubelet_dir, plugin).serve())


async def run_extender(config: KubernetesConfig) -> None:
    """The scheduler's extender and the webhook."""
    section = config.kubernetes
    async with (
        await Cluster.connect(section.kubeconfig) as cluster,
        _pool(config, config.controller.token_file) as pool,
        _pool(config, config.controller.viewer_token_file) as viewer,
    ):
        pool_follower = PoolFollower(section, viewer, pool)
        extender = Extender(section, cluster, pool_follower)
        async with listening(config, extender) as context, asyncio.TaskGroup() as tasks:
            tasks.create_task(pool_follower.follow())
            tasks.create_task(Pods(section, cluster, pool_follower, extender).run())
            tasks.create_task(renew_for_ever(config.extender, context))


#: There are many nodes, and what is reserved for one changes seldom.
NODES_PATIENCE = 4

PARTS = {
    "node": run_node,
    "controller": run_controller,
    "device-plugin": run_device_plugin,
    "extender": run_extender,
}


async def until_signal(config: KubernetesConfig, part: str) -> int:
    """Runs a part until it is told to stop."""
    running = asyncio.ensure_future(PARTS[part](config))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return 0


def main() -> int:
    """The console command."""
    parser = argparse.ArgumentParser(
        prog="sluice-kubernetes", description="The pool's part in a Kubernetes cluster."
    )
    parser.add_argument("part", choices=tuple(PARTS), help="which part to run")
    parser.add_argument("--config", type=Path, help="kubernetes.conf to read")
    parser.add_argument("--node", help="what the cluster calls this node, before [node] node_name")
    arguments = parser.parse_args()
    try:
        config = read_kubernetes_config(arguments.config)
        if arguments.node:
            node = config.node.model_copy(update={"node_name": arguments.node})
            config = config.model_copy(update={"node": node})
        set_up_logging(config.log, f"kubernetes-{arguments.part}")
        return asyncio.run(until_signal(config, arguments.part))
    except (ConfigError, UnusableAccess, ClusterError, CannotListen) as error:
        print(f"sluice-kubernetes: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
