# SPDX-License-Identifier: Apache-2.0
"""What several parts of Sluice mean the same by: plain data without I/O."""
