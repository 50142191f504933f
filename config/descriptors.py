# SPDX-License-Identifier: Apache-2.0
"""How many descriptors a service may have, which is what its listeners' connections come out of.

Used by both services when they start. The usual soft limit of 1,024 is for programs that use
select(); nothing here does.
"""

from __future__ import annotations

import resource

#: Where the hard limit is none, or larger than anybody needs.
MOST = 1 << 16


def allow_many() -> int:
    """Raises the soft limit as far as it goes, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
