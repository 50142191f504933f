# SPDX-License-Identifier: Apache-2.0
"""This host's GPUs: found, checked, watched."""
