# SPDX-License-Identifier: Apache-2.0
"""Makes CDI specifications: what a container engine adds to a container so that CUDA programs of an
ordinary image use the pool.

Used by guest_runtime.cdi, by `sluice cdi` on a host (containers.commands) and by the Kubernetes
parts. The format is that of the Container Device Interface (cncf-tags/container-device-interface,
SPEC.md); nothing is used that version 0.3.0 has not, so that every engine with CDI takes it. No
hooks: a mount of the guest bundle, one of the channel, and variables are enough, and nothing of the
host runs inside of containers. Image and program keep their loader's cache and LD_LIBRARY_PATH: the
loader hook (LD_AUDIT) alone puts our libraries in the place of NVIDIA's.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .device_file import CONTROL

CDI_VERSION = "0.3.0"
KIND = "sluice.io/vgpu"
#: Where engines look for specifications: what an operator wrote, and what programs made.
STATIC_FOLDER = Path("/etc/cdi")
DYNAMIC_FOLDER = Path("/var/run/cdi")
FILE_NAME = "sluice"
#: The device that bounds nothing, and the one that is a default slice of the pool.
ALL = "all"
DEFAULT = "default"

#: Where containers find the guest bundle and the server's socket; the client library's defaults.
BUNDLE_IN_CONTAINER = "/opt/sluice"
SOCKET_FOLDER_IN_CONTAINER = "/run/sluice"
REGION_IN_CONTAINER = "/run/sluice-region"
CA_IN_CONTAINER = "/run/sluice-ca.pem"
#: A job's token where the container is the job: the server knows whose it is by the container.
CONTAINER_JOB = "0" * 32

#: What a name may be, by the CDI specification (0.3.0) and a bit less.
DEVICE_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_READ_ONLY = ["ro", "nosuid", "nodev", "bind"]
#: What tells programs of musl images why they find no CUDA (packaging/musl_notice.py).
_MUSL_PATH = "libexec/musl/ld-musl-x86_64.path"
#: The nvidia-smi of the bundle, where containers look for commands.
_SMI, _SMI_IN_CONTAINER = "bin/nvidia-smi", "/usr/local/bin/nvidia-smi"
_NEEDED = (
    "lib/libcuda.so.1",
    "lib/libcudart.so.12",
    "lib/libcudart.so.13",
    "lib/libsluice-audit.so",
)


class CdiError(Exception):
    """A specification cannot be made; the text says what is missing and what to do."""


class Mount(NamedTuple):
    """A file or folder of the host in the container."""

    host: str
    container: str
    options: Sequence[str] = tuple(_READ_ONLY)

    def entry(self) -> dict[str, Any]:
        """As the specification has it."""
        return {
            "hostPath": self.host,
            "containerPath": self.container,
            "options": list(self.options),
        }


class CdiDevice(NamedTuple):
    """One name behind `sluice.io/vgpu=`, and what a container with it gets."""

    name: str
    mounts: Sequence[Mount] = ()
    variables: Mapping[str, str] = {}

    def entry(self) -> dict[str, Any]:
        """As the specification has it; raises CdiError."""
        if not DEVICE_NAME.fullmatch(self.name):
            raise CdiError(
                f"{self.name!r} is no name of a device: begin with a letter, go on with letters, "
                "digits, `-`, `_` and `.`, 63 in all"
            )
        return {"name": self.name, "containerEdits": _edits(self.mounts, self.variables)}


def socket_device(name: str, run_dir: str, *, bounded: bool) -> CdiDevice:
    """A device by which a container reaches this host's server, over that name's own socket.

    `run_dir` is the server's ([server] run_dir). A bounded one is a slice, which all processes of
    the container share as one job. The folder is mounted and not the socket in it, which is another
    one after a restart of the server.
    """
    variables = {"SLUICE_CHANNEL": "shm"}
    if bounded:
        variables["SLUICE_JOB"] = CONTAINER_JOB
    return CdiDevice(
        name, [Mount(socket_folder(run_dir, name), SOCKET_FOLDER_IN_CONTAINER)], variables
    )


def socket_folder(run_dir: str, name: str) -> str:
    """The folder of a device's socket on the host."""
    return f"{run_dir.rstrip('/')}/containers/{name}/socket"


def region_device(resource: str) -> CdiDevice:
    """Inside a VM: its ivshmem region, by the path of the device's `resource2`.

    sysfs is read-only in containers; a file of it that is mounted by itself is not.
    """
    mount = Mount(resource, REGION_IN_CONTAINER, ["rw", "nosuid", "nodev", "noexec", "bind"])
    return CdiDevice(
        ALL, [mount], {"SLUICE_CHANNEL": "ivshmem", "SLUICE_IVSHMEM": REGION_IN_CONTAINER}
    )


def network_device(controllers: str, ca: str = "") -> CdiDevice:
    """By TCP: the controllers' addresses as SLUICE_CONTROLLER has them, and a CA's file."""
    variables = {"SLUICE_CHANNEL": "tcp", "SLUICE_CONTROLLER": controllers}
    mounts = []
    if ca:
        variables["SLUICE_CA"] = CA_IN_CONTAINER
        mounts.append(Mount(ca, CA_IN_CONTAINER))
    return CdiDevice(ALL, mounts, variables)


def specification(bundle: str, devices: Sequence[CdiDevice], kind: str = KIND) -> dict[str, Any]:
    """The specification as JSON has it; raises CdiError.

    `bundle` is where the guest bundle is installed on the host (/opt/sluice).
    """
    if not devices:
        raise CdiError("there is no device to describe")
    library = f"{BUNDLE_IN_CONTAINER}/lib"
    mounts = [Mount(bundle, BUNDLE_IN_CONTAINER), Mount(os.devnull, CONTROL)]
    if (Path(bundle) / _MUSL_PATH).exists():  # a bundle of before has none
        mounts.append(Mount(f"{bundle}/{_MUSL_PATH}", f"/etc/{Path(_MUSL_PATH).name}"))
    if (Path(bundle) / _SMI).exists():
        mounts.append(Mount(f"{bundle}/{_SMI}", _SMI_IN_CONTAINER))
    variables = {"LD_AUDIT": f"{library}/libsluice-audit.so", "TRITON_LIBCUDA_PATH": library}
    return {
        "cdiVersion": CDI_VERSION,
        "kind": kind,
        "devices": [device.entry() for device in devices],
        "containerEdits": _edits(mounts, variables),
    }


def check_bundle(bundle: Path) -> None:
    """Raises CdiError unless the guest bundle with libraries for CUDA 12 and 13 is there."""
    missing = [name for name in _NEEDED if not (bundle / name).exists()]
    if missing:
        raise CdiError(
            f"{bundle} has no {', '.join(missing)}: install the guest bundle on this host "
            "(sluice-guest/install.sh --no-ldconfig, or the package sluice-guest), or say where it "
            "is with --bundle"
        )


def write(path: Path, text: str) -> None:
    """Puts a specification in its place at once, readable by all; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # engines read every *.json and *.yaml of the folder: one that is half written has neither end
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink()
        raise


def as_json(found: Mapping[str, Any]) -> str:
    """The text of a .json file."""
    return json.dumps(found, indent=2) + "\n"


def _edits(mounts: Sequence[Mount], variables: Mapping[str, str]) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if variables:
        edits["env"] = [f"{name}={value}" for name, value in sorted(variables.items())]
    if mounts:
        edits["mounts"] = [mount.entry() for mount in mounts]
    return edits
