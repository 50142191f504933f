# SPDX-License-Identifier: Apache-2.0
"""A job over several nodes, as the tests of the pool's decisions ask for it."""

from __future__ import annotations

from typing import Any

from sluice.controller.pool.grants.jobs import JobKey

KEY = JobKey("j1", "net 10.0.0.9")
JOB: dict[str, Any] = {
    "job": KEY.job,
    "job_domain": KEY.domain,
    "channel": "tcp",
    "cross_node": True,
    "count": 3,
    "memory_mib": 4000,
}
OVERHEAD = 500  # MiB of each context
