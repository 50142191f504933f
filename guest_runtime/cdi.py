# SPDX-License-Identifier: Apache-2.0
"""`sluice cdi`: writes this machine's CDI specification, and lists what specifications offer.

Called by main.py in a guest and, for what both have, by the host's command (cli.cdi_commands),
which knows server.conf and YAML too. Containers of a VM go by the VM's own channel, and the pool
knows them as the VM: one VM is one trust domain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from . import cdi_specification as cdi
from .channels import PCI_DEVICES, is_ivshmem
from .configuration import Value, read_settings

CHANNELS = ("auto", "socket", "ivshmem", "tcp")
BUNDLE = "/opt/sluice"
#: More of a specification than anybody writes.
_MOST_BYTES = 4 << 20

Parse = Callable[[str], Any]


class Offered(NamedTuple):
    """A device that an engine finds, and what is wrong with it."""

    name: str  # sluice.io/vgpu=small
    file: str
    problem: str  # empty: what it mounts is there


def devices_of_machine(
    channel: str, settings: dict[str, Value], pci_devices: Path = PCI_DEVICES
) -> list[cdi.CdiDevice]:
    """The devices by a machine's own channel, without server.conf; raises CdiError.

    `auto`: the server's socket where there is one, else the ivshmem region, else TCP where a
    controller is set.
    """
    socket_path = Path(settings["client.server_socket"].text)
    if channel == "socket" or (channel == "auto" and socket_path.exists()):
        run_dir = str(socket_path.parent)
        return [
            cdi.socket_device(cdi.ALL, run_dir, bounded=False),
            cdi.socket_device(cdi.DEFAULT, run_dir, bounded=True),
        ]
    if channel in ("auto", "ivshmem"):
        named = settings["client.ivshmem"].text
        regions = [Path(named)] if named else _regions(pci_devices)
        if regions:
            return [cdi.region_device(str(regions[0]))]
        if channel == "ivshmem":
            raise cdi.CdiError(
                "this machine has no ivshmem device with its memory: on the host, `sluice vm "
                "attach`; `sluice check` here says more"
            )
    controllers = settings["controller.controller_addr"]
    if channel == "tcp" or controllers.origin != "default":
        return [cdi.network_device(controllers.text, settings["controller.ca"].text)]
    raise cdi.CdiError(
        f"containers would have no way to the pool: there is no {socket_path}, no ivshmem device "
        "and no controller in client.conf; name one with --channel"
    )


def _regions(pci_devices: Path) -> list[Path]:
    found = [device / "resource2" for device in sorted(pci_devices.glob("*")) if is_ivshmem(device)]
    return [path for path in found if path.exists()]


def offered(
    folders: Sequence[Path],
    kind: str = cdi.KIND,
    parse_yaml: Optional[Parse] = None,  # noqa: UP045
) -> list[Offered]:
    """Every device of that kind in an engine's folders; the later folder's where both have it.

    `parse_yaml` reads .yaml files; without it they are read as the JSON that they may hold.
    """
    found: dict[str, Offered] = {}
    for folder in folders:
        for path in sorted(folder.glob("*")) if folder.is_dir() else []:
            if path.suffix not in (".json", ".yaml"):
                continue
            parse = parse_yaml if path.suffix == ".yaml" and parse_yaml else json.loads
            for device in _devices_in(path, kind, parse):
                found[device.name] = device
    return sorted(found.values())


def _devices_in(path: Path, kind: str, parse: Parse) -> list[Offered]:
    try:
        with path.open(encoding="utf-8") as file:
            document = parse(file.read(_MOST_BYTES))
        if document["kind"] != kind:
            return []
        common = document.get("containerEdits") or {}
        return [
            Offered(f"{kind}={device['name']}", str(path), _problem(common, device))
            for device in document["devices"]
        ]
    except OSError as error:
        return [Offered(f"{kind}=?", str(path), f"cannot be read: {error.strerror}")]
    except Exception:
        # other vendors' files may be written as one pleases; ours are named after us
        if not path.name.startswith(cdi.FILE_NAME):
            return []
        return [Offered(f"{kind}=?", str(path), "is no CDI specification: generate it again")]


def _problem(*edits: dict[str, Any]) -> str:
    device_edits = edits[-1].get("containerEdits") or {}
    mounts = [*(edits[0].get("mounts") or ()), *(device_edits.get("mounts") or ())]
    missing = [str(m["hostPath"]) for m in mounts if not Path(m["hostPath"]).exists()]
    return f"there is no {', '.join(missing)}" if missing else ""


def show(devices: Sequence[Offered]) -> int:
    """Prints them; 1 where there is none or one is not whole."""
    if not devices:
        print("no specification offers sluice.io/vgpu: sluice cdi generate", file=sys.stderr)
        return 1
    width = max(len(device.name) for device in devices)
    for device in devices:
        state = f"  {device.problem}" if device.problem else ""
        print(f"{device.name.ljust(width)}  {device.file}{state}")
    return 1 if any(device.problem for device in devices) else 0


def cdi_command(words: Sequence[str]) -> int:
    """`sluice cdi generate|list` of the guest bundle; returns the exit status."""
    parser = argparse.ArgumentParser(prog="sluice cdi", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    generate = verbs.add_parser("generate", help="write the specification")
    generate.add_argument("--channel", choices=CHANNELS, default="auto")
    generate.add_argument("--bundle", default=BUNDLE, help="where the guest bundle is installed")
    generate.add_argument(
        "--output",
        default=str(cdi.STATIC_FOLDER / f"{cdi.FILE_NAME}.json"),
        help="a .json file; - for standard output",
    )
    listing = verbs.add_parser("list", help="the devices that engines find")
    listing.add_argument("--dir", action="append", default=[], help="instead of engines' folders")
    said = parser.parse_args(list(words))
    if said.verb == "list":
        folders = [Path(each) for each in said.dir] or [cdi.STATIC_FOLDER, cdi.DYNAMIC_FOLDER]
        return show(offered(folders))
    try:
        cdi.check_bundle(Path(said.bundle))
        devices = devices_of_machine(said.channel, read_settings())
        text = cdi.as_json(cdi.specification(said.bundle, devices))
        if said.output == "-":
            print(text, end="")
            return 0
        cdi.write(Path(said.output), text)
    except cdi.CdiError as error:
        print(f"sluice cdi: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sluice cdi: {said.output}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{said.output}: {', '.join(f'{cdi.KIND}={device.name}' for device in devices)}")
    return 0
