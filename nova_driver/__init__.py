# SPDX-License-Identifier: Apache-2.0
"""The OpenStack adapter: flavors with vGPU extra specs become grants that follow their instances.

`compute/` is what Nova itself loads, and ships as a wheel of its own (`sluice-nova`) that needs
nothing but Nova. The rest is the service `sluice openstack serve` and the commands beside it: they
speak to OpenStack through openstacksdk and to the controller through its REST API.
"""
