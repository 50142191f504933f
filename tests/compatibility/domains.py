# SPDX-License-Identifier: Apache-2.0
"""What this tree understands of a domain's XML and of what Nova's driver asks, as plain data.

Used by the recorder and by the test that reads again what releases wrote.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from sluice.hypervisor.domain_document import parse_domain
from sluice.hypervisor.request import DomainRequest
from sluice.server.listeners.vm_socket import VmListener, render


def plain(value: Any) -> Any:
    """Dataclasses, sets and tuples as JSON has them; fields go by the names that 0.1 recorded."""
    if isinstance(value, DomainRequest):
        return {"compute": value.compute_percent, **plain(asdict(value))}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value), key=str)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def read_domain(xml: str) -> Any:
    """A domain's XML as it is understood."""
    document = parse_domain(xml)
    found = plain(document)
    found["used"] = len(document.used)
    found["region"] = plain(document.region)
    return found


def ask_door(folder: Path, asked: str, **defaults: Any) -> dict[str, Any]:
    """What the door for Nova's driver answers, and the request that came of it."""
    prepared: list[DomainRequest] = []
    door = VmListener(
        folder,
        group="no-such-group",
        region_mib=256,
        slots=4,
        **defaults,
        prepare=lambda _, request: prepared.append(request),
        render=render,
        sessions=lambda _: ["4711 train.py"],
        look=lambda _: None,
        unplug=lambda uuid, seconds: True,
        plug=lambda uuid: [],
        ready=lambda uuid: None,
    )

    async def call() -> Any:
        door.open()
        try:
            reader, writer = await asyncio.open_unix_connection(str(folder / "vms.sock"))
            writer.write(asked.encode() + b"\n")
            answer = json.loads(await reader.readline())
            writer.close()
            return answer
        finally:
            await door.close()

    return {"answer": asyncio.run(call()), "requests": [plain(each) for each in prepared]}


def contains(found: Any, recorded: Any, where: str = "") -> Iterable[str]:
    """Where something recorded is not there any more, or is otherwise; what is new is no matter."""
    if isinstance(recorded, dict):
        if not isinstance(found, dict):
            yield f"{where}: {found!r} instead of an object"
            return
        for key, value in recorded.items():
            if key not in found:
                yield f"{where}.{key} is not there"
            else:
                yield from contains(found[key], value, f"{where}.{key}")
    elif isinstance(recorded, list):
        if not isinstance(found, list) or len(found) != len(recorded):
            yield f"{where}: {found!r} instead of {recorded!r}"
            return
        for n, value in enumerate(recorded):
            yield from contains(found[n], value, f"{where}[{n}]")
    elif found != recorded:
        yield f"{where}: {found!r} instead of {recorded!r}"
