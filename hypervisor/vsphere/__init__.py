# SPDX-License-Identifier: Apache-2.0
"""Sluice and vSphere: GPUs in DirectPath I/O become nodes, and VMs that ask get vGPUs.

`sluice-vsphere` (__main__.py) follows one vCenter; `sluice vsphere` (cli.py) shows what it sees.
Only connection.py, inventory.py and guestinfo.py speak to vCenter; the rest is plain data.
"""
