# SPDX-License-Identifier: Apache-2.0
"""The libraries that are not available: each exports what NVIDIA's does and answers by its type."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from generate_absent import load_absent
from imported import RegistryError

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "native" / "api"
LIBRARIES = yaml.safe_load((API / "absent.yaml").read_text())

Spoil = Callable[[str, str], Path]


@pytest.fixture
def changed(tmp_path: Path) -> Spoil:
    """changed(old, new) → a registry whose absent.yaml differs in this."""

    def make(old: str, new: str) -> Path:
        shutil.copytree(API / "absent", tmp_path / "absent")
        text = (API / "absent.yaml").read_text()
        assert old in text
        (tmp_path / "absent.yaml").write_text(text.replace(old, new))
        return tmp_path

    return make


def test_every_listed_function_is_there_once() -> None:
    for library in load_absent():
        listed = json.loads((API / "absent" / f"{library.soname}.json").read_text())
        assert library.names == [name for name, _ in listed["functions"]]
        assert len(set(library.names)) == len(library.names)


def test_a_type_without_an_answer_is_refused(changed: Spoil) -> None:
    with pytest.raises(RegistryError, match=r"cuFileUseCount returns long.*no answer"):
        load_absent(changed("    long: 0\n", ""))


def test_a_function_by_hand_that_no_library_exports_is_refused(changed: Spoil) -> None:
    with pytest.raises(RegistryError, match=r"libcupti\.so\.12.*hand"):
        load_absent(changed("cuptiUnsubscribe]", "cuptiUnsubscribeAll]"))


def test_a_status_that_no_enumeration_has_is_refused(changed: Spoil) -> None:
    with pytest.raises(RegistryError, match="status"):
        load_absent(changed("status: CUSPARSE_STATUS_NOT_SUPPORTED", "status: CUSPARSE_ABSENT"))


def test_what_pytorch_imports_of_them_is_exported() -> None:
    # Of libtorch_cpu, libtorch_cuda, libtorch_python and libtorch_nvshmem 2.11 for CUDA 13.
    wanted = {
        "libcupti.so.13": "cuptiActivityRegisterCallbacks cuptiSubscribe cuptiFinalize",
        "libcupti.so.12": "cuptiActivityRegisterCallbacks cuptiSubscribe cuptiFinalize",
        "libcufile.so.0": "cuFileHandleRegister cuFileRead cuFileWrite cuFileBufDeregister",
        "libcusparseLt.so.0": "cusparseLtInit cusparseLtMatmulSearch cusparseLtSpMMACompress2",
        "libnvshmem_host.so.3": "nvshmemid_hostlib_init_attr nvshmemx_get_uniqueid nvshmem_ptr",
    }
    found = {library.soname: (library.node, set(library.names)) for library in load_absent()}
    for soname, names in wanted.items():
        assert set(names.split()) <= found[soname][1]
    assert found["libcupti.so.13"][0] == "libcupti.so.13"
    assert found["libcupti.so.12"][0] == "libcupti.so.12"
    assert found["libnvshmem_host.so.3"][0] == "NVSHMEM"


def test_listing_again_gives_the_committed_files(cuda_root: Path, tmp_path: Path) -> None:
    root = cuda_root.parents[1]
    newest = {name: e for name, e in LIBRARIES.items() if "-cu12" not in e["wheel"]}
    missing = [e["wheel"] for e in newest.values() if not (root / e["file"]).exists()]
    if missing:
        pytest.skip(f"not unpacked in {root}: {', '.join(missing)}")
    pytest.importorskip("clang.cindex", reason="the libclang wheel is not installed")
    command = [sys.executable, ROOT / "native/codegen/list_exports.py", "--root", root]
    only = [word for soname in newest for word in ("--only", soname)]
    subprocess.run([*command, "--out", tmp_path, *only], check=True)
    for soname in newest:
        name = f"{soname}.json"
        assert (tmp_path / name).read_bytes() == (API / "absent" / name).read_bytes(), name
