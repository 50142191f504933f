# SPDX-License-Identifier: Apache-2.0
"""kubernetes.conf as a model: what an operator may set for the cluster's parts.

Read by every part of `sluice-kubernetes`. Credentials of the cluster are
the pod's service account, or a kubeconfig file.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sluice.config.ini import Section, read_config
from sluice.config.sections import IpAddress, LogSection, Port, RestSection, pairs, split_commas
from sluice.kubernetes.spellings import Spelling
from sluice.resources.vgpu_request import PRIORITY, PROJECT

DEFAULT_PATH = Path("/etc/sluice/kubernetes.conf")

Name = Annotated[str, Field(pattern=f"^{PROJECT.pattern}$", max_length=56)]


def _selector(value: object) -> object:
    if not isinstance(value, str) or not value:
        return value or None
    key, equals, text = value.partition("=")
    if not equals or not key or not text:
        raise ValueError("is not NAME=VALUE")
    return (key.strip(), text.strip())


def _priorities(value: object) -> object:
    if not isinstance(value, str):
        return value
    return pairs(value, "names a class twice; give each one entry")


class ControllerSection(RestSection):
    """[controller]: where the pool is."""

    token_file: Path | None = Field(
        None,
        description="the file with a token of the cluster: `sluice token create --role tenant`, "
        "with the cluster's project and label (empty: none is needed)",
    )
    viewer_token_file: Path | None = Field(
        None,
        description="the file with a viewer's token, which `sluice-kubernetes controller` "
        "and the parts for clusters without DRA need (empty: none is needed)",
    )


class ClusterSection(Section):
    """[kubernetes]: which cluster, and what of the pool is its own."""

    kubeconfig: Path | None = Field(
        None, description="a kubeconfig file (empty: the service account of the pod)"
    )
    label: Name = Field(
        "kubernetes",
        description="what the pool has reserved for this label is the cluster's: "
        "`sluice reservation create label:kubernetes`",
    )
    project: Name = Field(
        "kubernetes",
        description="the project whose claims are the namespaces' accounts: a namespace's project "
        "is PROJECT.NAMESPACE",
    )
    reach: Annotated[tuple[str, str] | None, BeforeValidator(_selector)] = Field(
        None,
        description="nodes of the cluster with this label NAME=VALUE use every GPU that is "
        "reserved, those of other nodes by relay (empty: each node uses its own GPUs, and is "
        "called in the pool as in the cluster)",
    )
    priorities: Annotated[
        dict[str, Annotated[int, Field(ge=PRIORITY.low, le=PRIORITY.high)]],
        BeforeValidator(_priorities),
    ] = Field(
        default_factory=dict,
        description="priority classes and the pool's priorities, with commas: batch=-5, urgent=20 "
        "(others have 0)",
    )
    spellings: Annotated[tuple[Spelling, ...], BeforeValidator(split_commas)] = Field(
        (),
        description="whose names of resources the webhook reads besides ours, with commas: nvidia, "
        "hami, bitfusion, orionx (empty: nobody's, as another device plugin may have them)",
    )
    publish_seconds: float = Field(
        15.0, ge=1, le=3600, description="how often slices and claims are looked at, {bounds}"
    )

    def priority_of(self, pod: Mapping[str, Any]) -> int:
        """The pool's priority of a pod (JSON), by its priority class."""
        name = (pod.get("spec") or {}).get("priorityClassName")
        return self.priorities.get(str(name), 0)


class NodeSection(Section):
    """[node]: what the parts of a node find on its host."""

    server_run_dir: Path = Field(
        Path("/run/sluice"), description="the run_dir of this host's sluice-server"
    )
    bundle: Path = Field(
        Path("/opt/sluice"), description="where this host has the guest bundle for containers"
    )
    cdi_dir: Path = Field(
        Path("/var/run/cdi"), description="the folder that the container runtime reads CDI from"
    )
    kubelet_dir: Path = Field(Path("/var/lib/kubelet"), description="the kubelet's folder")
    node_name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=253,
        description="what the cluster calls this node; only the device plugin asks",
        json_schema_extra={"default": "the host's name"},
    )
    cdi: bool = Field(
        True,
        description="true or false: the device plugin names CDI devices, or else mounts and "
        "variables, for container runtimes without CDI",
    )


class ExtenderSection(Section):
    """[extender]: where `sluice-kubernetes extender` listens, for scheduler and API server."""

    bind_addr: IpAddress = Field("0.0.0.0", description="the address to listen on")
    port: Port = Field(9443, description="the port to listen on, HTTPS")
    cert_file: Path = Field(
        Path("/etc/sluice-tls/tls.crt"),
        description="its certificate, which the webhook's caBundle and the scheduler's CA check",
    )
    key_file: Path = Field(Path("/etc/sluice-tls/tls.key"), description="the certificate's key")
    client_ca_file: Path | None = Field(
        None,
        description="the CA of the scheduler's certificate (tlsConfig of its extender), without "
        "which nobody filters and binds (empty: who reaches the port can bind a pod that waits)",
    )


class KubernetesConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    controller: ControllerSection = Field(default_factory=ControllerSection)
    kubernetes: ClusterSection = Field(default_factory=ClusterSection)
    node: NodeSection = Field(default_factory=NodeSection)
    extender: ExtenderSection = Field(default_factory=ExtenderSection)


def read_kubernetes_config(path: Path | None) -> KubernetesConfig:
    """Reads kubernetes.conf; None takes the default path if it is there, else the defaults."""
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return read_config(path, KubernetesConfig)
