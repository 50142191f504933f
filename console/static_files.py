# SPDX-License-Identifier: Apache-2.0
"""Scripts, styles and pictures of the pages: read once, served from memory, under names that change
with their content, so that browsers keep them for ever.

FILES is all there is: no path of a request is looked up on the disk. What others wrote is in
static/vendor, with its licences and checksums (docs/dependencies.md says why it is there).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from sluice.controller.auth.browser_sessions import PREFIX

FOLDER = Path(__file__).resolve().parent / "static"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One of them."""

    name: str
    content: bytes
    type: str
    digest: str

    @property
    def url(self) -> str:
        """Where it is; another content has another."""
        return f"{PREFIX}/static/{self.digest}/{self.name}"

    def response(self) -> Response:
        """The file, to be kept."""
        return Response(self.content, headers={"Cache-Control": FOR_EVER}, media_type=self.type)


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return StaticFile(path.name, content, TYPES[path.suffix], digest)


FILES = {
    path.name: _read(path)
    for path in sorted([*FOLDER.iterdir(), *(FOLDER / "vendor").iterdir()])
    if path.suffix in TYPES
}
