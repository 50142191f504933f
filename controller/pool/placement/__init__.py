# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a request gets, and whether it ever could get any."""
