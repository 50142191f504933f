# SPDX-License-Identifier: Apache-2.0
"""Asks a server about claims as a platform's part on its host does, over run_dir/claims.sock."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any


def ask_claims(run_dir: Path, request: Any) -> dict[str, Any]:
    """The answer to one request; a text or bytes are sent as they are."""
    line = request if isinstance(request, bytes) else json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(20)
        connected.connect(str(run_dir / "claims.sock"))
        connected.sendall(line + b"\n")
        with connected.makefile("rb") as answers:
            answer: dict[str, Any] = json.loads(answers.readline())
    return answer
