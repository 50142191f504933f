# SPDX-License-Identifier: Apache-2.0
"""How the host's memory for suspended sessions is made: by the kernel, or by the GPUs' driver."""
