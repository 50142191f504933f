# SPDX-License-Identifier: Apache-2.0
"""The name of a gRPC call: the request id in its metadata, which its answer carries back.

Used by auth.node_guard, behind which every call passes. gRPC runs each call in a task of its own,
so what is bound here is bound for that call.
"""

from __future__ import annotations

from typing import Any

import grpc

from sluice.config.log_ids import FIT, METADATA_KEY, bind


def name_call(context: grpc.aio.ServicerContext[Any, Any], otherwise: str) -> None:
    """Binds the caller's id, or another one where it gave none that is fit for a log."""
    given = next((str(v) for k, v in context.invocation_metadata() or () if k == METADATA_KEY), "")
    name = given if FIT.fullmatch(given) else otherwise
    if FIT.fullmatch(name):
        bind(request_id=name)
        context.set_trailing_metadata(((METADATA_KEY, name),))
