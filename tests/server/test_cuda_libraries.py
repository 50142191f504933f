# SPDX-License-Identifier: Apache-2.0
"""Where the server finds NVIDIA's libraries, and what it says of those that it does not."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from sluice.config.ini import ConfigError
from sluice.config.server import ServerConfig, ServerSection, read_server_config
from sluice.server.check import check
from sluice.server.gpus import cuda_libraries
from sluice.server.gpus.cuda_libraries import (
    LIBRARIES,
    cuda_12_line,
    find_libraries,
    search_folders,
)

ROOT = Path(__file__).resolve().parents[2]


def laid(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"\x7fELF")
    return folder


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose places for libraries are all below tmp_path, and empty."""
    base = str(tmp_path)
    for name in ("TOOLKITS", "TARGETS", "SYSTEM", "PYTHONS", "CONDA"):
        monkeypatch.setattr(
            cuda_libraries, name, tuple(base + place for place in getattr(cuda_libraries, name))
        )
    monkeypatch.setattr(cuda_libraries.sys, "path", [])
    monkeypatch.setattr(cuda_libraries, "_untrusted", lambda folder: "")
    return tmp_path


def test_the_registry_forwards_no_library_that_the_server_does_not_know() -> None:
    folder = ROOT / "native" / "api"
    for rules in (folder / "libraries").glob("*.yaml"):
        facts = json.loads((folder / "imported" / "libraries" / f"{rules.stem}.json").read_text())
        assert facts["soname"] in LIBRARIES.values(), rules


def test_places_are_searched_in_order_and_only_those_with_a_library_are_taken(host: Path) -> None:
    old = laid(host / "usr/local/cuda-13.0/lib64", "libcublas.so.13")
    new = laid(host / "usr/local/cuda-13.10/lib64", "libcublas.so.13")
    laid(host / "usr/local/cuda-13.2/lib64", "libcublas.so.11")
    older = laid(host / "usr/local/cuda-12.9/lib64", "libcublas.so.12")
    wheel = laid(host / "usr/lib/python3.12/site-packages/nvidia/cudnn/lib", "libcudnn.so.9")
    profiler = laid(
        host / "usr/lib/python3.12/site-packages/nvidia/cuda_cupti/lib", "libcupti.so.13"
    )
    laid(host / "usr/lib/python3.12/site-packages/nvidia/cufile/lib", "libcufile.so.0")
    venv = laid(
        host / "opt/torch/.venv/lib/python3.11/site-packages/nvidia/nccl/lib", "libnccl.so.2"
    )
    conda = laid(host / "opt/conda/lib", "libcufft.so.12")
    assert search_folders() == [new, old, older, wheel, profiler, venv, conda]


def test_the_registry_has_the_same_names_of_cuda_12() -> None:
    path = ROOT / "native" / "api" / "imported" / "cuda12" / "libraries.json"
    sonames = {row["soname"] for row in json.loads(path.read_text())}
    assert sonames == set(cuda_libraries.CUDA_12.values())


def test_what_serves_clients_of_cuda_12_is_said_in_one_line(host: Path) -> None:
    newest = laid(host / "usr/local/cuda-13.0/lib64", *LIBRARIES.values())
    assert cuda_12_line([newest]) == "clients of CUDA 12 are served by the libraries of CUDA 13"
    older = laid(host / "usr/local/cuda-12.9/lib64", "libcublas.so.12", "libcublasLt.so.12")
    assert search_folders() == [newest, older]
    assert cuda_12_line(search_folders()) == (
        "clients of CUDA 12 are served by its own cuBLAS, cuBLASLt; by CUDA 13's cuFFT, cuSOLVER"
    )


def test_one_folder_under_two_names_is_searched_once(host: Path) -> None:
    toolkit = laid(host / "usr/local/cuda-13.0/lib64", "libcublas.so.13")
    (host / "usr/local/cuda").symlink_to(toolkit.parent)
    assert [folder.resolve() for folder in search_folders()] == [toolkit]


def test_a_setting_replaces_the_search(host: Path) -> None:
    laid(host / "usr/local/cuda/lib64", "libcublas.so.13")
    mine = laid(host / "mine")
    assert search_folders([str(mine)]) == [mine]


def test_versions_come_from_the_file_or_from_the_python_package(host: Path) -> None:
    toolkit = laid(host / "usr/local/cuda/lib64", "libcublas.so.13.1.0.3", "libcufft.so.12")
    (toolkit / "libcublas.so.13").symlink_to("libcublas.so.13.1.0.3")
    packages = host / "usr/lib/python3.12/site-packages"
    laid(packages / "nvidia/cudnn/lib", "libcudnn.so.9")
    record = packages / "nvidia_cudnn_cu13-9.15.1.9.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("nvidia/cudnn/include/cudnn.h,,\nnvidia/cudnn/lib/libcudnn.so.9,sha256=x,1\n")
    found = {library.title: library for library in find_libraries(search_folders())}
    assert found["cuBLAS"].version == "13.1.0.3"
    assert found["cuFFT"].path == toolkit / "libcufft.so.12"
    assert found["cuFFT"].version == ""
    assert found["cuDNN"].version == "9.15.1.9"
    assert found["NCCL"].path is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_folders_that_others_may_write_or_workers_cannot_read_are_left_out(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for place in (host, *host.parents[:-2]):
        place.chmod(0o755)
    folder = laid(host / "lib64", "libcublas.so.13")
    assert not cuda_libraries._untrusted(folder)
    folder.chmod(0o777)
    assert "everybody may write" in str(cuda_libraries._untrusted(folder))
    folder.chmod(0o700)
    assert "closed to the account of the workers" in str(cuda_libraries._untrusted(folder))
    folder.chmod(0o755)
    os.chown(folder, 65534, 65534)
    assert "another account" in str(cuda_libraries._untrusted(folder))


def test_check_names_what_is_there_and_what_is_missing(host: Path) -> None:
    laid(host / "usr/local/cuda/lib64", "libcublas.so.13")
    out = io.StringIO()
    config = ServerConfig(server=ServerSection(driver=str(host)))
    assert check(config, out) == 0
    said = out.getvalue()
    assert f"ok    cuBLAS: unknown version, {host}/usr/local/cuda/lib64/libcublas.so.13" in said
    assert "note  cuDNN: libcudnn.so.9 is not on this host" in said
    assert "programs that call cuBLASLt, cuDNN" in said
    assert "[server] cuda_libraries" in said
    assert check(ServerConfig(server=ServerSection(driver="/absent")), io.StringIO()) == 1


def test_the_setting_is_a_list_of_folders(tmp_path: Path) -> None:
    one, two = laid(tmp_path / "one"), laid(tmp_path / "two")
    path = tmp_path / "server.conf"
    path.write_text(f"[server]\ncuda_libraries = {one}, {two}\n")
    assert read_server_config(path).server.cuda_libraries == [str(one), str(two)]
    for wrong, why in (("lib64", "no absolute path"), (f"{one}/absent", "is no folder")):
        path.write_text(f"[server]\ncuda_libraries = {wrong}\n")
        with pytest.raises(ConfigError, match=why):
            read_server_config(path)
