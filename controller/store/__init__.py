# SPDX-License-Identifier: Apache-2.0
"""Where the pool's state survives the controller."""
