# SPDX-License-Identifier: Apache-2.0
"""Images with Sluice's programs for clusters, of this machine's Python and what they import.

What `pip install sluice-gpu[kubernetes]` would bring into an image of Python's, without a builder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.rigs.kubernetes.image import libraries_of
from tests.rigs.kubernetes.rig import CHECKOUT, KubernetesRig

PARTS, CONTROLLER, SERVER = "sluice-kubernetes", "sluice-controller", "sluice-server"
_MODULES = {
    PARTS: ["sluice.kubernetes.__main__"],
    CONTROLLER: ["sluice.controller.__main__", "etcd3aio"],  # which is imported when it is used
    SERVER: ["sluice.server.__main__"],
}
#: What a server starts; the software GPU is its driver.
_NATIVE = (
    *(f"bin/sluice-{name}" for name in ("worker", "arbiter", "doorbell", "relay", "watch")),
    *("lib/libsluice-softgpu.so.1", "lib/sluice_meter.so"),
)
_LEFT_OUT = {"__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "site-packages"}
_IMPORTED = """
import json, sys
import httpx, httpcore._async.http11, anyio._backends._asyncio  # when httpx is first used
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
httpx.AsyncClient()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
_SCRIPT = """#!/usr/local/bin/python3
import sys
from @MODULE@ import main
sys.exit(main())
"""


def load(rig: KubernetesRig, program: str = PARTS) -> None:
    """Hands an image with one of them to containerd, once; raises OSError, CalledProcessError."""
    if rig.has_image(f"docker.io/library/{program}:0.2"):
        return
    modules = _MODULES[program]
    files: dict[str, Path | str] = {}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = f"usr/local/lib/{version}"
    interpreter = Path(sys.executable).resolve()
    files[f"usr/local/bin/{version}"] = interpreter
    files["usr/local/bin/python3"] = version
    binaries = [interpreter]
    standard = Path(sysconfig.get_path("stdlib"))
    for path in _files(standard):
        files[f"{home}/{path.relative_to(standard)}"] = path
    packages = Path(sysconfig.get_path("purelib"))
    for name in _imported(modules):
        for found in _of_package(packages, name):
            for path in _files(found):
                files[f"{home}/site-packages/{path.relative_to(packages)}"] = path
    sluice = CHECKOUT / "python" / "sluice"
    for part in sluice.iterdir():
        for path in _files(part):
            files[f"{home}/site-packages/sluice/{path.relative_to(sluice)}"] = path
    if program == SERVER:
        native = CHECKOUT / "build" / "native"
        for name in _NATIVE:
            files[f"{home}/site-packages/sluice/native/{name}"] = found = (native / name).resolve()
            binaries.append(found)
        files.update({f"etc/{name}": Path("/etc") / name for name in ("passwd", "group")})
    binaries += [p for p in files.values() if isinstance(p, Path) and ".so" in p.suffixes]
    files.update(libraries_of(*binaries))
    files.update({"bin/busybox": Path("/bin/busybox"), "bin/sh": "busybox"})
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script"
        script.write_text(_SCRIPT.replace("@MODULE@", modules[0]))
        files[f"usr/local/bin/{program}"] = script
        # as the manifests have it
        entrypoint = f"/usr/local/bin/{program}"
        rig.load_image(f"docker.io/library/{program}:0.2", files, entrypoint=entrypoint)


def _imported(modules: Sequence[str]) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORTED, *modules],
        env={"PYTHONPATH": str(CHECKOUT / "python"), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    found: list[str] = json.loads(ran.stdout)
    return [name for name in found if name != "sluice"]


def _of_package(packages: Path, name: str) -> list[Path]:
    """Its module, and what is known of the version, which some look at."""
    beside = (f"{name}.*", f"{name}-*.dist-info")
    return [packages / name, *(found for each in beside for found in packages.glob(each))]


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    elif place.is_dir():
        for child in sorted(place.iterdir()):
            if child.name not in _LEFT_OUT and child.suffix != ".pyc":
                yield from _files(child)
