# SPDX-License-Identifier: Apache-2.0
"""Grants and their sessions, from the first CUDA call to the end."""
