# SPDX-License-Identifier: Apache-2.0
"""RDMA on this host: its devices, the port that sessions use, and its figures."""
