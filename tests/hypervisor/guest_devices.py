# SPDX-License-Identifier: Apache-2.0
"""What a guest's shell says of its channel's devices."""

from __future__ import annotations

DEVICES = "grep -l 0x1110 /sys/bus/pci/devices/*/device | xargs -rn1 dirname | xargs -rn1 basename"
#: QEMU has a device that is plugged in before the guest does.
PLUGGED = f'for i in $(seq 300); do [ -n "$({DEVICES})" ] && break; sleep 0.1; done'
