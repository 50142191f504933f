# SPDX-License-Identifier: Apache-2.0
"""How often a GPU's memory may be promised (docs/oversubscription.md): the bound of both settings.

Beyond it a GPU has no room left for what stays of so many sessions.
"""

MOST_MEMORY_FACTOR = 16.0
