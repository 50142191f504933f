# SPDX-License-Identifier: Apache-2.0
"""Nova's API refuses a flavor with a wrong `vgpu:` extra spec (entry point
nova.api.extra_spec_validators).

Loaded by nova-api. Nova asks it for API versions from 2.86 on, one key at a time; what spans keys,
and what older versions let pass, the driver and the adapter find with the same limits.
"""

from __future__ import annotations

from nova.api.validation.extra_specs import base

from .extra_specs import CROSS_NODE_MEANING, FALSE, MODE_MEANING, MODES, NAMESPACE, NUMBERS


def register() -> list[base.ExtraSpecValidator]:
    """One validator for each key; Nova refuses other keys of the namespace by itself."""
    numbers = [
        base.ExtraSpecValidator(
            name=NAMESPACE + key,
            description=meaning,
            value={"type": int, "description": meaning, "min": low, "max": high},
        )
        for key, (low, high, _, meaning) in NUMBERS.items()
    ]
    return [
        *numbers,
        base.ExtraSpecValidator(
            name=f"{NAMESPACE}mode",
            description=MODE_MEANING,
            value={"type": str, "description": MODE_MEANING, "enum": list(MODES)},
        ),
        base.ExtraSpecValidator(
            name=f"{NAMESPACE}cross_node",
            description=CROSS_NODE_MEANING,
            value={"type": str, "description": CROSS_NODE_MEANING, "enum": list(FALSE)},
        ),
    ]
