# SPDX-License-Identifier: Apache-2.0
"""sluice-controller: the pool's books, its REST API and the servers' gRPC service."""
