# SPDX-License-Identifier: Apache-2.0
"""The place of the OpenStack adapter, which does not exist yet.

Importing this package raises an ImportError that names what is missing, so that a deployment that
counts on it learns of it at once. README.md in this folder says what the adapter will do and what
to use until then.
"""

raise ImportError(
    "sluice.nova_driver is not part of this release: the reader of flavors' extra specs, the "
    "Placement inventory and the compute-side attach are not written yet. Give a Nova instance "
    "its vGPU with `sluice vm attach`, naming the libvirt domain (instance-…) on its compute host."
)
