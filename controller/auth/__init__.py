# SPDX-License-Identifier: Apache-2.0
"""Who speaks to the controller, and what they may do."""
