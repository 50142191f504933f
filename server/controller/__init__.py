# SPDX-License-Identifier: Apache-2.0
"""The line to the controllers, and what they order."""
