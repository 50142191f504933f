# SPDX-License-Identifier: Apache-2.0
"""sluice-server: GPUs, sessions, workers and channels of one host."""
