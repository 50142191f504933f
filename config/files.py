# SPDX-License-Identifier: Apache-2.0
"""Where this host's files lie: for what only looks whether one is there, which every command does.

What is in them is read by modules of their own (config.server …), which take longer to load.
"""

from __future__ import annotations

from pathlib import Path

SERVER_FILE = Path("/etc/sluice/server.conf")
