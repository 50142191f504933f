# SPDX-License-Identifier: Apache-2.0
"""Which of several controllers leads, and what the others answer."""
