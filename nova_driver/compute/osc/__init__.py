# SPDX-License-Identifier: Apache-2.0
"""`openstack vgpu`: a plugin of OpenStack's command line (entry point openstack.cli.extension).

It needs nothing but the client itself: what instances ask for, Nova says; what they hold, the
pool's controller, where one is named (--os-vgpu-controller).
"""
