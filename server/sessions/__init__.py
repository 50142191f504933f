# SPDX-License-Identifier: Apache-2.0
"""What a session is, from its opening to its end."""
