# SPDX-License-Identifier: Apache-2.0
"""A folder by a short path, for the addresses of Unix sockets, which end after 107 bytes.

Used by the demo's pool and the KVM rig, which put sockets below the checkout, however deep that
lies. Owns a link in a temporary folder of its own; close() removes both, not what is linked to.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

#: sun_path without its final zero byte.
LONGEST_SOCKET_PATH = 107


class ShortFolder:
    """`path` leads to `folder`, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._own = Path(tempfile.mkdtemp(prefix="sluice-", dir="/tmp"))
        self.path = self._own / "f"
        self.path.symlink_to(folder)

    def close(self) -> None:
        """Removes the link; may be called again."""
        self.path.unlink(missing_ok=True)
        if self._own.exists():
            self._own.rmdir()
