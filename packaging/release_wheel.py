# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of the whole of Sluice, for every Linux with glibc 2.28.

Used by release.py and host_packages.py. The native part is compiled by zig, as the guest bundle's
is (zig-toolchain.cmake), through the build that `pip install .` does. With `built` nothing is
compiled: what a build for this machine has is packed, so that packages can be tried in a minute.
It promises that the same sources, tools and date give the same bytes, and that nothing in a wheel
of a release needs more than glibc 2.28 (check_wheel).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PLATFORM = "manylinux_2_28_x86_64"
TOOLS_LOCK = CHECKOUT / "packaging" / "release" / "build-tools.txt"


def make_tools(folder: Path) -> Path:
    """An environment with what the lock names; returns its Python."""
    python = folder / "bin" / "python"
    stamp = folder / "lock.txt"
    lock = TOOLS_LOCK.read_text()
    if stamp.exists() and stamp.read_text() == lock:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--require-hashes", "--no-deps", "-r", str(TOOLS_LOCK)])
    stamp.write_text(lock)
    return python


def build_wheel(source: Path, tools: Path, work: Path, moment: int, jobs: int) -> Path:
    """The wheel of a release, of the tree `source`, in which it is compiled too.

    So ccache, which takes paths as they are within the tree, knows what another tree compiled.
    """
    out = fresh(work / "wheel")
    defines = {
        "CMAKE_TOOLCHAIN_FILE": str(source / "packaging" / "zig-toolchain.cmake"),
        "SLUICE_PYTHON": str(tools),
        "SLUICE_STATIC_RUNTIME": "OFF",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "CMAKE_EXE_LINKER_FLAGS": "-s",
    }
    settings = [f"build-dir={source / 'build' / 'native'}"]
    settings += [f"cmake.define.{name}={value}" for name, value in defines.items()]
    made = pip_wheel(source, tools, out, settings, moment, jobs)
    tag(made, tools, PLATFORM, moment)
    [wheel] = out.glob("*.whl")
    return wheel


def pack_built(source: Path, tools: Path, work: Path, moment: int, built: Path) -> Path:
    """A wheel with the native part of the build folder `built`, which is for this machine only."""
    out = fresh(work / "wheel")
    made = pip_wheel(source, tools, out, ["wheel.cmake=false"], moment, 1)
    with tempfile.TemporaryDirectory() as scratch:
        environment = at(moment, tools)
        run([str(tools), "-m", "wheel", "unpack", "--dest", scratch, str(made)], environment)
        [tree] = Path(scratch).iterdir()
        add_built(tree / "sluice", built, tools)
        [information] = tree.glob("*.dist-info/WHEEL")
        text = information.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        information.write_text(text)
        made.unlink()
        run([str(tools), "-m", "wheel", "pack", "--dest-dir", str(out), str(tree)], environment)
    [made] = out.glob("*.whl")
    tag(made, tools, "linux_x86_64", moment)
    [wheel] = out.glob("*.whl")
    return wheel


def add_built(package: Path, built: Path, tools: Path) -> None:
    """Puts what a build generated and compiled into the package, as its install step would.

    gRPC code is generated anew: the checkout's is its own Python's, which may be a newer one than
    the metadata ask for.
    """
    generator = CHECKOUT / "controller" / "proto" / "generate.py"
    run([str(tools), str(generator), str(package.parent)])
    (package / "rpc" / ".generated").unlink()
    protocol = CHECKOUT / "python" / "sluice" / "protocol"
    ignored = shutil.ignore_patterns("__pycache__", ".generated")
    shutil.copytree(protocol, package / "protocol", ignore=ignored, dirs_exist_ok=True)
    settings = CHECKOUT / "guest_runtime" / "client_settings.py"
    shutil.copy(settings, package / "guest_runtime" / settings.name)
    (package / "native").mkdir(exist_ok=True)
    for line in (built / "wheel_files.txt").read_text().split():
        target = package / "native" / Path(line).name
        run(["strip", "-o", str(target), line])
        target.chmod(0o755)


def pip_wheel(
    source: Path, tools: Path, out: Path, settings: list[str], moment: int, jobs: int
) -> Path:
    """Runs the build backend of pyproject.toml with the tools that are there."""
    command = [str(tools), "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    command += [word for setting in settings for word in ("-C", setting)]
    environment = at(moment, tools, source) | {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    run([*command, str(source)], environment)
    [wheel] = out.glob("*.whl")
    return wheel


def tag(wheel: Path, tools: Path, platform: str, moment: int) -> None:
    """Names the platform for which the wheel is."""
    command = [str(tools), "-m", "wheel", "tags", "--remove", "--platform-tag", platform]
    run([*command, str(wheel)], at(moment, tools), quiet=True)


def check_wheel(wheel: Path, tools: Path) -> str:
    """What auditwheel says; ends the program where the wheel needs more than is promised."""
    done = subprocess.run(
        [str(tools), "-m", "auditwheel", "show", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join(done.stdout.split())
    if done.returncode or not any(f'"manylinux_2_{n}_x86_64"' in said for n in range(5, 29)):
        sys.exit(f"release: {wheel.name} does not fit {PLATFORM}: {done.stdout}{done.stderr}")
    return said


def native_files(wheel: Path) -> dict[str, bytes]:
    """Name → content of the wheel's native part."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.rpartition("/")[2]: archive.read(name)
            for name in archive.namelist()
            if name.startswith("sluice/native/")
        }


def at(moment: int, tools: Path, source: Path = CHECKOUT) -> dict[str, str]:
    """The environment of a build: its date, and its tools before the machine's.

    Logs name source files: with these flags they are named from the top of the tree, wherever it
    lies, and whether ccache (whose paths are seen from build/NAME) was there or not.
    """
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "CFLAGS", "CXXFLAGS", "LDFLAGS")
    kept = {k: v for k, v in os.environ.items() if k not in ours}
    path = f"{tools.parent}:{os.environ['PATH']}"
    flags = f"-fmacro-prefix-map={source}/= -fmacro-prefix-map=../../="
    kept |= {"CFLAGS": flags, "CXXFLAGS": flags}
    return {**kept, "SOURCE_DATE_EPOCH": str(moment), "PATH": path, "PYTHONHASHSEED": "0"}


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(command: list[str], environment: dict[str, str] | None = None, quiet: bool = False) -> None:
    """Runs a tool; ends the program when it fails."""
    output = subprocess.DEVNULL if quiet else None
    if subprocess.run(command, check=False, env=environment, stdout=output).returncode:
        sys.exit(f"release: {' '.join(command[:5])} … failed")
