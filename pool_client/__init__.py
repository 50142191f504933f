# SPDX-License-Identifier: Apache-2.0
"""Talks to the pool's controllers over REST: pool_client.client and, with asyncio, async_client."""
