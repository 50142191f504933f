# SPDX-License-Identifier: Apache-2.0
"""The ids that a task works for: of a request, a grant, a session. JSON log lines carry them.

Used by both services. Ids are bound where work begins (a REST request, a gRPC call, a client's
session) and are seen by everything that is awaited or started from there; nobody passes them on by
hand. A request's id comes from its caller if it is fit for a log, else it is made here.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

METADATA_KEY = "x-request-id"  # of gRPC calls, and the header of REST requests
FIT = re.compile(r"[A-Za-z0-9._:-]{1,64}")

_NONE: Mapping[str, str] = {}
_ids: ContextVar[Mapping[str, str]] = ContextVar("sluice_ids", default=_NONE)


def bound_ids() -> Mapping[str, str]:
    """What is bound here, by the names of the fields of a log line."""
    return _ids.get()


def request_id() -> str:
    """The id of the request that is worked for; empty: none."""
    return _ids.get().get("request_id", "")


def bind(**ids: str) -> None:
    """Binds ids until the task ends; only for a task that does nothing else afterwards."""
    _ids.set(_with(ids))


@contextlib.contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Binds ids for the length of a block; empty ones leave what was bound."""
    token = _ids.set(_with(ids))
    try:
        yield
    finally:
        _ids.reset(token)


def new_request_id() -> str:
    """One that nobody has."""
    return secrets.token_hex(8)


def fit_or_new(given: str | None) -> str:
    """The caller's id, unless it has none or one that could forge a log line."""
    return given if given and FIT.fullmatch(given) else new_request_id()


def _with(ids: Mapping[str, str]) -> Mapping[str, str]:
    return {**_ids.get(), **{name: value for name, value in ids.items() if value}}
