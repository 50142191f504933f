# SPDX-License-Identifier: Apache-2.0
"""Small native programs for the loader and the ELF reader; the real bundle and real guests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rigs.kvm.rig import Guest as Guest
from tests.rigs.kvm.rig import Rig as Rig

CHECKOUT = Path(__file__).resolve().parents[2]

Compile = Callable[..., Path]


@pytest.fixture
def compile_c(tmp_path: Path) -> Compile:
    """compile_c(name, source, *options) → the file."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def compile_it(name: str, source: str, *options: str) -> Path:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = tmp_path / (Path(name).name + ".c")
        text.write_text(source)
        subprocess.run([compiler, str(text), "-o", str(target), *options], check=True)
        return target

    return compile_it


def compile_hook(folder: Path) -> Path:
    """The real loader hook, compiled into a folder."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    native = CHECKOUT / "native"
    source, hook = native / "client" / "audit", folder / "libsluice-audit.so"
    tables = folder.parent / "generated"
    script, lock = native / "codegen/static_runtimes.py", native / "api/static_runtimes.lock"
    made = tables / "audit" / "static_runtimes.inc"
    subprocess.run([sys.executable, script, lock, made], check=True)
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", f"-I{tables}"]
    command += [f"-Wl,--version-script={source / 'audit.map'}"]
    command += [*map(str, sorted(source.glob("*.cc"))), "-o", str(hook), "-ldl"]
    subprocess.run(command, check=True)
    return hook


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/… as `make guest-bundle` writes it, in a folder of its own."""
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(CHECKOUT / "packaging/guest_bundle.py"), "--dist", str(dist)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dist / "sluice-guest-x86_64.tar.gz"


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    if os.geteuid() != 0:
        pytest.skip("the KVM rig needs root")
    with Rig("tests-guest") as started:
        yield started


def install_bundle(guest: Guest, bundle: Path, *options: str) -> None:
    """Unpacks the bundle in the guest and runs its install.sh."""
    guest.put(bundle, "/root/bundle.tar.gz")
    command = " ".join(["cd /root && tar xzf bundle.tar.gz && sluice-guest/install.sh", *options])
    guest.check(command, timeout=120)
