# SPDX-License-Identifier: Apache-2.0
"""gRPC with servers: their streams, the calls to them, and what messages mean."""
