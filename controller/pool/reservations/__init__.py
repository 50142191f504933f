# SPDX-License-Identifier: Apache-2.0
"""What is kept for an owner, used or not, and the VMs that ask for it by metadata."""
