# SPDX-License-Identifier: Apache-2.0
"""The connection to the controllers, and what they order."""
