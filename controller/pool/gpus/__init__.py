# SPDX-License-Identifier: Apache-2.0
"""Nodes and GPUs: what they are, what is free on them, and who has a whole one."""
