# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a request to REST: the `type` of each problem document, and its title.

By the type callers decide; titles and details are for people and may change. What the framework
refuses itself (unknown paths, wrong methods) has the type about:blank: its status says all.
docs/rest-problems.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

PREFIX = "urn:sluice:problem:"


class ProblemType(Enum):
    """Values are the end of the URI and the title."""

    AMBIGUOUS_GPU = "ambiguous-gpu", "Ambiguous GPU"
    BODY_REFUSED = "body-refused", "Body refused"
    BODY_TOO_LARGE = "body-too-large", "Body too large"
    CLIENT_HUNG_UP = "client-hung-up", "Client hung up"
    ENROLMENT_OVER = "enrolment-over", "Enrolment is over"
    GENERATION_CHANGED = "generation-changed", "Generation has changed"
    GRANT_ENDED = "grant-ended", "Grant has ended"
    INVALID_CHOICE = "invalid-choice", "Not a choice"
    INVALID_JOB_TOKEN = "invalid-job-token", "Not a job"
    INVALID_KEY = "invalid-key", "Not a key"
    INVALID_MARKER = "invalid-marker", "Not a marker"
    INVALID_REQUEST = "invalid-request", "Invalid request"
    KEY_OF_ANOTHER_REQUEST = "key-of-another-request", "Key is another request's"
    KEYSTONE_BUSY = "keystone-busy", "Keystone is busy"
    LAST_ADMIN_TOKEN = "last-admin-token", "Last admin token"
    LOG_UNREADABLE = "log-unreadable", "Log cannot be read"
    NODE_NOT_CONNECTED = "node-not-connected", "Node is not connected"
    NO_FIGURES = "no-figures", "No figures"
    NOT_ALLOWED = "not-allowed", "Not allowed"
    NOT_ATTACHED = "not-attached", "Not attached"
    NOT_AUTHENTICATED = "not-authenticated", "Not authenticated"
    NOT_CHECKED = "not-checked", "Not checked"
    NOT_CLEARED = "not-cleared", "Not cleared"
    NOT_DETACHED = "not-detached", "Not detached"
    NOT_FOUND = "not-found", "No such resource"
    NOT_GRANTED = "not-granted", "Not granted"
    NOT_POSSIBLE = "not-possible", "Not possible"
    NOT_RESIZED = "not-resized", "Not resized"
    NOTHING_WAITS = "nothing-waits", "Nothing waits"
    OUTCOME_UNKNOWN = "outcome-unknown", "Outcome is not known"
    PROJECT_OF_ANOTHER = "project-of-another", "Another's project"
    REQUEST_UNDER_WAY = "request-under-way", "Request is under way"
    RESERVATION_OF_ANOTHER = "reservation-of-another", "Another's reservation"
    RESERVATION_OVER = "reservation-over", "Reservation is over"
    RESIZE_UNKNOWN = "resize-unknown", "Not known whether resized"
    SESSION_NOT_ENDED = "session-not-ended", "Session is not ended"
    SESSION_NOT_TAKEN = "session-not-taken", "No node took the session"
    STORE_UNAVAILABLE = "store-unavailable", "The store does not work"
    TOO_MANY_HOLDS = "too-many-holds", "Too many held jobs"
    TOO_MANY_KEYS = "too-many-keys", "Too many keys"
    TOO_MANY_REQUESTS = "too-many-requests", "Too many requests"
    TOO_MANY_REQUESTS_UNDER_WAY = "too-many-requests-under-way", "Too many requests under way"
    TOO_MANY_STREAMS = "too-many-streams", "Too many event streams"

    @property
    def uri(self) -> str:
        """What a document has as its `type`."""
        return PREFIX + self.value[0]

    @property
    def title(self) -> str:
        """The same for every problem of the type."""
        return self.value[1]


def type_in(document: Mapping[str, Any]) -> str:
    """The type of a problem document; "" where it has none, as a controller of 0.1's."""
    found = str(document.get("type", ""))
    return found if found.startswith(PREFIX) else ""
