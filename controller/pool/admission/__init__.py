# SPDX-License-Identifier: Apache-2.0
"""Who may ask for what, and the words of every refusal."""
