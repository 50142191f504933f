# SPDX-License-Identifier: Apache-2.0
"""Guests of libvirt and their channels."""
