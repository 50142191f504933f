# SPDX-License-Identifier: Apache-2.0
"""The loader hook takes our library for every spelling of its name, and `sluice check` knows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sluice.guest_runtime.substitution import CUDA, LOCAL, served_by

from .conftest import Compile, compile_hook

OURS = ("libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1", "libcudnn.so.9", "libnccl.so.2")
#: What a folder with CUDA 12's libraries as well has besides.
BOTH = (
    *("libcudart.so.12", "libcudart.so.13", "libcublas.so.12"),
    *("libcufft.so.11", "libcufft.so.12"),
)
OPENS = """
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char** v){
  for(int i = 1; i < n; ++i){
    void* l = dlopen(v[i], RTLD_NOW);
    const char* (*which)(void) = l ? (const char*(*)(void))dlsym(l, "which") : 0;
    puts(which ? which() : "-");
    if(l) dlclose(l);
  }
}
"""
#: What is asked for → which of ours is taken.
ASKED = {
    "libcublas.so.13": "libcublas.so.13",
    "libcublas.so": "libcublas.so.13",
    "libcublas.so.13.1.0.3": "libcublas.so.13",
    "/venv/nvidia/cu13/lib/libcublas.so.13": "libcublas.so.13",
    "/usr/local/cuda/lib64/libcublas.so": "libcublas.so.13",
    "/opt/conda/envs/a b/lib/libcublasLt.so.13.1.0.3": "libcublasLt.so.13",
    "../lib/libcuda.so": "libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06": "libcuda.so.1",
    "libcuda.so.180.5": "libcuda.so.1",
    "libcuda.so.x": None,
    "libcudadebugger.so.1": None,
    "libcudnn.so.9": "libcudnn.so.9",
    "/venv/nvidia/cudnn/lib/libcudnn_ops.so.9": "libcudnn.so.9",
    "libcudnn_engines_runtime_compiled.so.9": "libcudnn.so.9",
    "libcudnn_graph.so.9.19.0": "libcudnn.so.9",
    "/venv/numba.libs/libcublas-5a077122.so.13.1.0.3": "libcublas.so.13",
    "/venv/faiss.libs/libcudnn-74a4c495.so.9.1.0": "libcudnn.so.9",
    "/venv/faiss.libs/libcudnn_ops-74a4c495.so.9.1.0": "libcudnn.so.9",
    "libcublas-5a077122.so.13": "libcublas.so.13",
    "/venv/torchvision.libs/libcublas.faf08d9a.so.13": "libcublas.so.13",
    "libcublas-5a077122.so.12.0.107": None,
    "libcublas-5a07712.so.13": None,
    "libcublas-5a077122x.so.13": None,
    "libcublas-5A077122.so.13": None,
    "libcudnn_ops.so.8": None,
    "libcudnn_ops.so": None,
    "libcublas.so.12": None,
    "libcublas.so.130": None,
    "libcublas.so.13x": None,
    "libcublasXt.so.13": None,
    "libcublas_static.so.13": None,
    "notlibcublas.so.13": None,
    "libcufft.so.12": None,
    "libnvrtc.so.13": None,
    "libsluice-audit.so": None,
    "libcuda.so.1/": None,
}


@pytest.fixture
def lib(compile_c: Compile) -> Path:
    """A folder of ours: libraries that say their name, and the real hook."""
    return folder_with(compile_c, OURS)


@pytest.fixture
def both(compile_c: Compile) -> Path:
    """The same with the libraries of two CUDA versions."""
    return folder_with(compile_c, (*OURS, *BOTH))


def folder_with(compile_c: Compile, names: tuple[str, ...]) -> Path:
    """Make it of these libraries."""
    shared = ("-shared", "-fPIC")
    for name in names:
        source = f'const char* which(void){{ return "{name}"; }}'
        compile_c(f"lib/{name}", source, *shared, f"-Wl,-soname,{name}")
    folder = compile_c("lib/libsluice-softgpu.so.1", "", *shared).parent
    compile_hook(folder)
    return folder


def test_the_hook_serves_every_spelling_and_no_other_name(lib: Path, compile_c: Compile) -> None:
    opener = compile_c("opener", OPENS, "-ldl")
    done = subprocess.run(
        [opener, *ASKED],
        env={"LD_AUDIT": str(lib / "libsluice-audit.so")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(ASKED, done.stdout.split(), strict=True)) == {
        asked: taken or "-" for asked, taken in ASKED.items()
    }


#: What is asked for, in one process after another → which are taken.
ORDERS = {
    "12": (
        ("libcudart.so.12", "libcudart.so.12"),
        ("libcublas.so", "libcublas.so.12"),
        ("libcufft.so", "libcufft.so.11"),
        ("libcufft.so.12", "libcufft.so.12"),
        ("libcudart.so", "libcudart.so.12"),
        ("libcuda.so", "libcuda.so.1"),
    ),
    "12, by another library": (
        ("libcuda.so.1", "libcuda.so.1"),
        ("libcudnn.so.9", "libcudnn.so.9"),
        ("libcufft.so.11", "libcufft.so.11"),
        ("libcublas.so", "libcublas.so.12"),
    ),
    "13": (
        ("libcudart.so.13", "libcudart.so.13"),
        ("libcublas.so", "libcublas.so.13"),
        ("libcublas.so.12", "libcublas.so.12"),
        ("libcufft.so", "libcufft.so.12"),
    ),
    "none yet": (("libcublas.so", "libcublas.so.13"), ("libcufft.so", "libcufft.so.12")),
    "auditwheel's 12": (
        ("/venv/cuml.libs/libcudart-5a077122.so.12.0.107", "libcudart.so.12"),
        ("libcublas.so", "libcublas.so.12"),
    ),
    "exact": (
        ("libcublas.so.12.8.4.1", "libcublas.so.12"),
        ("libcublas.so.13.0.0", "libcublas.so.13"),
        ("libcublas.so.11", None),
        ("libcublas.so.120", None),
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_name_without_a_version_is_of_the_cuda_version_that_is_there(
    order: str, both: Path, compile_c: Compile
) -> None:
    opener = compile_c("opener", OPENS, "-ldl")
    asked = [name for name, _ in ORDERS[order]]
    done = subprocess.run(
        [opener, *asked],
        env={"LD_AUDIT": str(both / "libsluice-audit.so")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [taken or "-" for _, taken in ORDERS[order]]
    served, before = served_by(both), ""
    for name, taken in ORDERS[order]:
        path = served.replacement(name, before)
        assert (path.name if path else None) == taken, name
        several = (
            taken is not None
            and len([n for n in served.names if n.startswith(taken.partition(".")[0] + ".")]) > 1
        )
        before = before or (taken if several and taken else "")


def test_a_toolkit_s_own_link_says_which_version_is_meant(
    both: Path, compile_c: Compile, tmp_path: Path
) -> None:
    toolkit = tmp_path / "cuda-12.4"
    toolkit.mkdir()
    (toolkit / "libcublas.so.12.4.5.8").touch()
    (toolkit / "libcublas.so.12").symlink_to("libcublas.so.12.4.5.8")
    (toolkit / "libcublas.so").symlink_to("libcublas.so.12")
    opener = compile_c("opener", OPENS, "-ldl")
    done = subprocess.run(
        [opener, toolkit / "libcublas.so", "libcufft.so"],
        env={"LD_AUDIT": str(both / "libsluice-audit.so")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["libcublas.so.12", "libcufft.so.11"]
    taken = served_by(both).replacement(str(toolkit / "libcublas.so"))
    assert taken is not None
    assert taken.name == "libcublas.so.12"


def test_sluice_check_says_what_the_hook_does(lib: Path) -> None:
    served = served_by(lib)
    assert set(served.names) == set(OURS)
    for asked, taken in ASKED.items():
        path = served.replacement(asked)
        assert (path.name if path else None) == taken, asked


def test_a_library_that_is_not_there_falls_through(lib: Path) -> None:
    (lib / "libcublas.so.13").unlink()
    assert served_by(lib).replacement("libcublas.so.13") is None
    assert served_by(lib / "none").names == {}
    assert served_by(None).names == {}


def test_another_major_version_is_recognised(lib: Path) -> None:
    served = served_by(lib)
    assert served.other_version("libcublas.so.12") == "libcublas.so.13"
    assert served.other_version("/x/libcudnn.so.8") == "libcudnn.so.9"
    assert served.other_version("libcublas.so.13.1.0.3") is None
    assert served.other_version("libcufft.so.11") is None


@pytest.mark.parametrize(
    ("name", "cuda", "local"),
    [
        ("libcublas.so.13", True, False),
        ("libcusolverMg.so.12", True, False),
        ("libnppig.so.13", True, False),
        ("libnvrtc.so.13", False, True),
        ("libnvrtc-builtins.so.13.0", False, True),
        ("libnvJitLink.so.13", False, True),
        ("libcurl.so.4", False, False),
        ("libcups.so.2", False, False),
        ("libstdc++.so.6", False, False),
    ],
)
def test_nvidias_names_are_told_from_others(name: str, cuda: bool, local: bool) -> None:
    assert (bool(CUDA.fullmatch(name)), bool(LOCAL.fullmatch(name))) == (cuda, local)
