# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint of a worker's process: its context leaves the GPU, and comes back."""
