# SPDX-License-Identifier: Apache-2.0
"""What Nova loads: the extra specs' meaning, their validators and the virt driver.

Installed beside Nova as the package `sluice_nova` (wheel sluice-nova), and part of Sluice itself as
`sluice.nova_driver.compute`; so its modules import each other relatively, and otherwise nothing but
Nova and the standard library.
"""
