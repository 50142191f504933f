# SPDX-License-Identifier: Apache-2.0
"""What the pool was like before: sampled while a controller leads, kept in a file of its own."""
