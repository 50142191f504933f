# SPDX-License-Identifier: Apache-2.0
"""sluice-controller: the pool and its ledger, its REST API and the servers' gRPC service."""
