# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack on one machine without systemd: Keystone, Placement, Glance, Neutron, Nova.

Used by tests/openstack; by hand: ``python -m tests.rigs.openstack.rig start|stop|status``.
"""
