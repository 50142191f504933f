# SPDX-License-Identifier: Apache-2.0
"""Containers of this host: who they are, and the sockets that CDI devices give them."""
