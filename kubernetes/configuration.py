# SPDX-License-Identifier: Apache-2.0
"""kubernetes.conf as a model: what an operator may set for the cluster's parts.

Read by `sluice-kubernetes node` and `sluice-kubernetes controller`. Credentials of the cluster are
the pod's service account, or a kubeconfig file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sluice.config.ini import Section, read_config
from sluice.config.sections import LogSection, RestSection, pairs
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
        description="the file with a viewer's token, which only `sluice-kubernetes controller` "
        "needs (empty: none is needed)",
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
    publish_seconds: float = Field(
        15.0, ge=1, le=3600, description="how often slices and claims are looked at, {bounds}"
    )


class NodeSection(Section):
    """[node]: what `sluice-kubernetes node` finds on its host."""

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


class KubernetesConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log: LogSection = LogSection()
    controller: ControllerSection = Field(default_factory=ControllerSection)
    kubernetes: ClusterSection = Field(default_factory=ClusterSection)
    node: NodeSection = Field(default_factory=NodeSection)


def read_kubernetes_config(path: Path | None) -> KubernetesConfig:
    """Reads kubernetes.conf; None takes the default path if it is there, else the defaults."""
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    return read_config(path, KubernetesConfig)
