# SPDX-License-Identifier: Apache-2.0
"""`sluice grant suspend|resume|move`, `sluice session suspend|resume`.

Mounted by cli.application into the commands of grants and sessions.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sluice.cli import completion, output
from sluice.cli.options import Address, Output, controller
from sluice.cli.output import Format
from sluice.cli.rest import CommandError, Controller
from sluice.cli.waiting import POLL_SECONDS, follow

SUSPEND_SECONDS, RESUME_SECONDS, MOVE_SECONDS = 60.0, 60.0, 120.0
EVENT_SECONDS = 3.0
WHY = ("grant.not_suspended", "grant.not_moved")

Grant = Annotated[str, typer.Argument(autocompletion=completion.grants)]
Session = Annotated[str, typer.Argument(autocompletion=completion.sessions)]
Gpu = Annotated[
    str,
    typer.Option(
        "--gpu", help="UUID, its beginning, or number on the node (none: any that has room)"
    ),
]
Seconds = Annotated[
    float, typer.Option("--wait", help="seconds to wait until it is done (0: not at all)")
]


def suspend_grant(
    grant: Grant,
    wait: Seconds = SUSPEND_SECONDS,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets it stand still: its memory goes to the host, its place on the GPUs is others'."""
    _suspend(controller(address), f"/grants/{grant}", wait, output_format)


def resume_grant(
    grant: Grant,
    wait: Seconds = RESUME_SECONDS,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets it go on, as soon as there is room on its GPUs."""
    _resume(controller(address), f"/grants/{grant}", wait, output_format)


def move_grant(
    grant: Grant,
    gpu: Gpu = "",
    wait: Seconds = MOVE_SECONDS,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets it go on on another GPU of its node: it is suspended, moved and resumed."""
    api = controller(address)
    before = _gpu_of(api.get(f"/grants/{grant}"))
    since, _ = _newest_event(api)
    answer = api.post(f"/grants/{grant}/move", {"gpu": gpu})
    answer = _followed(api, answer, "", wait, since)
    if wait and not _state(answer) and _gpu_of(answer) == before:
        why = _why(api, answer["id"], since)
        raise CommandError(f"grant {answer['id']} goes on where it was: {why}")
    if not output.show_data(answer, output_format):
        state = _state(answer)
        print(
            f"grant {answer['id']} is {state}, and moves"
            if state
            else f"grant {answer['id']} goes on on GPU {_gpu_of(answer)}"
        )


def suspend_session(
    session: Session,
    wait: Seconds = SUSPEND_SECONDS,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """The same of a session that is its grant's only one."""
    _suspend(controller(address), f"/sessions/{session}", wait, output_format)


def resume_session(
    session: Session,
    wait: Seconds = RESUME_SECONDS,
    address: Address = None,
    output_format: Output = Format.TABLE,
) -> None:
    """Lets it go on, as soon as there is room on its GPUs."""
    _resume(controller(address), f"/sessions/{session}", wait, output_format)


def _suspend(api: Controller, path: str, wait: float, output_format: Format) -> None:
    since, _ = _newest_event(api)
    answer = api.post(f"{path}/suspend", {})
    answer = _followed(api, answer, "suspended", wait, since)
    if not output.show_data(answer, output_format):
        state = answer["suspension"]["state"]
        print(f"grant {answer['id']} is {state}")


def _resume(api: Controller, path: str, wait: float, output_format: Format) -> None:
    answer = api.post(f"{path}/resume", {})
    answer = _followed(api, answer, "", wait)
    if not output.show_data(answer, output_format):
        state = _state(answer)
        print(f"grant {answer['id']} {'waits for room' if state == 'suspended' else 'goes on'}")


def _state(answer: dict[str, Any]) -> str:
    return str(answer["suspension"]["state"]) if answer["suspension"] else ""


def _followed(
    api: Controller, answer: dict[str, Any], wanted: str, wait: float, since: int = 0
) -> dict[str, Any]:
    """The grant, once it stands as is wanted; raises CommandError where it does not come to it.

    `since`: the newest event before it was asked for.
    """
    if not wait:
        return answer
    what, begun = f"grant {answer['id']}", _state(answer)

    def look() -> tuple[bool, str]:
        nonlocal answer
        answer = api.get(f"/grants/{answer['id']}")
        state = _state(answer)
        if answer["state"] == "ended":
            raise CommandError(f"{what} has ended: {answer['reason']}")
        if wanted == "suspended" and begun == "suspending" and not state:
            raise CommandError(f"{what} runs as before: {_why(api, answer['id'], since)}")
        note = answer["suspension"]["note"] if answer["suspension"] else ""
        return state == wanted, f"it is {state or 'running'}" + (f" ({note})" if note else "")

    follow(look, wait, what)
    return answer


def _gpu_of(answer: dict[str, Any]) -> str:
    return str(answer["vgpus"][0]["gpu"])


def _newest_event(api: Controller, **about: str) -> tuple[int, str]:
    """Number and text of the newest that says why something was not done; 0: there is none."""
    found = [api.get("/events", kind=kind, **about)["events"][:1] for kind in WHY]
    said = [(int(event["number"]), str(event["text"])) for events in found for event in events]
    return max(said, default=(0, ""))


def _why(api: Controller, grant_id: str, since: int) -> str:
    """The text of such an event behind that one; it comes a moment after the grant runs again."""
    deadline = time.monotonic() + EVENT_SECONDS
    while True:
        number, text = _newest_event(api, subject=grant_id)
        if number > since:
            return text
        if time.monotonic() >= deadline:
            return "see `sluice event list`"
        time.sleep(POLL_SECONDS)
