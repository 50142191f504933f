# SPDX-License-Identifier: Apache-2.0
"""What a job is called where its token must not be known.

Used by the server and the controller, which both see tokens of clients. A token is a secret of the
job's processes (`sluice run --share` makes it); stores, logs and listings have its hash.
"""

from __future__ import annotations

import hashlib
import re

TOKEN = re.compile(r"[0-9a-f]{32}")


def job_of(token: str) -> str:
    """The job's name; raises ValueError for what is no token."""
    if not TOKEN.fullmatch(token):
        raise ValueError(
            "SLUICE_JOB is no token of `sluice run --share` (32 hexadecimal digits): unset it, or "
            "start the job with `sluice run --share`"
        )
    return hashlib.sha256(b"sluice job " + token.encode()).hexdigest()[:32]
