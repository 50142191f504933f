# SPDX-License-Identifier: Apache-2.0
"""Sluice and libvirt: the request in a domain's metadata, its channel devices, its life.

`sluice vm` (cli.py) changes domains; the service in sluice-server (service.py) follows them.
Nothing here talks to a guest: who a guest is, is read from libvirt only.
"""
