# SPDX-License-Identifier: Apache-2.0
"""What needs somebody's attention: rules over the pool, what fires, and who is told."""
