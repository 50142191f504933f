# SPDX-License-Identifier: Apache-2.0
"""Imported last by what processes are forked off (forks.py): all that was imported stays.

No collection of garbage looks at it again, nor writes to its pages, which a fork would copy then.
"""

import gc

gc.collect()
gc.freeze()
