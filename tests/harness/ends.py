# SPDX-License-Identifier: Apache-2.0
"""Ends of grants and sessions, as tests have servers and operators give them."""

from __future__ import annotations

from sluice.resources.ends import End, EndCause

DONE = End(EndCause.CLIENT_ENDED, "done")
GONE = End(EndCause.WITHDRAWN, "the client went away")
BY_OPERATOR = End(EndCause.OPERATOR, "ended by the operator")
GAVE_WAY = End(EndCause.PREEMPTED, "preempted: to begin anew")
FAILED = End(EndCause.GPU_FAILED, "XID 79")
