# SPDX-License-Identifier: Apache-2.0
"""Takes the uncompressed ELF kernel out of a distribution's bzImage.

Called by images.py. QEMU starts such a kernel by its PVH note and saves the five seconds that
unpacking takes under emulation.
"""

from __future__ import annotations

import lzma
import struct
import subprocess
import zlib
from pathlib import Path

_PAYLOAD_FIELDS = 0x248  # payload_offset and payload_length of the boot protocol, 2.08 and later
_SETUP_SECTORS = 0x1F1


def extract(bzimage: Path, target: Path) -> None:
    """Writes the ELF payload of ``bzimage`` to ``target``; ValueError where there is none."""
    image = bzimage.read_bytes()
    base = ((image[_SETUP_SECTORS] or 4) + 1) * 512
    offset, length = struct.unpack_from("<II", image, _PAYLOAD_FIELDS)
    body = image[base + offset : base + offset + length - 4]  # the last word is the unpacked size
    kernel = _unpack(body)
    if kernel[:4] != b"\x7fELF":
        raise ValueError(f"{bzimage}: the payload is no ELF file")
    target.write_bytes(kernel)


def _unpack(body: bytes) -> bytes:
    if body.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(body)
    if body.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(body)
    for magic, tool in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4")):
        if body.startswith(magic):
            # The trailing size word makes the tools complain after all output is written.
            return subprocess.run(
                [tool, "-dc"], input=body, stdout=subprocess.PIPE, check=False
            ).stdout
    raise ValueError(f"unknown kernel compression {body[:6].hex()}")
