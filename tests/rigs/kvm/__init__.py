# SPDX-License-Identifier: Apache-2.0
"""A private libvirt with two-second guests, for the demo and the tests.

Owns everything below ``build/rig/``; touches neither the system's libvirt nor its definitions.
The way in is :class:`tests.rigs.kvm.rig.Rig`.
"""
