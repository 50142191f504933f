# SPDX-License-Identifier: Apache-2.0
"""Makes what tells programs of a musl image, Alpine's, that Sluice's libraries are not for them.

Called by guest_bundle.py. musl's loader knows no hook and looks only where /etc/ld-musl-x86_64.path
says; the CDI specification mounts ours there. In its last folder lie libraries with NVIDIA's names
that hold nothing and need one library, whose name is the message: so the loader, or dlerror(),
says it, before and instead of a hundred missing symbols. glibc reads neither.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

#: No slash, which would make it a path; the loader writes "Error loading shared library" before it.
MESSAGE = (
    "Sluice needs glibc 2.28 or later and this image has musl: use an image of Debian, Ubuntu or a "
    "RHEL kin"
)
LIBRARIES = ("libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnvidia-ml.so.1")
FOLDER = "libexec/musl"
#: musl's own folders come first, as they do without the file.
SEARCH_PATH = f"/lib:/usr/local/lib:/usr/lib:/opt/sluice/{FOLDER}\n"


def musl_files(compiler: str = "cc") -> dict[str, tuple[int, bytes]]:
    """The files by their names in the bundle; the same bytes with the same linker.

    Raises CalledProcessError and OSError where there is no compiler.
    """
    files = {f"{FOLDER}/ld-musl-x86_64.path": (0o644, SEARCH_PATH.encode())}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "empty.c").write_text("")
        link = [compiler, "-shared", "-nostdlib", "-s", "-Wl,--build-id=none"]
        link += ["-Wl,--no-as-needed", "empty.c"]
        soname = ["-Xlinker", "-soname", "-Xlinker"]
        subprocess.run([*link, *soname, MESSAGE, "-o", "message.so"], cwd=folder, check=True)
        for name in LIBRARIES:
            command = [*link, "./message.so", *soname, name, "-o", name]
            subprocess.run(command, cwd=folder, check=True)
            files[f"{FOLDER}/{name}"] = (0o755, (folder / name).read_bytes())
    return files
