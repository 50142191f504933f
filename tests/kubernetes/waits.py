# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a cluster and its pool do, without keeping them from doing it.

Used by every module here. Each look is a request to the API server or to the pool's controller:
many a second would take from two cores what pods need to begin.
"""

from __future__ import annotations

from functools import partial

import control_plane

wait_for = partial(control_plane.wait_for, longest_pause=0.15)
