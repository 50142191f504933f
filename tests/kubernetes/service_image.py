# SPDX-License-Identifier: Apache-2.0
"""Images with Sluice's programs for clusters, of this machine's Python and what they import.

What `pip install sluice-gpu[kubernetes]` would bring into an image of Python's, without a builder.
They have the same files, which containerd unpacks once, and begin with a program each.
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

#: By program, where it begins.
_MODULES = {
    "sluice-kubernetes": "sluice.kubernetes.__main__",
    "sluice-controller": "sluice.controller.__main__",
    "sluice-server": "sluice.server.__main__",
}
_WHEN_USED = ("etcd3aio",)  # what they import later
_IMAGES = {f"docker.io/library/{name}:0.2": f"/usr/local/bin/{name}" for name in _MODULES}
#: What a server starts; the software GPU is its driver.
_NATIVE = (
    *(f"bin/sluice-{name}" for name in ("worker", "arbiter", "doorbell", "relay", "watch")),
    *("lib/libsluice-softgpu.so.1", "lib/sluice_meter.so"),
)
_LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "ensurepip", "site-packages"}
#: What is compiled as `pip install` does it: without it a start compiles a thousand modules.
_COMPILED = f".{sys.implementation.cache_tag}.pyc"
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


def load(rig: KubernetesRig) -> None:
    """Hands the images to containerd, once; raises OSError, CalledProcessError."""
    if rig.has_image(next(iter(_IMAGES))):
        return
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
    for name in _imported([*_MODULES.values(), *_WHEN_USED]):
        for found in _of_package(packages, name):
            for path in _files(found):
                files[f"{home}/site-packages/{path.relative_to(packages)}"] = path
    sluice = CHECKOUT / "python" / "sluice"
    for part in sluice.iterdir():
        for path in _files(part):
            files[f"{home}/site-packages/sluice/{path.relative_to(sluice)}"] = path
    native = CHECKOUT / "build" / "native"
    for name in _NATIVE:
        files[f"{home}/site-packages/sluice/native/{name}"] = found = (native / name).resolve()
        binaries.append(found)
    files.update({f"etc/{name}": Path("/etc") / name for name in ("passwd", "group")})
    binaries += [p for p in files.values() if isinstance(p, Path) and ".so" in p.suffixes]
    files.update(libraries_of(*binaries))
    files.update({"bin/busybox": Path("/bin/busybox"), "bin/sh": "busybox"})
    with tempfile.TemporaryDirectory() as folder:
        for program, module in _MODULES.items():
            script = Path(folder) / program
            script.write_text(_SCRIPT.replace("@MODULE@", module))
            files[f"usr/local/bin/{program}"] = script
        rig.load_images(_IMAGES, files)


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
    beside = (f"{name}.*", f"{name}-*.dist-info", f"__pycache__/{name}{_COMPILED}")
    return [packages / name, *(found for each in beside for found in packages.glob(each))]


def _is_compiled(path: Path) -> bool:
    """Whether it is of this Python, without its optimisations, or another's (pytest's)."""
    module = path.name.removesuffix(_COMPILED)
    return module != path.name and "." not in module


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    elif place.is_dir():
        for child in sorted(place.iterdir()):
            compiled_otherwise = child.suffix == ".pyc" and not _is_compiled(child)
            if child.name not in _LEFT_OUT and not compiled_otherwise:
                yield from _files(child)
