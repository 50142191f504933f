# SPDX-License-Identifier: Apache-2.0
"""client.conf, the token's file and what the loader finds: what goes unread or unused is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.guest_runtime.configuration import read_settings
from sluice.guest_runtime.findings import Verdict
from sluice.guest_runtime.installation import Installation
from sluice.guest_runtime.loader_check import check_loading
from sluice.guest_runtime.settings_check import check_files, check_token
from tests.support.findings_of import bad, noted, only_bad

TOKEN = "sluice_" + "A1b2" * 10 + "xyz"


def test_every_key_of_the_example_is_known(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "packaging/guest/client.conf"
    lines = example.read_text().splitlines()
    keys = [
        line[1:] if line.startswith(";") and not line.startswith("; ") else line for line in lines
    ]
    path = tmp_path / "client.conf"
    path.write_text("\n".join(line for line in keys if "=" in line or line.startswith("[")))
    [found] = check_files([path])
    assert found.verdict is Verdict.OK


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[client]\nchanel = tcp\n", ("client.conf:2", "did you mean channel in [client]?")),
        ("[client]\nca = /x\n", ("did you mean ca in [controller]?",)),
        ("[client]\nwhatever = 1\n", ("docs/configuration.md",)),
    ],
)  # fmt: skip
def test_a_key_that_nobody_reads_is_noted(
    text: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "client.conf"
    path.write_text(text)
    noted(check_files([path]), *words)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text("[client\nchannel tcp\n")
    assert len(bad(check_files([path]))) == 2
    path.write_bytes(b"[client]\nchannel = \xff\n")
    only_bad(check_files([path]), "UTF-8")
    path.unlink()
    path.mkdir()
    only_bad(check_files([path]), "client.conf")
    assert not check_files([tmp_path / "none"])


def of_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[object]]:
    monkeypatch.delenv("SLUICE_TOKEN", raising=False)
    path = tmp_path / "token"
    settings = read_settings({"SLUICE_TOKEN_FILE": str(path)}, Path("/nowhere"))
    return path, list(check_token(settings))


def test_a_token_that_is_not_there_or_open_to_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = of_token(tmp_path, monkeypatch)
    only_bad(found, "not there")  # type: ignore[arg-type]
    path.write_text(TOKEN)
    for mode in (0o644, 0o660, 0o602):
        path.chmod(mode)
        _, found = of_token(tmp_path, monkeypatch)
        only_bad(found, f"{mode:04o}", "chmod 600")  # type: ignore[arg-type]
    path.chmod(0o640)
    _, found = of_token(tmp_path, monkeypatch)
    assert not bad(found)  # type: ignore[arg-type]
    assert TOKEN not in str(found)
    path.write_text("hello")
    _, found = of_token(tmp_path, monkeypatch)
    only_bad(found, "sluice token create")  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_another_users_token_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = of_token(tmp_path, monkeypatch)
    path.write_text(TOKEN)
    path.chmod(0o600)
    os.chown(path, 12345, -1)
    _, found = of_token(tmp_path, monkeypatch)
    only_bad(found, "12345's")  # type: ignore[arg-type]


@pytest.fixture
def ours(tmp_path: Path) -> Installation:
    folder = tmp_path / "opt/sluice/lib"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libcublas.so.13", "libsluice-audit.so"):
        (folder / name).touch()
    audit, driver = folder / "libsluice-audit.so", folder / "libcuda.so.1"
    return Installation(folder, audit, driver, None, None)


def loading(ours: Installation, cache: str = "", **environment: str) -> list[object]:
    preload = Path("/nowhere")
    return list(check_loading(ours, cache, environment, preload))


def test_what_is_preloaded_before_ours_is_named(ours: Installation, tmp_path: Path) -> None:
    found = loading(ours, LD_PRELOAD="/usr/lib/libcuda.so.1 libjemalloc.so.2")
    only_bad(found, "LD_PRELOAD", "libcuda.so.1")  # type: ignore[arg-type]
    noted(found, "libjemalloc")  # type: ignore[arg-type]
    preload = tmp_path / "ld.so.preload"
    preload.write_text("# of an image\n/usr/lib64/libcudart.so.13\n")
    only_bad(check_loading(ours, "", {}, preload), str(preload))


def test_another_hook_and_another_driver_in_the_path_are_noted(
    ours: Installation, tmp_path: Path
) -> None:
    other = tmp_path / "nvidia"
    other.mkdir()
    (other / "libcuda.so.1").touch()
    found = loading(ours, LD_AUDIT="/usr/lib/other.so", LD_LIBRARY_PATH=f"/none:{other}")
    noted(found, "LD_AUDIT", "other.so")  # type: ignore[arg-type]
    noted(found, str(other))  # type: ignore[arg-type]
    before = loading(ours, LD_LIBRARY_PATH=f"{ours.folder}:{other}")
    assert not any(str(other) in str(each) for each in before)


def test_each_library_is_said_to_be_whose(ours: Installation) -> None:
    cache = "".join(
        f"\t{name} (libc6,x86-64) => /usr/local/cuda/lib64/{name}\n"
        for name in ("libcublas.so.13", "libcublas.so.12", "libnpp.so.13", "libz.so.1")
    )
    found = loading(ours, cache)
    texts = [getattr(each, "text") for each in found]  # noqa: B009
    assert any("libcublas.so.13 is NVIDIA's; under `sluice run` ours" in text for text in texts)
    noted(found, "libcublas.so.12", "another major version")  # type: ignore[arg-type]
    noted(found, "libnpp.so.13", "no counterpart")  # type: ignore[arg-type]
    assert not any("libz" in text for text in texts)
