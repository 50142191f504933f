# SPDX-License-Identifier: Apache-2.0
"""Hears Nova's versioned notifications and says which instance to look at.

Used by service.py. Owns the listener and its threads, which are oslo.messaging's. A notification is
a hint and nothing more: what it says of the instance is not believed, and a lost one costs only
time until the next reconcile. The listener has a pool of its own, so that it takes no message away
from other listeners; that needs the exchange to be named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import oslo_messaging
from oslo_config import cfg

log = logging.getLogger(__name__)

POOL = "sluice"
Hint = Callable[[str, str], None]


class _Endpoint:
    """What oslo.messaging calls, in its threads, for each notification of any priority."""

    def __init__(self, hint: Hint) -> None:
        self._hint = hint

    def info(self, context: Any, publisher: str, event: str, payload: Any, metadata: Any) -> None:
        """Any notification; whatever is not an instance's is passed over."""
        if (server := server_of(event, payload)) is not None:
            self._hint(server, event)

    audit = debug = warn = error = critical = sample = info


def server_of(event: str, payload: Any) -> str | None:
    """The UUID of the instance that a notification is about; hostile input is None."""
    if not isinstance(payload, dict) or not str(event).startswith(("instance.", "compute_task.")):
        return None
    data = payload.get("nova_object.data")
    if not isinstance(data, dict):
        return None
    found = data.get("uuid") or data.get("instance_uuid")
    if not isinstance(found, str) or not 0 < len(found) <= 64:
        return None
    return found.lower()


class Notifications:
    """One listener. start() and stop() block."""

    def __init__(self, transport_url: str, topic: str, exchange: str, hint: Hint) -> None:
        self._url = transport_url
        self._target = oslo_messaging.Target(topic=topic, exchange=exchange)
        self._endpoint = _Endpoint(hint)
        self._listener: Any = None

    def start(self) -> None:
        """Begins to listen; raises oslo_messaging.MessagingException, and others of its drivers."""
        configuration = cfg.ConfigOpts()
        configuration([])
        transport = oslo_messaging.get_notification_transport(configuration, url=self._url)
        self._listener = oslo_messaging.get_notification_listener(
            transport, [self._target], [self._endpoint], executor="threading", pool=POOL
        )
        self._listener.start()

    def stop(self) -> None:
        """Ends the threads."""
        if self._listener is not None:
            self._listener.stop()
            self._listener.wait()
