# SPDX-License-Identifier: Apache-2.0
"""Requests that wait: their order, how they are served, and whose work gives way."""
